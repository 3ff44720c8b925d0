"""What layers of any framework share: laws of initial weights, and the rows of a step of all ranks.

A law, in NumPy and the same under every engine, is a function of the shape of an array in Keras's
layout, (…, inputs, outputs), and of a generator of random numbers. It returns the array, float32.
The distributions are those of Keras's initialisers of the same name.

A workload builds its model with a layer that normalises over all ranks, and knows no strategy. The
step of a rank calls the model within `over_ranks`, which gives the layers the weight of each row
and the strategy's sum over ranks. Elsewhere they normalise over the rows that they are given.

The ranks sum three moments of each channel: count, sum and sum of squares. Where a mean is large,
the variance is a small difference of two large numbers. So a rank sums the squares of deviations
from its own mean in 32 bits, and converts only these sums to 64 bits.
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
#: Standard deviation of a standard normal law that is cut off at -2 and 2.
_CUT = 0.87962566103423978


def constant(value: float) -> Law:
    """Return the law of an array with one value."""
    return lambda shape, random: np.full(shape, value, np.float32)


def uniform(limit: float) -> Law:
    """Return the uniform law from -`limit` to `limit`."""
    return lambda shape, random: random.uniform(-limit, limit, shape).astype(np.float32)


def variance_scaling(scale: float, mode: str, distribution: str) -> Law:
    """Return the law with mean 0 and variance `scale` / n of a kernel.

    Parameters
    ----------
    mode : n is the number of inputs of an output, `fan_in`, that of outputs of an input, `fan_out`,
        or their mean, `fan_avg`.
    distribution : `uniform`, `normal`, or `truncated_normal` without values beyond two standard
        deviations of the law before it is cut off.
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
    """Return a matrix with orthonormal rows or columns, as (Saxe et al. 2014, arXiv 1312.6120)."""
    rows, columns = shape
    q, r = np.linalg.qr(random.standard_normal((max(shape), min(shape))))
    q *= np.sign(np.diag(r))
    return (q.T if rows < columns else q).astype(np.float32)


def forget_gate(shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
    """Return the bias of an LSTM: 1 for the second of its four gates, which forgets, else 0."""
    bias = np.zeros(shape, np.float32)
    units = shape[0] // 4
    bias[units : 2 * units] = 1
    return bias


ZEROS, ONES = constant(0), constant(1)
GLOROT = variance_scaling(1, "fan_avg", "uniform")


def draw_weights(
    laws: Iterable[tuple[Law | None, tuple[int, ...]]], seed: int
) -> Iterable[np.ndarray | None]:
    """Yield an initial value for each array of a model, None for one whose law is not known.

    The value depends on the seed, the number of the array in the model, its law and its shape.

    Parameters
    ----------
    laws : law and shape of each array, in the order of Keras's `Model.weights`.
    """
    for number, (law, shape) in enumerate(laws):
        yield law and law(shape, np.random.default_rng([seed, number]))


@dataclass(frozen=True)
class Step:
    """The step of a rank in which layers are called: `weights` and `total` as of `over_ranks`.

    `numbers` counts the sums in the step, so that each has a name that is the same on all ranks.
    """

    weights: Any
    total: Callable | None
    numbers: Iterator[int] = field(default_factory=count)


#: Each replica of a process may run in its own thread, and each thread has its own value.
STEP: ContextVar[Step | None] = ContextVar("step", default=None)


@contextmanager
def over_ranks(weights: Any, total: Callable | None) -> Iterator[None]:
    """Let layers called in this context normalise over the rows of all ranks.

    `weights`, float32 (rows,), are how often each row counts: 0 excludes a row from the statistics.
    `total` returns the sum of a tensor over all ranks, with its gradient; under TensorFlow it also
    takes a name for the sum. None is for this rank only.
    """
    token = STEP.set(Step(weights, total))
    try:
        yield
    finally:
        STEP.reset(token)


def require_whole_steps(normalises: bool, parts: int) -> None:
    """Refuse a model that normalises over all ranks if a rank computes its rows in several parts.

    A rank with fewer rows than parts would exchange less often than the others. `parts` is the knob
    `accumulation`.
    """
    if parts > 1 and normalises:
        raise Unavailable(
            f"the model normalises over all ranks, which needs accumulation: 1, not {parts}"
        )
