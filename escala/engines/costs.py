"""The bytes that ranks receive for the gradient of a dense layer, for each exchange.

In a step of n ranks, a dense layer multiplies rows (B, in) of all ranks by a kernel (in, out). For
the sum of the kernel's gradient, a rank receives this number of numbers:

| exchange | received |
|---|---|
| allreduce | (n-1)/n · 2 · in · out |
| factors | (n-1)/n · B · (in + out) |
| shared-memory | (n-1)/n · B · (in/n + out) |

- *allreduce*: the ranks sum the gradients. The bytes are for a ring or for Rabenseifner's algorithm
  (Thakur, Rabenseifner, Gropp 2005, doi:10.1177/1094342005051521).
- *factors*: the ranks gather both factors of the gradient, and each rank multiplies the factors.
- *shared-memory*: the kernel lies in memory that all ranks of the only node share. The ranks
  exchange the factors in this memory, and each rank updates its rows of the kernel. Other gradients
  of few bytes are summed in this memory, too (`sums_in_memory`).
"""

from __future__ import annotations

from typing import NamedTuple

ALLREDUCE, FACTORS, SHARED_MEMORY = EXCHANGES = "allreduce", "factors", "shared-memory"
#: Another exchange replaces allreduce for a layer only if each rank then receives fewer bytes per
#: step, by more than this number. The other exchange needs more calls per step, and a smaller
#: difference does not pay for these calls.
MIN_SAVED_BYTES = 2**18
#: Bytes of a number that ranks exchange through shared memory.
SHARED_NUMBER_BYTES = 4
#: The most bytes that a rank reads to sum gradients through memory.
MAX_SUM_BYTES = 2**22


class Product(NamedTuple):
    """The product that a dense layer computes in a step of all ranks.

    Its kernel has the shape (inputs, outputs), and `rows` is the number of rows of all ranks.
    """

    inputs: int
    outputs: int
    rows: int
    number_bytes: int = 4


def sums_in_memory(numbers: int, ranks: int) -> bool:
    """Return whether ranks that share kernels in memory also sum other gradients there.

    The other gradients are `numbers` float32 numbers on each rank. Every rank reads the numbers of
    all ranks. For many numbers a library reads less, because it divides a sum among the ranks.
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
