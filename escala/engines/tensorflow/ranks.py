"""The processes of a run as TensorFlow has them: how they join, exchange gradients and agree.

A strategy names one of the classes here or in a module beside it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import numpy as np
import tensorflow as tf

from escala.engines.base import Group
from escala.engines.tensorflow.layers import as_graph


class Ranks(Group):
    """One process among those of a run, and how its ranks exchange inside TensorFlow.

    This base class is for the only rank of a run.

    What runs inside a step may not use Python's `if`, `for` or `while` on tensors
    (`escala.engines.tensorflow.layers`).
    """

    operations = ("allreduce", "allgather")
    #: Whether ranks can exchange the gradient of a dense layer in other ways than by its sum. A
    #: single rank can, because its factors are those of all rows.
    gathers: ClassVar[bool] = True
    #: Whether a process can read the clock inside its compiled step.
    reads_clock: ClassVar[bool] = True

    @property
    def driven(self) -> list[int]:
        """The ranks whose rows this process gathers and whose steps it starts."""
        return self.place.ranks

    def join(self) -> None:
        """Wait until all steps that this process has started are done."""

    def scope(self) -> AbstractContextManager:
        """Return the context that model and optimizer are built in."""
        return nullcontext()

    def compile(self, step: Callable, signature: Sequence[tf.TypeSpec]) -> Callable:
        """Compile the step of one rank to a step of all ranks of this process.

        The step takes tensors as in `signature` and returns float32 scalars. The result takes one
        tuple of arrays for each rank that this process drives. It returns the sums of the scalars
        over these ranks, each a float, or an object that `float` converts, which waits for the
        step.
        """
        function = as_graph(input_signature=signature)(step)

        def run(arguments: Sequence[tuple]) -> list[float]:
            [arrays] = arguments
            return [float(value) for value in function(*arrays)]

        return run

    def local(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return a rank's own gradients in the form in which they are exchanged."""
        return list(gradients)

    def exchange(
        self, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]
    ) -> list[tf.Tensor]:
        """Return the sums of the gradients over all ranks, or the local ones if the optimizer sums.

        For a gradient that is `Factors` these are the factors of all ranks' rows. Ranks with
        `gathers` also take `sums`, a `fast.shared_memory.Sums` that sums those of its variables.
        """
        return list(gradients)

    def sum_over_ranks(self, values: tf.Tensor, name: str) -> tf.Tensor:
        """Return the sum of a tensor over all ranks inside a step, with its gradient.

        Every rank must call it, with the same name. It is `Unavailable` if the ranks have no common
        step.
        """
        return values

    def gather(self, values: tf.Tensor, name: str) -> tf.Tensor:
        """Return a tensor of all ranks, one below the other in the order of the ranks.

        Only ranks that `gathers` have it. Every rank must call it, with the same name; ranks may
        have different numbers of rows.
        """
        return values

    def collective(self, operation, size):
        # Timed inside the graph: a step does not wait for Python to call the collective.
        @tf.function(autograph=False)
        def run(values):
            began = tf.timestamp()
            with tf.control_dependencies([began]):
                result = self._collective(operation, tf.identity(values), f"{operation}/{size}")
            with tf.control_dependencies([result]):
                # Without a use of the result, TensorFlow may leave out the collective.
                return tf.timestamp() - began, result[0]

        values = tf.zeros(size // 4)

        def seconds() -> float:
            before = time.perf_counter()
            inside = float(run(values)[0])
            outside = time.perf_counter() - before
            # A time inside that is longer comes from a correction of the clock.
            return inside if 0 < inside <= outside else outside

        return seconds

    def _collective(self, operation: str, values: tf.Tensor, name: str) -> tf.Tensor:
        return (
            self.sum_over_ranks(values, name)
            if operation == "allreduce"
            else self.gather(values, name)
        )

    def broadcast(self, variables: list[tf.Variable]) -> None:
        """Give every rank the values that rank 0 holds."""

    def weights(self, variables: Sequence[tf.Variable]) -> list[list[np.ndarray]]:
        """Return the values of variables as each rank of this process holds them."""
        return [[variable.numpy() for variable in variables]]


def tensor_names(variables: Sequence[tf.Variable]) -> list[str]:
    """Return a name for the gradient of each variable, such as `6.dense/kernel`.

    Two variables may have the same name, as in nested models. The position makes every name unique.
    The names are the same on all ranks, because all build the same model.
    """
    names = [variable.name.partition(":")[0] for variable in variables]
    return [f"{position}.{name}" for position, name in enumerate(names)]
