"""Choose how ranks exchange a gradient that has only some rows, such as that of an embedding.

Such a gradient holds a row of numbers, and its index, for each read of the variable in a step. A
row that is read several times is held as often. The ranks can gather these rows, or make the
gradient dense and sum it. A rank of n then receives in a step:

| exchange | bytes |
|---|---|
| rows | (n-1)/n · R · (w · b + i) |
| sum | (n-1)/n · 2 · N · s |

R are the reads of all ranks together, w the numbers of a row with b bytes each, and i the bytes of
an index. N are the numbers of the variable, each with s bytes on its way. The bytes of a sum are
those of a ring or of Rabenseifner's algorithm (Thakur, Rabenseifner, Gropp 2005,
doi:10.1177/1094342005051521). Any gather has those of the first line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import tensorflow as tf

    from escala.strategies.shared.factors import Factors

ROWS, SUM = EXCHANGES = ("rows", "sum")
#: The value of the knob `sparse_as_dense` that leaves the choice to `fewest_bytes`.
AUTO = "auto"


class Reads(NamedTuple):
    """The reads of a variable of which a step needs only some rows.

    Attributes
    ----------
    reads : of one row of the model, repeated ones included.
    shape : of the variable; the first number is that of its rows.
    number_bytes, index_bytes : of a number and of an index.
    """

    reads: int
    shape: tuple[int, ...]
    number_bytes: int = 4
    index_bytes: int = 4


def received_bytes(
    exchange: str, variable: Reads, rows: int, ranks: int, most_bytes: int | None = None
) -> float:
    """Return the bytes that a rank receives for the gradient of a variable in a step.

    Parameters
    ----------
    exchange : `ROWS` or `SUM`.
    rows : of the model, of all ranks together.
    most_bytes : of a number in a sum, if numbers are rounded to so many bytes.
    """
    numbers = math.prod(variable.shape)
    width = numbers / variable.shape[0]
    summed = min(variable.number_bytes, most_bytes or variable.number_bytes)
    whole = {
        ROWS: variable.reads * rows * (width * variable.number_bytes + variable.index_bytes),
        SUM: 2 * numbers * summed,
    }[exchange]
    return whole * (ranks - 1) / ranks


def fewest_bytes(variable: Reads, rows: int, ranks: int, most_bytes: int | None = None) -> str:
    """Return the exchange with which a rank receives fewer bytes, `SUM` if they are equal.

    Parameters
    ----------
    rows, ranks, most_bytes : as for `received_bytes`.
    """
    gathered, summed = (
        received_bytes(exchange, variable, rows, ranks, most_bytes) for exchange in EXCHANGES
    )
    return ROWS if gathered < summed else SUM


def reads_of(
    gradients: Sequence[tf.Tensor | tf.IndexedSlices | Factors], variables: Sequence[tf.Variable]
) -> list[Reads | None]:
    """Return the reads of each variable, None for one whose gradient is dense.

    Parameters
    ----------
    gradients : of one row of the model, in a graph. A gradient with an unknown number of rows
        counts as dense.
    """
    import tensorflow as tf

    def of_variable(gradient, variable: tf.Variable) -> Reads | None:
        if not isinstance(gradient, tf.IndexedSlices) or gradient.indices.shape[0] is None:
            return None
        return Reads(
            gradient.indices.shape[0],
            tuple(variable.shape),
            gradient.values.dtype.size,
            gradient.indices.dtype.size,
        )

    return [of_variable(*each) for each in zip(gradients, variables, strict=True)]
