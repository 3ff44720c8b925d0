"""The processes of a run under TensorFlow: how processes join, exchange gradients and agree.

A strategy names a class in this module or in another module of this folder.
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
    """One process of a run, and how its ranks exchange inside TensorFlow.

    This base class is for the only rank of a run.

    Code that runs inside a step may not use Python's `if`, `for` or `while` on tensors
    (`escala.engines.tensorflow.layers`).
    """

    operations = ("allreduce", "allgather")
    #: Whether ranks can exchange the gradient of a dense layer other than as a sum. A single rank
    #: can, because it has the factors of all rows.
    gathers: ClassVar[bool] = True
    #: Whether a process can read the clock inside its compiled step.
    reads_clock: ClassVar[bool] = True

    @property
    def driven(self) -> list[int]:
        """The ranks for which this process gathers rows and starts steps."""
        return self.place.ranks

    def join(self) -> None:
        """Wait until all steps that this process has started are done."""

    def scope(self) -> AbstractContextManager:
        """Return the context in which model and optimizer are built."""
        return nullcontext()

    def compile(self, step: Callable, signature: Sequence[tf.TypeSpec]) -> Callable:
        """Compile the step of one rank to a step of all ranks of this process.

        The step takes tensors as in `signature` and returns float32 scalars. The compiled function
        takes one tuple of arrays for each rank that this process drives. It returns the sum of each
        scalar over these ranks. A sum is a float, or an object whose conversion by `float` waits
        for the step.
        """
        function = as_graph(input_signature=signature)(step)

        def run(arguments: Sequence[tuple]) -> list[float]:
            [arrays] = arguments
            return [float(value) for value in function(*arrays)]

        return run

    def local(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return a rank's own gradients, converted for the exchange."""
        return list(gradients)

    def exchange(
        self, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]
    ) -> list[tf.Tensor]:
        """Return the sums of the gradients over all ranks; local gradients if the optimizer sums.

        `Factors` become the factors of all ranks' rows. Ranks with `gathers` also take `sums`, a
        `fast.shared_memory.Sums`, which sums the gradients of its variables.
        """
        return list(gradients)

    def sum_over_ranks(self, values: tf.Tensor, name: str) -> tf.Tensor:
        """Return the sum of a tensor over all ranks inside a step, with its gradient.

        Every rank must call this, with the same name. It is `Unavailable` if the ranks have no
        common step.
        """
        return values

    def gather(self, values: tf.Tensor, name: str) -> tf.Tensor:
        """Return the tensors of all ranks, one below the other, in the order of the ranks.

        Only ranks with `gathers` have this method. Every rank must call it, with the same name.
        Ranks may have different numbers of rows.
        """
        return values

    def collective(self, operation, size):
        # The time is taken inside the graph, because a step does not wait for Python either.
        @tf.function(autograph=False)
        def run(values):
            began = tf.timestamp()
            with tf.control_dependencies([began]):
                result = self._collective(operation, tf.identity(values), f"{operation}/{size}")
            with tf.control_dependencies([result]):
                # Use the result; otherwise TensorFlow may leave out the collective.
                return tf.timestamp() - began, result[0]

        values = tf.zeros(size // 4)

        def seconds() -> float:
            before = time.perf_counter()
            inside = float(run(values)[0])
            outside = time.perf_counter() - before
            # The time inside cannot be longer, except by a correction of the clock.
            return inside if 0 < inside <= outside else outside

        return seconds

    def _collective(self, operation: str, values: tf.Tensor, name: str) -> tf.Tensor:
        return (
            self.sum_over_ranks(values, name)
            if operation == "allreduce"
            else self.gather(values, name)
        )

    def broadcast(self, variables: list[tf.Variable]) -> None:
        """Copy the values of rank 0 to every rank."""

    def weights(self, variables: Sequence[tf.Variable]) -> list[list[np.ndarray]]:
        """Return the values of variables on each rank of this process."""
        return [[variable.numpy() for variable in variables]]


def tensor_names(variables: Sequence[tf.Variable]) -> list[str]:
    """Return a name for the gradient of each variable, such as `6.dense/kernel`.

    Two variables may have one name, as in nested models. The position makes every name unique. The
    names are equal on all ranks, because all ranks build the same model.
    """
    names = [variable.name.partition(":")[0] for variable in variables]
    return [f"{position}.{name}" for position, name in enumerate(names)]
