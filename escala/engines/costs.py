"""What ranks receive for the gradient of a dense layer, by how they exchange it.

In a step of n ranks, a dense layer multiplies rows (B, in) of all ranks by a kernel (in, out). A
rank receives so many numbers:

| exchange | received |
|---|---|
| allreduce | (n-1)/n · 2 · in · out |
| factors | (n-1)/n · B · (in + out) |
| shared-memory | (n-1)/n · B · (in/n + out) |
| recompute | (n-1)/n · B · (data + out) |

- *allreduce*: the ranks sum the gradients. The bytes are those of a ring or of Rabenseifner's
  algorithm (Thakur, Rabenseifner, Gropp 2005, doi:10.1177/1094342005051521).
- *factors*: they gather both factors of the gradient, and each multiplies them.
- *shared-memory*: the kernel lies in memory that all ranks of the only node share, and they
  exchange the factors there. Each updates its rows of the kernel. They sum other gradients there,
  too, if they are few bytes (`sums_in_memory`).
- *recompute*: they gather the model's inputs, whose bytes count as `data` numbers for each row, and
  the output gradients. Each computes the layer's input for all rows again, and multiplies.
"""

from __future__ import annotations

import math
from typing import NamedTuple

ALLREDUCE, FACTORS, SHARED_MEMORY, RECOMPUTE = EXCHANGES = (
    "allreduce",
    "factors",
    "shared-memory",
    "recompute",
)
#: Those that need no memory that all ranks can reach.
BETWEEN_NODES = (ALLREDUCE, FACTORS, RECOMPUTE)
#: A layer is exchanged in another way than by allreduce only if each rank then receives fewer bytes
#: per step, by more than this number. That way needs more exchanges per step: for a smaller
#: difference they cost more time than they save.
MIN_SAVED_BYTES = 2**18
#: Exchanges that need a layer with inputs of shape (batch, in): one row for each row of the model.
ROW_BY_ROW = (SHARED_MEMORY, RECOMPUTE)
#: Bytes of the numbers that ranks exchange through shared memory.
SHARED_NUMBER_BYTES = 4
#: Bytes that a rank reads at most to sum gradients through memory.
MAX_SUM_BYTES = 2**22


class Product(NamedTuple):
    """The product that a dense layer computes in a step of all ranks.

    Its kernel has the shape (inputs, outputs), and `rows` are of all ranks together. `data_bytes`
    are those of the model's inputs for one row; None if they are not known.
    """

    inputs: int
    outputs: int
    rows: int
    number_bytes: int = 4
    data_bytes: float | None = None


def sums_in_memory(numbers: int, ranks: int) -> bool:
    """Return whether ranks that share memory sum their other gradients, float32, there too.

    Each rank then reads the numbers of all ranks. For many numbers a library does less, because it
    divides a sum among the ranks.
    """
    return 0 < 4 * numbers * ranks <= MAX_SUM_BYTES


def received_bytes(exchange: str, product: Product, ranks: int) -> float:
    """Return the bytes that a rank receives for a layer in a step.

    They are infinite for `RECOMPUTE` if the bytes of the data are not known.
    """
    inputs, outputs, rows, number_bytes, data_bytes = product
    data = math.inf if data_bytes is None else data_bytes / number_bytes
    numbers = {
        ALLREDUCE: 2 * inputs * outputs,
        FACTORS: rows * (inputs + outputs),
        SHARED_MEMORY: rows * (inputs / ranks + outputs),
        RECOMPUTE: rows * (data + outputs),
    }[exchange]
    # Infinitely many numbers times none would be no number.
    return number_bytes * numbers * (ranks - 1) / ranks if ranks > 1 else 0.0
