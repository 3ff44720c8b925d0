"""Parts of layers for any framework: laws of initial weights, and sums over all ranks of a step.

A law is a function in NumPy, equal for every engine. Its arguments are the shape of an array in
Keras's layout, (…, inputs, outputs), and a generator of random numbers. It returns the array,
float32. The distributions are those of Keras's initialisers with equal names.

A workload builds a layer that normalises over all ranks without knowing the strategy. The step of a
rank calls the model within `over_ranks`. This context gives such layers the weight of each row and
the strategy's sum over ranks. Outside this context they normalise over the rows of the call.

The ranks sum three moments of each channel: count, sum and sum of squares. If a mean is large, the
variance is a small difference of two large numbers. So a rank sums the squares of deviations from
its own mean in 32 bits, and converts only the sums to 64 bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import numpy as np

from escala.core.errors import Unavailable

#: The value of the training setting `initial_weights`.
SEEDED = "seeded"
Law = Callable[[tuple[int, ...], np.random.Generator], np.ndarray]
#: Standard deviation of the standard normal law, cut off at -2 and 2.
_CUT = 0.87962566103423978


def constant(value: float) -> Law:
    """Return the law of an array with one value."""
    return lambda shape, random: np.full(shape, value, np.float32)


def uniform(limit: float) -> Law:
    """Return the uniform law from -`limit` to `limit`."""
    return lambda shape, random: random.uniform(-limit, limit, shape).astype(np.float32)


def variance_scaling(scale: float, mode: str, distribution: str) -> Law:
    """Return the law of a kernel with mean 0 and variance `scale` / n.

    Parameters
    ----------
    mode : how to choose n: the inputs of one output (`fan_in`), the outputs of one input
        (`fan_out`), or the mean of both numbers (`fan_avg`).
    distribution : `uniform`, `normal`, or `truncated_normal`, a normal law without values beyond
        two of its standard deviations.
    """

    def draw(shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
        places = math.prod(shape[:-2])
        fans = (places * shape[-2], places * shape[-1])
        n = {"fan_in": fans[0], "fan_out": fans[1], "fan_avg": sum(fans) / 2}[mode]
        deviation = math.sqrt(scale / n)
        if distribution == "uniform":
            return uniform(math.sqrt(3) * deviation)(shape, random)
        values = random.standard_normal(shape)
        if distribution == "truncated_normal":
            deviation /= _CUT
            while (beyond := np.abs(values) > 2).any():
                values[beyond] = random.standard_normal(beyond.sum())
        return (deviation * values).astype(np.float32)

    return draw


def orthogonal(shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Return a matrix with orthonormal rows or columns (Saxe et al. 2014, arXiv 1312.6120)."""
    rows, columns = shape
    q, r = np.linalg.qr(random.standard_normal((max(shape), min(shape))))
    q *= np.sign(np.diag(r))
    return (q.T if rows < columns else q).astype(np.float32)


def forget_gate(shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Return the bias of an LSTM: 1 for the forget gate, the second of four gates, else 0."""
    bias = np.zeros(shape, np.float32)
    units = shape[0] // 4
    bias[units : 2 * units] = 1
    return bias


ZEROS, ONES = constant(0), constant(1)
GLOROT = variance_scaling(1, "fan_avg", "uniform")


def draw_weights(
    laws: Iterable[tuple[Law | None, tuple[int, ...]]], seed: int
) -> Iterable[np.ndarray | None]:
    """Yield an initial value for each array of a model; None for an array with unknown law.

    A value depends on the seed, and on the array's number in the model, law and shape.

    Parameters
    ----------
    laws : law and shape of each array, in the order of Keras's `Model.weights`.
    """
    for number, (law, shape) in enumerate(laws):
        yield law and law(shape, np.random.default_rng([seed, number]))


@dataclass(frozen=True)
class Step:
    """The step of a rank in which layers are called; `over_ranks` explains `weights` and `total`.

    `numbers` counts the sums in the step, so that each sum has the same name on all ranks.
    """

    weights: Any
    total: Callable | None
    numbers: Iterator[int] = field(default_factory=count)


#: Each replica of a process may run in its own thread, and each thread has its own `STEP`.
STEP: ContextVar[Step | None] = ContextVar("step", default=None)


@contextmanager
def over_ranks(weights: Any, total: Callable | None) -> Iterator[None]:
    """Let layers called in this context normalise over the rows of all ranks.

    `weights`, float32 (rows,), say how often each row counts; 0 excludes a row from the statistics.
    `total` returns the sum of a tensor over all ranks, with its gradient. Under TensorFlow `total`
    also takes a name for the sum. With None, only this rank counts.
    """
    token = STEP.set(Step(weights, total))
    try:
        yield
    finally:
        STEP.reset(token)


def require_whole_steps(normalises: bool, parts: int) -> None:
    """Refuse a model that normalises over all ranks, if ranks compute their rows in several parts.

    A rank with fewer rows than parts would exchange less often than other ranks. `parts` is the
    knob `accumulation`.
    """
    if parts > 1 and normalises:
        raise Unavailable(
            f"the model normalises over all ranks, which needs accumulation: 1, not {parts}"
        )
