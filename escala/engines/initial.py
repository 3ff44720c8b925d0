"""Laws of initial weights in NumPy, the same under every engine.

A law is a function of the shape of an array in Keras's layout, (…, inputs, outputs), and of a
generator of random numbers. It returns the array, float32. The distributions are those of Keras's
initialisers of the same name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import numpy as np

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

    def drawn(shape: tuple[int, ...], random: np.random.Generator) -> np.ndarray:
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

    return drawn


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


def drawn(
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
