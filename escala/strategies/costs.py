"""Estimate what each exchange of a dense layer's gradient costs, by formulas.

In a step of n ranks, a dense layer multiplies rows (B, in) of all ranks by a kernel (in, out). For
each exchange the table has what a rank receives, in numbers; the exchanges that wait for each
other; the multiplications and additions for the gradient of the kernel; and the weights that a rank
updates.

| exchange | received | in turn | operations | updated |
|---|---|---|---|---|
| allreduce | (n-1)/n · 2 · in · out | 1 | 2 · B/n · in · out | in · out |
| factors | (n-1)/n · B · (in + out) | 1 | 2 · B · in · out | in · out |
| sharded | (n-1)/n · (B · in/n + B · out + in · out) | 2 | 2 · B · in/n · out | in/n · out |
| in-parts | (n-1)/n · (2 · B · in/n + 3 · B · out) | 4 | 2 · B · in/n · out | in/n · out |
| shared-memory | (n-1)/n · B · (in/n + out) | 0 | 2 · B · in/n · out | in/n · out |
| recompute | (n-1)/n · B · (data + out) | 1 | 2 · B · in · out | in · out |

- *allreduce*: the ranks sum the gradients. The bytes are those of a ring or of Rabenseifner's
  algorithm (Thakur, Rabenseifner, Gropp 2005, doi:10.1177/1094342005051521).
- *factors*: they gather both factors of the gradient, and each multiplies them.
- *sharded*: each rank receives the columns of the inputs that belong to its rows of the kernel, and
  all output gradients. It updates its rows, and the ranks gather the rows of all. This is the first
  stage of ZeRO (Rajbhandari et al. 2020, arXiv 1910.02054), with factors in place of gradients.
- *in-parts*: the layer is computed in parts too (Krizhevsky 2014, arXiv 1404.5997). Ranks exchange
  columns of the inputs, sum their parts of the outputs, gather the output gradients, and send back
  the gradients of the inputs. The kernel is never sent.
- *shared-memory*: the kernel lies in memory that all ranks of the only node share, and they
  exchange the factors there. Each updates its rows. They sum other gradients there, too
  (`sums_in_memory`). Nothing is requested from a library, so no exchange waits for its cycle.
- *recompute*: they gather the model's inputs, whose bytes count as `data` numbers for each row, and
  the output gradients. Each computes the layer's input for all rows again, and multiplies.

The products of the forward pass and of the input gradient need as many operations in each. What
the computation hides of an exchange is left out, so the times are upper bounds.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

ALLREDUCE, FACTORS, SHARDED, IN_PARTS, SHARED_MEMORY, RECOMPUTE = EXCHANGES = (
    "allreduce",
    "factors",
    "sharded",
    "in-parts",
    "shared-memory",
    "recompute",
)
#: Those that need no memory that all ranks can reach.
BETWEEN_NODES = (ALLREDUCE, FACTORS, SHARDED, IN_PARTS, RECOMPUTE)
#: Choose the exchange that takes the least time by these formulas.
AUTO = "auto"

#: Exchanges of a step by a library that wait for each other.
IN_TURN = {
    ALLREDUCE: 1,
    FACTORS: 1,
    SHARDED: 2,
    IN_PARTS: 4,
    SHARED_MEMORY: 0,
    RECOMPUTE: 1,
}
#: A layer is exchanged in another way than by allreduce only if each rank then receives fewer bytes
#: per step, by more than this number. That way needs more exchanges per step: for a smaller
#: difference they cost more time than they save.
MIN_SAVED_BYTES = 2**18
#: Exchanges of layers that receive one row for each row of the model.
OF_ONE_ROW = (SHARED_MEMORY, RECOMPUTE)
#: Bytes of the numbers that ranks exchange through shared memory.
SHARED_NUMBER_BYTES = 4
#: Exchanges with which a rank updates only its rows of the kernel.
OF_OWN_ROWS = (SHARDED, IN_PARTS, SHARED_MEMORY)

#: Bytes that a rank reads at most to sum gradients through memory.
MAX_SUM_BYTES = 2**22

#: The rates that apply where a request gives no other. They are measurements of two ranks with one
#: core each of an AMD EPYC: docs/decisions/019-one-core.md (products of 32 rows, and RMSprop
#: compiled by XLA) and docs/decisions/033-sharded-update.md (sums of 8.3 MB in shared memory).
OPERATIONS_PER_SECOND = 2 * 32 * 15_936 * 128 / 2.1e-3
WEIGHTS_PER_SECOND = 2_067_181 / 2.8e-3
BYTES_PER_SECOND_MPI, BYTES_PER_SECOND_GLOO = 8.3e6 / 3.5e-3, 8.3e6 / 9e-3
#: Horovod's default time between two rounds of negotiation (HOROVOD_CYCLE_TIME).
CYCLE_SECONDS = 1e-3
#: Assumed between nodes if the rate of the link is unknown.
LINK_BITS_PER_SECOND = 10**9


class Product(NamedTuple):
    """The product that a dense layer computes in a step of all ranks.

    Attributes
    ----------
    inputs, outputs : the shape of its kernel.
    rows : of all ranks together.
    number_bytes : bytes of one number.
    data_bytes : of the model's inputs for one of these rows; None if they are not known.
    """

    inputs: int
    outputs: int
    rows: int
    number_bytes: int = 4
    data_bytes: float | None = None

    @property
    def weights(self) -> int:
        return self.inputs * self.outputs


class Rates(NamedTuple):
    """The speed of the ranks and of their network.

    Attributes
    ----------
    exchange_seconds : from the request of an exchange until it begins.
    bytes_per_second : that a rank receives in an exchange.
    operations_per_second : multiplications and additions of a product, of one rank.
    weights_per_second : that the optimizer of one rank updates.
    recomputed_rows_per_second : rows of data for which one rank computes the layers before the
        dense one again; None if it is not known.
    """

    exchange_seconds: float
    bytes_per_second: float
    operations_per_second: float = OPERATIONS_PER_SECOND
    weights_per_second: float = WEIGHTS_PER_SECOND
    recomputed_rows_per_second: float | None = None


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
    if exchange == RECOMPUTE:
        if data_bytes is None:
            return math.inf
        return rows * (data_bytes + outputs * number_bytes) * (ranks - 1) / ranks
    numbers = {
        ALLREDUCE: 2 * product.weights,
        FACTORS: rows * (inputs + outputs),
        SHARDED: rows * (inputs / ranks + outputs) + product.weights,
        IN_PARTS: rows * (2 * inputs / ranks + 3 * outputs),
        SHARED_MEMORY: rows * (inputs / ranks + outputs),
    }[exchange]
    return number_bytes * numbers * (ranks - 1) / ranks


def operations(exchange: str, product: Product, ranks: int) -> float:
    """Return a rank's multiplications and additions for the gradient of a kernel in a step."""
    of_all = 2 * product.rows * product.weights
    return of_all if exchange in (FACTORS, RECOMPUTE) else of_all / ranks


