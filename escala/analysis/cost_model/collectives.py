"""Count the messages and bytes of collectives, as each library performs them.

A collective is a series of rounds, in which ranks send messages of equal size at the same time. A
round costs α + nβ for n bytes, so a collective costs α times its messages plus β times its bytes
(R. Thakur, R. Rabenseifner, W. Gropp, Optimization of collective communication operations in MPICH,
Int. J. High Performance Computing Applications 19 (2005), 49-66). The time to add bytes is
proportional to those sent, and is a part of β. Ranks of a node share its link: its bytes in a round
are those of all of them.

Algorithms of the libraries:

- `mpi`: the fixed decisions of Open MPI 4.1, `coll_tuned_decision_fixed.c`, for operations that
  commute and at most `MAX_RANKS` ranks. Its segmented ring has segments of the whole part that a
  rank sends, so it is the ring.
- `gloo`: the rings of `gloo/allreduce.cc` and `gloo/allgatherv.cc`. Allreduce sends in segments of
  at most 1 MiB, at least two for each rank.
- `torch-gloo`: PyTorch calls the same ring of Gloo.
- `nccl`: taken for a ring; it has no other way between a few GPUs that is known here.
- `tensorflow`: the ring of `ring_reducer.cc` and `ring_gatherer.cc`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from escala.core.engines import COLLECTIVES
from escala.core.errors import InputError
from escala.probes.collectives import ALLGATHER, ALLREDUCE
from escala.runtime.layout import Layout

#: Largest number of ranks whose algorithms are listed here.
MAX_RANKS = 511
GLOO_SEGMENT_BYTES = 2**20


class Round(NamedTuple):
    """Messages that ranks send at the same time.

    Attributes
    ----------
    partners : the rank that each rank sends to, its own number if it sends nothing; int array of
        shape (ranks,).
    sent : bytes of each message.
    times : number of such rounds, one after the other.
    """

    partners: np.ndarray
    sent: float
    times: int = 1


class Traffic(NamedTuple):
    """Messages that follow each other in a collective, and their bytes.

    `link` is between nodes, `local` within a node. A round with messages of both kinds counts as
    one of the link.
    """

    link_messages: float
    link_bytes: float
    local_messages: float
    local_bytes: float


Algorithm = Callable[[int, float], Iterator[Round]]


def ring(ranks: int, size: float) -> Iterator[Round]:
    """Sum by a ring: 2(p-1)α + 2(p-1)/p nβ."""
    yield Round(_shifted(ranks, 1), size / ranks, 2 * (ranks - 1))


def segmented_ring(ranks: int, size: float) -> Iterator[Round]:
    """Sum by Gloo's ring, in which a rank's part is sent in segments."""
    per_rank = max(2, -(-size // (ranks * GLOO_SEGMENT_BYTES)))
    yield Round(_shifted(ranks, 1), size / ranks / per_rank, int(2 * (ranks - 1) * per_rank))


def recursive_doubling(ranks: int, size: float) -> Iterator[Round]:
    """Sum by exchanging all: log₂p (α + nβ), two messages more if p is no power of two."""
    numbers, extra = _power_of_two(ranks)
    if extra:
        yield Round(_folded(ranks, extra), size)
    for distance in _powers(len(numbers)):
        yield Round(_exchanged(ranks, numbers, distance), size)
    if extra:
        yield Round(_folded(ranks, extra), size)


def rabenseifner(ranks: int, size: float) -> Iterator[Round]:
    """Sum by scattering and gathering: 2 log₂p α + 2(p'-1)/p' nβ.

    Distances double while the sizes halve, then the reverse. p' is the largest power of two in p.
    If it is not p, the others exchange halves before, and get the result after.
    """
    numbers, extra = _power_of_two(ranks)
    if extra:
        yield Round(_folded(ranks, extra), size / 2, 2)
    halving = [(distance, size / (2 * distance)) for distance in _powers(len(numbers))]
    for distance, sent in (*halving, *reversed(halving)):
        yield Round(_exchanged(ranks, numbers, distance), sent)
    if extra:
        yield Round(_folded(ranks, extra), size)


def reduce_and_broadcast(ranks: int, size: float) -> Iterator[Round]:
    """Sum by a binomial tree to rank 0 and back: 2⌈log₂p⌉ (α + nβ)."""
    for distance in _powers(ranks):
        yield Round(_to_lower(ranks, distance), size, 2)


def gather_ring(ranks: int, size: float) -> Iterator[Round]:
    """Gather by a ring: (p-1)(α + nβ) for n bytes of each rank."""
    yield Round(_shifted(ranks, 1), size, ranks - 1)


def bruck(ranks: int, size: float) -> Iterator[Round]:
    """Gather by doubling distances: ⌈log₂p⌉α + (p-1)nβ."""
    for distance in _powers(ranks):
        yield Round(_shifted(ranks, -distance), size * min(distance, ranks - distance))


def neighbour_exchange(ranks: int, size: float) -> Iterator[Round]:
    """Gather from alternate neighbours: p/2 α + (p-1)nβ; a ring if p is odd."""
    if ranks % 2:
        yield from gather_ring(ranks, size)
        return
    even = np.arange(ranks) ^ 1
    odd = (np.arange(ranks) + np.where(np.arange(ranks) % 2, 1, -1)) % ranks
    yield Round(even, size)
    for number in range(1, ranks // 2):
        yield Round(odd if number % 2 else even, 2 * size)


def gather_and_broadcast(ranks: int, size: float) -> Iterator[Round]:
    """Gather at rank 0 and broadcast by a binomial tree: (p-1+⌈log₂p⌉)α + (p-1+p⌈log₂p⌉)nβ."""
    for sender in range(1, ranks):
        partners = np.arange(ranks)
        partners[sender] = 0
        yield Round(partners, size)
    for distance in _powers(ranks):
        yield Round(_to_lower(ranks, distance), ranks * size)


def _power_of_two(ranks: int) -> tuple[np.ndarray, int]:
    """Return the ranks that take part after folding, and the number that do not."""
    extra = ranks - 2 ** (ranks.bit_length() - 1)
    return np.concatenate([np.arange(0, 2 * extra, 2), np.arange(2 * extra, ranks)]), extra


def _powers(ranks: int) -> list[int]:
    """Return 1, 2, 4 … below the number of ranks."""
    return [2**exponent for exponent in range((ranks - 1).bit_length())]


def _shifted(ranks: int, distance: int) -> np.ndarray:
    return (np.arange(ranks) + distance) % ranks


def _folded(ranks: int, extra: int) -> np.ndarray:
    """Return the partners of neighbours of which one does not take part."""
    partners = np.arange(ranks)
    partners[: 2 * extra] ^= 1
    return partners


def _exchanged(ranks: int, numbers: np.ndarray, distance: int) -> np.ndarray:
    """Return the partners of ranks that exchange over a distance, counted among `numbers`."""
    partners = np.arange(ranks)
    partners[numbers] = numbers[np.arange(len(numbers)) ^ distance]
    return partners


def _to_lower(ranks: int, distance: int) -> np.ndarray:
    """Return the partners of one level of a binomial tree with rank 0 as its root."""
    partners = np.arange(ranks)
    partners[distance :: 2 * distance] -= distance
    return partners


#: Decisions of Open MPI: by the largest number of ranks, the algorithms with the bytes from which
#: each is used. An allgather counts the bytes of a rank.
_MPI: dict[str, dict[int, tuple[tuple[int, Algorithm], ...]]] = {
    ALLREDUCE: {
        3: (
            (0, ring), (8, recursive_doubling), (4096, ring), (8192, recursive_doubling),
            (16384, ring), (262144, rabenseifner),
        ),
        7: ((0, ring), (16, recursive_doubling), (8192, rabenseifner)),
        15: ((0, recursive_doubling), (8192, rabenseifner)),
        31: ((0, ring), (64, recursive_doubling), (4096, rabenseifner)),
        63: ((0, ring), (128, rabenseifner)),
        127: ((0, recursive_doubling), (262144, rabenseifner)),
        255: (
            (0, reduce_and_broadcast), (131072, recursive_doubling), (262144, rabenseifner),
        ),
        MAX_RANKS: ((0, reduce_and_broadcast), (4096, rabenseifner)),
    },
    ALLGATHER: {
        2: ((0, gather_ring),),
        7: (
            (0, gather_and_broadcast), (256, neighbour_exchange), (4096, gather_ring),
            (8192, neighbour_exchange), (16384, bruck), (262144, neighbour_exchange),
        ),
        15: ((0, gather_and_broadcast), (1024, bruck)),
        31: ((0, gather_and_broadcast), (128, bruck), (262144, gather_ring)),
        63: ((0, gather_and_broadcast), (256, bruck), (8192, gather_ring)),
        127: ((0, gather_and_broadcast), (256, bruck), (4096, gather_ring)),
        255: ((0, bruck), (1024, neighbour_exchange), (65536, gather_ring)),
        MAX_RANKS: ((0, bruck), (1024, gather_ring)),
    },
}  # fmt: skip


def _decisions(library: str, operation: str, ranks: int) -> tuple[tuple[int, Algorithm], ...]:
    if ranks > MAX_RANKS:
        raise InputError(
            "layout",
            f"{ranks} ranks",
            f"the algorithms of at most {MAX_RANKS} are known",
            "take fewer ranks",
        )
    by = COLLECTIVES[library].algorithm
    if by == "open-mpi":
        return next(found for most, found in _MPI[operation].items() if ranks <= most)
    if operation == ALLGATHER:
        return ((0, gather_ring),)
    return ((0, segmented_ring if by == "segmented-ring" else ring),)


def switch_points(library: str, operation: str, ranks: int) -> tuple[int, ...]:
    """Return the sizes in bytes from which a library uses another algorithm."""
    return tuple(size for size, _ in _decisions(library, operation, ranks)[1:])


def algorithm(library: str, operation: str, ranks: int, size: float) -> Algorithm:
    """Return the algorithm that a library uses.

    Parameters
    ----------
    size : bytes of a rank's tensor before the operation: in an allreduce as large as the result,
        in an allgather a part of it.

    Raises
    ------
    InputError : more than `MAX_RANKS` ranks.
    """
    decisions = _decisions(library, operation, ranks)
    return decisions[bisect_right(decisions, size, key=lambda each: each[0]) - 1][1]


@lru_cache(maxsize=4096)
def traffic(library: str, operation: str, layout: Layout, size: float) -> Traffic:
    """Return the messages and bytes of a collective, those of the busiest node in each round.

    Ranks are numbered node by node. One rank has no traffic.

    Parameters
    ----------
    size : as in `algorithm`.
    """
    total = np.zeros(4)
    if layout.ranks > 1:
        for each in algorithm(library, operation, layout.ranks, size)(layout.ranks, size):
            senders = busiest_link(each.partners, layout)
            one = (1, senders * each.sent, 0, 0) if senders else (0, 0, 1, each.sent)
            total += np.multiply(one, each.times)
    return Traffic(*map(float, total))


def busiest_link(partners: np.ndarray, layout: Layout) -> int:
    """Return the messages over the link of the busiest node, into it or out of it."""
    nodes = np.arange(layout.ranks) // layout.processes
    across = nodes != nodes[partners]
    out = np.bincount(nodes[across], minlength=1)
    into = np.bincount(nodes[partners[across]], minlength=1)
    return int(max(out.max(), into.max()))
