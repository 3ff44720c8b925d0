"""Rows of each rank, step by step, in an order that all ranks agree on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np


def epoch_order(rows: int, seed: int | Sequence[int], epoch: int) -> np.ndarray:
    """Return the order of the rows in an epoch, int64 of shape (rows,)."""
    return np.random.default_rng([*np.atleast_1d(seed), epoch]).permutation(rows)


@dataclass(frozen=True)
class Shards:
    """The rows of each rank, step by step.

    Parameters
    ----------
    seed : seed of the order of the rows, the same on every rank.
    rows : number of training rows.
    global_batch : rows of a step over all ranks.
    shares : part of a step that each rank takes, summing to 1.
    shard : the rows of an epoch that a rank takes, a value of the knob of this name.
        True: the ranks divide the rows.
        False: each rank goes through all rows in its own order, so that an epoch holds every row
        once for each rank that takes any.
        "leading": all ranks take the same rows of a step, the first ones; see `leading`.
    """

    seed: int
    rows: int
    global_batch: int
    shares: Sequence[float]
    shard: bool | Literal["leading"] = True

    def steps(self, at_most: int | None) -> int:
        """Return the number of steps of an epoch, at most `at_most`."""
        taken = self.global_batch
        if self.shard is False:
            # The rank with the fewest rows per step is the last to go through all rows.
            sizes = parts(self.global_batch, self.shares)
            taken = int(sizes[sizes > 0].min())
        steps = -(-self.rows // taken)
        return min(steps, at_most) if at_most else steps

    def of_epoch(self, epoch: int) -> Iterator[list[np.ndarray]]:
        """Yield, for each step, the row numbers of every rank."""
        if self.shard is not False:
            take = leading if self.shard == "leading" else batches
            order = epoch_order(self.rows, self.seed, epoch)
            yield from take(order, self.global_batch, self.shares)
            return
        orders = [epoch_order(self.rows, [self.seed, r], epoch) for r in range(len(self.shares))]
        sizes = parts(self.global_batch, self.shares)
        for step in range(self.steps(None)):
            yield [
                order[step * size : (step + 1) * size]
                for order, size in zip(orders, sizes, strict=True)
            ]


def batches(
    order: np.ndarray, global_batch: int, shares: Sequence[float]
) -> Iterator[list[np.ndarray]]:
    """Yield, for each step of an epoch, the row numbers of every rank.

    A step takes the next `global_batch` rows of `order`, and the ranks divide them into contiguous
    parts. Together the ranks take the same rows as one rank with the global batch, and every rank
    makes the same number of steps. The parts of the last step may be uneven or empty.

    Parameters
    ----------
    shares : part of a step that each rank takes, summing to 1; see `parts`.
    """
    for start in range(0, len(order), global_batch):
        step = order[start : start + global_batch]
        yield np.split(step, np.cumsum(parts(len(step), shares))[:-1])


def leading(
    order: np.ndarray, global_batch: int, shares: Sequence[float]
) -> Iterator[list[np.ndarray]]:
    """Yield, for each step of an epoch, the first rows of the step for every rank.

    A rank takes as many rows as under `batches`, but all ranks begin with the first row of the
    step. So n ranks of equal shares compute the same gradient, and the other rows of the step are
    not trained on in this epoch. Cruz Varona (2021) gives this division as pseudocode: each of n
    devices takes the rows [0, B/n) of a batch of B rows.

    Parameters
    ----------
    order, global_batch, shares : as of `batches`.
    """
    for start in range(0, len(order), global_batch):
        step = order[start : start + global_batch]
        yield [step[:rows] for rows in parts(len(step), shares)]


def parts(rows: int, shares: Sequence[float]) -> np.ndarray:
    """Divide rows among ranks in proportion to their shares, int64 of shape (ranks,).

    The method is largest remainders, with the lower rank first among equals. So equal shares differ
    by one row at most.
    """
    exact = rows * np.asarray(shares, np.float64)
    whole = np.floor(exact + 1e-9).astype(np.int64)
    # Rounded, so that rounding errors do not decide among equals.
    first = np.argsort(-np.round(exact - whole, 9), kind="stable")
    whole[first[: rows - whole.sum()]] += 1
    return whole


def balanced_shares(rows: Sequence[int], seconds: np.ndarray, batch: int) -> np.ndarray:
    """Return the shares of a batch with which all ranks end a step at the same time.

    Parameters
    ----------
    rows : two different numbers of rows.
    seconds : float64 of shape (ranks, 2), the time of a step of `rows` rows on each rank.

    Returns
    -------
    float64 of shape (ranks,), summing to 1. In the model, a step of n rows lasts a + b n seconds.
    The shares solve a + b n = T for every rank, where the n sum to `batch`. A rank whose a exceeds
    T takes no rows.
    """
    slope = np.maximum((seconds[:, 1] - seconds[:, 0]) / (rows[1] - rows[0]), 1e-9)
    fixed = seconds[:, 0] - slope * rows[0]
    working = np.ones(len(slope), bool)
    while True:
        together = (batch + (fixed / slope)[working].sum()) / (1 / slope)[working].sum()
        wanted = np.where(working, (together - fixed) / slope, 0.0)
        if (wanted >= 0).all():
            return wanted / wanted.sum()
        working &= wanted > 0


def row_moments(rows: np.ndarray) -> list[int]:
    """Return the sum of row numbers and of their squares, modulo 2^64.

    The sums of all ranks, modulo 2^64, equal those of the rows planned for the epoch if the ranks
    took these rows. The converse fails only by coincidence, so this is a check of each run and no
    proof.
    """
    numbers = rows.astype(np.uint64)
    return [int(numbers.sum()), int((numbers**2).sum())]


def total_moments(of_ranks: Iterable[Sequence[int]]) -> list[int]:
    """Return the row moments of all ranks together from those of each rank; see `row_moments`."""
    return [sum(moments) % 2**64 for moments in zip(*of_ranks, strict=True)]


def evaluation_rows(rows: int, rank: int, ranks: int, divided: bool = True) -> slice:
    """Return the contiguous part of the test rows that a rank evaluates.

    Parameters
    ----------
    divided : whether the ranks divide the rows. Otherwise rank 0 evaluates all.
    """
    part = np.array_split(np.arange(rows), ranks if divided else 1)
    part = part[rank] if rank < len(part) else part[0][:0]
    return slice(int(part[0]), int(part[-1]) + 1) if len(part) else slice(0, 0)
