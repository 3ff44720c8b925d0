"""Kernels of dense layers, and sums of small gradients, in memory shared by the ranks of a node.

Each rank updates some rows of a kernel in this memory. For this update the ranks exchange the
factors of all ranks in the same memory (`shared_memory.cc`). Kernels need no gathering, because
every rank reads the whole kernel from the memory. Other gradients of few bytes are also summed in
this memory; otherwise the strategy's library sums them.

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

#: The knob's value that needs no shared memory.
INSTEAD = "dense_exchange: factors"


def _operations() -> ModuleType:
    """Return the operations of `shared_memory.cc`."""
    return load_operations("shared_memory", INSTEAD)


#: Keras's optimizers whose update of a weight depends only on the gradient of this weight.
ELEMENTWISE = (
    "SGD", "RMSprop", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl", "Lion",
)  # fmt: skip


def partition(rows: int, ranks: int) -> list[int]:
    """Return the number of consecutive rows of each rank; the first ranks may have one row more."""
    return [rows // ranks + (rank < rows % ranks) for rank in range(ranks)]


def can_be_shared(
    optimizer: tf.keras.optimizers.Optimizer, layer: tf.keras.layers.Dense, ranks: int
) -> bool:
    """Return whether each rank may update a part of a layer's kernel without changing the result.

    The update of a weight must not depend on other weights, each rank must have rows of the kernel,
    and all values must be float32 on a CPU.
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
    """A dense layer's kernel in shared memory of all ranks; this rank updates some of its rows.

    Every rank must call its methods. With several kernels, the order of calls must be equal on all
    ranks.

    Attributes
    ----------
    kernel : (in, out), the whole kernel.
    local : the rows of this rank, (rows, out), a variable with the kernel's name. The optimizer has
        variables for `local`, and not for the whole kernel.
    rows : the numbers of the rows `local` in the kernel.
    memory : handle of the memory.
    """

    kernel: tf.Variable
    local: tf.Variable
    rows: slice
    memory: tf.Tensor

    @classmethod
    def among(cls, kernel: tf.Variable, ranks: Ranks, rows: int) -> SharedKernel:
        """Divide a kernel evenly among the ranks of a node, each in its own process.

        The ranks have started. In a step, all ranks together have at most `rows` rows. It is
        `Unavailable` if the operations cannot be compiled or loaded, or if ranks cannot share
        memory.
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
        # No layer owns this variable, so Keras itself does not train it.
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
        """Return the factors of all ranks; of the inputs, only columns for this rank's rows.

        After this, no rank reads the kernel in this step.
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
        """Put the first rank's kernel into the memory; `kernel` and `local` then lie there."""
        _operations().escala_place_kernel(self.memory, self.kernel.handle, self.local.handle)


class Sums:
    """Sums of the gradients of some variables over all ranks, taken in the order of the ranks.

    Each rank is a started process on one node. The memory may be `Unavailable`; see
    `SharedKernel.among`.
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
        """Return the sums of the gradients of all variables of this object, in order."""
        totals = list(_operations().escala_sum_in_memory(self._memory, list(gradients)))
        for total, gradient in zip(totals, gradients, strict=True):
            total.set_shape(gradient.shape)
        return totals


def _open(group: Ranks, operation: Callable, **attributes: Any) -> tf.Tensor:
    """Return the handle of a memory that all ranks of one node open by an operation.

    It is `Unavailable` if a rank cannot open the memory, for example in another container.
    """
    [rank] = group.place.ranks

    def open_path(path: str) -> tf.Tensor:
        try:
            return operation(path=path, rank=rank, **attributes)
        except tf.errors.UnavailableError as error:
            raise Unavailable(error.message) from error

    return group.share_memory(open_path, INSTEAD)
