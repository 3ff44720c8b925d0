"""Kernels of dense layers of which each rank updates some rows.

A kernel (in, out) is divided into consecutive rows, one part for each rank. A rank holds its part
as a variable of its own, `Divided.own`, and only this one is updated: the optimizer has variables
for it, and not for the whole kernel. The ranks gather the parts into the kernel at the beginning of
each step, while layers before the dense one are computed, and after the last step of an epoch.

A layer that is computed in parts needs its kernel only between epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, ClassVar

import tensorflow as tf

from escala.strategies.base import Strategy
from escala.strategies.shared.factors import Exchanged

#: The prefixes of the names of exchanges in the timeline: of the parts of a kernel, and of what a
#: layer computes in parts. The variable's name follows.
WEIGHTS, LAYER = "weights/", "layer/"

#: Keras's optimizers that update each weight by its own gradient, whatever those of the others.
#: Another one says so by an attribute `elementwise`, see `escala.workloads`.
ELEMENTWISE = (
    "SGD", "RMSprop", "Adam", "AdamW", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl", "Lion",
)  # fmt: skip


def partition(rows: int, ranks: int) -> list[int]:
    """Return the number of consecutive rows of each rank; the first ranks have one more."""
    return [rows // ranks + (rank < rows % ranks) for rank in range(ranks)]


def divisible(
    optimizer: tf.keras.optimizers.Optimizer, layer: tf.keras.layers.Dense, ranks: int
) -> bool:
    """Return whether ranks may update parts of a layer's kernel and get the same whole.

    Each weight must be updated for itself, and each rank must have rows.
    """
    known = [getattr(tf.keras.optimizers, name) for name in ELEMENTWISE]
    return (
        (type(optimizer) in known or getattr(optimizer, "elementwise", False))
        and optimizer.clipnorm is None
        and optimizer.global_clipnorm is None
        and not optimizer.use_ema
        and not hasattr(optimizer, "_exclude_from_weight_decay")
        and layer.kernel_constraint is None
        and layer.kernel.shape[0] >= ranks
    )


@dataclass(frozen=True)
class Divided:
    """A kernel of which this rank updates some rows.

    Attributes
    ----------
    name : of the kernel in exchanges, see `escala.strategies.base.tensor_names`.
    kernel : (in, out), the whole kernel. Within an epoch it may be older than the parts.
    own : the rows of this rank, (rows, out), with the same name.
    sizes : number of rows of each rank.
    rank : of this process.
    whole : whether each step computes with the whole kernel.
    """

    name: str
    kernel: tf.Variable
    own: tf.Variable
    sizes: tuple[int, ...]
    rank: int
    whole: bool
    #: Whether kernel and part lie in memory that all ranks share.
    shared: ClassVar[bool] = False

    @classmethod
    def of(
        cls, name: str, kernel: tf.Variable, rank: int, ranks: int, whole: bool, **others
    ) -> Divided:
        """Divide a kernel evenly among ranks."""
        sizes = tuple(partition(kernel.shape[0], ranks))
        rows = _rows(sizes, rank)
        # No layer owns it, so Keras does not train it by itself.
        own = tf.Variable(kernel[rows], trainable=False, name=kernel.name.partition(":")[0])
        return cls(name, kernel, own, sizes, rank, whole, **others)

    @property
    def rows(self) -> slice:
        """The rows of this rank."""
        return _rows(self.sizes, self.rank)

    def begin_step(self, strategy: Strategy, rows: tf.Tensor) -> None:
        """Begin a step in which this rank has a number of rows, int32."""
        if self.whole:
            self.gather(strategy)

    def gather(self, strategy: Strategy) -> None:
        """Set the kernel to the parts of all ranks."""
        self.kernel.assign(strategy.gathered(self.own, f"{WEIGHTS}{self.name}"))

    def end_step(self) -> None:
        """End a step in which the part was updated."""

    def split(self) -> None:
        """Set the part of this rank to its rows of the kernel."""
        self.own.assign(self.kernel[self.rows])

    def computed(
        self,
        strategy: Strategy,
        input_gradient: Callable,
        layer: tf.keras.layers.Dense,
        values: tf.Tensor,
        inputs: Any,
    ):
        """Compute the layer's product in parts: each rank its rows of the kernel, for all ranks.

        Parameters
        ----------
        input_gradient : as in `escala.strategies.shared.factors.as_factors`.

        Returns
        -------
        As a `escala.strategies.shared.factors.Method` does.
        """
        name, kernel = f"{LAYER}{self.name}", tf.stop_gradient(self.own.read_value())
        columns, counts = strategy.own_columns(
            tf.stop_gradient(values), self.sizes, f"{name}/inputs"
        )
        before = tf.reduce_sum(counts[: self.rank])
        gathered = []

        def gather(output_gradients: tf.Tensor) -> tf.Tensor:
            gathered.append(strategy.gathered(output_gradients, f"{name}/output_gradients"))
            return gathered[-1]

        @tf.custom_gradient
        def product(values: tf.Tensor):
            outputs = strategy.summed(tf.matmul(columns, kernel), f"{name}/outputs")
            mine = outputs[before : before + counts[self.rank]]

            def gradient(upstream: tf.Tensor) -> tf.Tensor:
                of_columns = input_gradient(gather(upstream), kernel)
                return strategy.own_rows(of_columns, counts, self.sizes, f"{name}/input_gradients")

            return mine, gradient

        def factors_of(output_gradients: tf.Tensor, others: Sequence[tf.Tensor]) -> Exchanged:
            # Nothing before the first layer of a model needs a gradient.
            return Exchanged(columns, gathered[-1] if gathered else gather(output_gradients))

        return product(values), factors_of


def _rows(sizes: Sequence[int], rank: int) -> slice:
    ends = list(accumulate(sizes, initial=0))
    return slice(ends[rank], ends[rank + 1])


@contextmanager
def noted_variables(optimizer: tf.keras.optimizers.Optimizer) -> Iterator[list]:
    """Collect each variable that an optimizer creates for a variable of the model.

    Yields
    ------
    A list, to which pairs are appended: the model's variable and the optimizer's.
    """
    created, add = [], optimizer.add_variable_from_reference

    def added(model_variable: tf.Variable, *arguments, **options) -> tf.Variable:
        created.append((model_variable, add(model_variable, *arguments, **options)))
        return created[-1][1]

    optimizer.add_variable_from_reference = added
    try:
        yield created
    finally:
        del optimizer.add_variable_from_reference
