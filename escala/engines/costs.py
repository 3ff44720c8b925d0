"""What ranks receive for the gradient of a dense layer, by how they exchange it.

In a step of n ranks, a dense layer multiplies rows (B, in) of all ranks by a kernel (in, out). For
the sum of its gradient, a rank receives so many numbers:

| exchange | received |
|---|---|
| allreduce | (n-1)/n · 2 · in · out |
| factors | (n-1)/n · B · (in + out) |
| shared-memory | (n-1)/n · B · (in/n + out) |

- *allreduce*: the ranks sum the gradients. The bytes are those of a ring or of Rabenseifner's
  algorithm (Thakur, Rabenseifner, Gropp 2005, doi:10.1177/1094342005051521).
- *factors*: they gather both factors of the gradient, and each multiplies them.
- *shared-memory*: the kernel lies in memory that all ranks of the only node share, and they
  exchange the factors there. Each updates its rows of the kernel. They sum other gradients there,
  too, if they are few bytes (`sums_in_memory`).
"""

from __future__ import annotations

from typing import NamedTuple

ALLREDUCE, FACTORS, SHARED_MEMORY = EXCHANGES = "allreduce", "factors", "shared-memory"
#: A layer is exchanged in another way than by allreduce only if each rank then receives fewer bytes
#: per step, by more than this number. That way needs more exchanges per step: for a smaller
#: difference they cost more time than they save.
MIN_SAVED_BYTES = 2**18
#: Bytes of the numbers that ranks exchange through shared memory.
SHARED_NUMBER_BYTES = 4
#: Bytes that a rank reads at most to sum gradients through memory.
MAX_SUM_BYTES = 2**22


class Product(NamedTuple):
    """The product that a dense layer computes in a step of all ranks.

    Its kernel has the shape (inputs, outputs), and `rows` are of all ranks together.
    """

    inputs: int
    outputs: int
    rows: int
    number_bytes: int = 4


def sums_in_memory(numbers: int, ranks: int) -> bool:
    """Return whether ranks that share memory also sum there what is no kernel of a dense layer.

    These gradients are float32, `numbers` of each rank. Each rank then reads those of all ranks.
    For many numbers a library does less, because it divides a sum among the ranks.
    """
    return 0 < 4 * numbers * ranks <= MAX_SUM_BYTES


def count_received_bytes(exchange: str, product: Product, ranks: int) -> float:
    """Return the bytes that a rank receives for a layer in a step."""
    inputs, outputs, rows, number_bytes = product
    numbers = {
        ALLREDUCE: 2 * inputs * outputs,
        FACTORS: rows * (inputs + outputs),
        SHARED_MEMORY: rows * (inputs / ranks + outputs),
    }[exchange]
    return number_bytes * numbers * (ranks - 1) / ranks
