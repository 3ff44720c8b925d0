"""Kernels of dense layers, and sums of small gradients, in memory that the ranks of a node share.

Each rank updates some rows of a kernel in this memory. It needs the factors of all ranks for it,
which the ranks exchange there too (`shared_memory.cc`). Nothing is gathered: a rank that reads the
kernel reads what the others have written. The ranks also sum their other gradients there, if these
are few bytes; otherwise the strategy's library does.

The memory is an anonymous file of the first rank (`Group.share_memory`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import tensorflow as tf

from escala.core.errors import Unavailable
from escala.engines.tensorflow.fast import load_operations
from escala.engines.tensorflow.fast.rmsprop import OnePassRMSprop
from escala.engines.tensorflow.ranks import Ranks

#: The knob that needs no memory that ranks share.
INSTEAD = "dense_exchange: factors"


def _operations() -> ModuleType:
    """Return the operations of `shared_memory.cc`."""
    return load_operations("shared_memory", INSTEAD)


#: Keras's optimizers that update each weight by its own gradient, whatever those of the others.
ELEMENTWISE = (
    "SGD", "RMSprop", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl", "Lion",
)  # fmt: skip


def partition(rows: int, ranks: int) -> list[int]:
    """Return the number of consecutive rows of each rank; the first ranks have one more."""
    return [rows // ranks + (rank < rows % ranks) for rank in range(ranks)]


def can_be_shared(
    optimizer: tf.keras.optimizers.Optimizer, layer: tf.keras.layers.Dense, ranks: int
) -> bool:
    """Return whether ranks may each update a part of a layer's kernel, with the same result.

    The update of a weight must not depend on others, each rank must have rows of the kernel, and
    all is float32 on a CPU.
    """
    known = [getattr(tf.keras.optimizers, name) for name in ELEMENTWISE]
    return (
        type(optimizer) in (*known, OnePassRMSprop)
        and optimizer.clipnorm is None
        and optimizer.global_clipnorm is None
        and not optimizer.use_ema
        and not hasattr(optimizer, "_exclude_from_weight_decay")
        and layer.kernel_constraint is None
        and {layer.kernel.dtype.name, layer.compute_dtype} == {"float32"}
        and "GPU" not in layer.kernel.device
        and layer.kernel.shape[0] >= ranks
    )


@dataclass(frozen=True)
class SharedKernel:
    """A dense layer's kernel in memory that all ranks share, of which this rank updates some rows.

    Every rank must call its methods, and those of several kernels in the same order.

    Attributes
    ----------
    kernel : (in, out), the whole kernel.
    local : the rows of this rank, (rows, out), with the same name; the optimizer has variables for
        it, and not for the whole kernel.
    rows : the numbers of these rows in the kernel.
    memory : handle of the memory.
    """

    kernel: tf.Variable
    local: tf.Variable
    rows: slice
    memory: tf.Tensor

    @classmethod
    def among(cls, kernel: tf.Variable, ranks: Ranks, rows: int) -> SharedKernel:
        """Divide a kernel evenly among the ranks of a node, each in its own process.

        They have started, and together have `rows` rows at most in a step. It is `Unavailable` if
        the operations cannot be compiled or loaded, or the memory is not available.
        """
        [rank] = ranks.place.ranks
        sizes = partition(kernel.shape[0], ranks.place.processes)
        memory = _open(
            ranks,
            _operations().escala_open_layer,
            sizes=sizes,
            outputs=kernel.shape[1],
            # A rank without rows computes one row of weight 0.
            capacity=rows + ranks.place.processes,
        )
        start = sum(sizes[:rank])
        local_rows = slice(start, start + sizes[rank])
        # No layer owns it, so Keras does not train it by itself.
        local = tf.Variable(kernel[local_rows], trainable=False, name=kernel.name.partition(":")[0])
        shared = cls(kernel, local, local_rows, memory)
        shared.place()
        return shared

    def begin_step(self, rows: tf.Tensor) -> None:
        """Begin a step in which this rank has a number of rows, int32."""
        _operations().escala_begin_step(self.memory, rows)
        self.wait()

    def wait(self) -> None:
        """Wait until all ranks have updated their rows."""
        _operations().escala_await_kernel(self.memory, self.kernel.handle)

    def exchange_factors(
        self, inputs: tf.Tensor, output_gradients: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Return the factors of all ranks: of the inputs, those for this rank's rows of the kernel.

        After it no rank reads the kernel in this step any more.
        """
        factors = _operations().escala_exchange_factors(
            self.memory, self.local.handle, inputs, output_gradients
        )
        rows, outputs = self.local.shape
        return (
            tf.ensure_shape(factors.local_columns, (None, rows)),
            tf.ensure_shape(factors.all_output_gradients, (None, outputs)),
        )

    def end_step(self) -> None:
        """End a step in which this rank's rows were updated."""
        _operations().escala_publish_kernel(self.memory, self.local.handle)

    def place(self) -> None:
        """Put the kernel of the first rank into the memory, and let both variables lie there."""
        _operations().escala_place_kernel(self.memory, self.kernel.handle, self.local.handle)


class Sums:
    """Sums of the gradients of some variables over all ranks, taken in the order of the ranks.

    The ranks have started, and each is a process on one node. It is `Unavailable` where
    `SharedKernel.among` is.
    """

    def __init__(self, variables: Sequence[tf.Variable], ranks: Ranks):
        self._memory = _open(
            ranks,
            _operations().escala_open_sums,
            ranks=ranks.place.processes,
            numbers=sum(variable.shape.num_elements() for variable in variables),
        )
        self._refs = {variable.ref() for variable in variables}

    def takes(self, variable: tf.Variable) -> bool:
        """Return whether the gradient of a variable is summed here."""
        return variable.ref() in self._refs

    def sum_gradients(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return the sums of the gradients of all variables of this object, in their order."""
        totals = list(_operations().escala_sum_in_memory(self._memory, list(gradients)))
        for total, gradient in zip(totals, gradients, strict=True):
            total.set_shape(gradient.shape)
        return totals


def _open(group: Ranks, operation: Callable, **attributes: Any) -> tf.Tensor:
    """Return the handle of a memory that each rank, a process of one node, opens by an operation.

    It is `Unavailable` if a rank cannot open it, for example because it runs in another container.
    """
    [rank] = group.place.ranks

    def open_path(path: str) -> tf.Tensor:
        try:
            return operation(path=path, rank=rank, **attributes)
        except tf.errors.UnavailableError as error:
            raise Unavailable(error.message) from error

    return group.share_memory(open_path, INSTEAD)