def updated_weights(exchange: str, product: Product, ranks: int) -> float:
    """Return how many weights of a kernel a rank updates in a step."""
    return product.weights / (ranks if exchange in OF_OWN_ROWS else 1)


def seconds(exchange: str, product: Product, ranks: int, rates: Rates) -> float:
    """Return the time of a step that depends on the exchange of a layer, without overlap.

    It is infinite for `RECOMPUTE` if the rate of the layers before is not known.
    """
    recomputing = 0.0
    if exchange == RECOMPUTE:
        rate = rates.recomputed_rows_per_second
        recomputing = math.inf if rate is None else product.rows / rate
    return recomputing + (
        IN_TURN[exchange] * rates.exchange_seconds
        + received_bytes(exchange, product, ranks) / rates.bytes_per_second
        + operations(exchange, product, ranks) / rates.operations_per_second
        + updated_weights(exchange, product, ranks) / rates.weights_per_second
    )


def fastest(exchanges: Iterable[str], product: Product, ranks: int, rates: Rates) -> str:
    """Return the exchange that takes the least time; of equal ones, the first."""
    return min(exchanges, key=lambda exchange: seconds(exchange, product, ranks, rates))


def assumed(
    nodes: int, link_bits_per_second: float | None, measured: Mapping[str, Any] | None
) -> list[str]:
    """Return the names of the rates that `rates` takes from another machine, or from nowhere."""
    names = ["operations_per_second", "weights_per_second"]
    if nodes == 1 or not link_bits_per_second:
        names.append("bytes_per_second")
    return [name for name in names if name not in (measured or {})]


def rates(
    mpi: bool,
    nodes: int,
    link_bits_per_second: float | None = None,
    cycle_time_ms: float | None = None,
    measured: Mapping[str, Any] | None = None,
) -> Rates:
    """Return the rates of a run.

    Parameters
    ----------
    mpi : whether ranks exchange through MPI; otherwise through Gloo.
    link_bits_per_second : the rate of the links between the nodes, None if it is unknown.
    cycle_time_ms : the knob of this name.
    measured : rates of this machine and network, by the names of `Rates`; they replace others.
    """
    of_core = BYTES_PER_SECOND_MPI if mpi else BYTES_PER_SECOND_GLOO
    of_link = (link_bits_per_second or LINK_BITS_PER_SECOND) / 8
    usual = Rates(
        exchange_seconds=CYCLE_SECONDS if cycle_time_ms is None else cycle_time_ms / 1000,
        bytes_per_second=of_core if nodes == 1 else min(of_link, of_core),
    )
    return usual._replace(**measured or {})
