"""Rows of each rank, step by step, in an order that all ranks agree on."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from escala.data.base import Arrays
from escala.engines.base import RankRows, StepInputs


def epoch_order(rows: int, seed: int | Sequence[int], epoch: int) -> np.ndarray:
    """Return the order of the rows in an epoch, int64 of shape (rows,)."""
    return np.random.default_rng([*np.atleast_1d(seed), epoch]).permutation(rows)


@dataclass(frozen=True)
class Shards:
    """The rows of each rank, step by step.

    Attributes
    ----------
    seed : decides the order of the rows, together with `rows`. With None the rows keep their order.
    rows : the number of training rows.
    global_batch : rows of a step, all ranks together.
    fractions : the part of a step that each rank takes; the sum is 1.
    shard : the knob `shard`. True: the ranks divide the rows of an epoch. False: each rank goes
        through all rows in its own order; an epoch then has every row once for each such rank.
        "leading": all ranks take the first rows of a step (`batches`).
    rows_of_split : the number of rows in the split, from which `rows` rows are taken at even
        distances; None takes all.
    """

    seed: int | None
    rows: int
    global_batch: int
    fractions: Sequence[float]
    shard: bool | Literal["leading"] = True
    rows_of_split: int | None = None

    @classmethod
    def of_plan(cls, plan: Mapping[str, Any], fractions: Sequence[float]) -> Shards:
        """Return the shards of a plan (`escala.training.process`)."""
        return cls(
            plan["seed"],
            plan["train_rows"],
            plan["global_batch"],
            fractions,
            plan["knobs"]["shard"],
            plan.get("split_rows"),
        )

    def steps(self, at_most: int | None) -> int:
        """Return the number of steps of an epoch, at most `at_most`."""
        step_rows = self.global_batch
        if self.shard is False:
            # The rank with the fewest rows in a step needs the most steps for all rows.
            sizes = split_rows(self.global_batch, self.fractions)
            step_rows = int(sizes[sizes > 0].min())
        steps = -(-self.rows // step_rows)
        return min(steps, at_most) if at_most else steps

    def epoch_batches(self, epoch: int) -> Iterator[list[np.ndarray]]:
        """Yield, for each step, the row numbers of every rank."""
        if self.shard is not False:
            order, is_leading = self._order(self.seed, epoch), self.shard == "leading"
            yield from batches(order, self.global_batch, self.fractions, is_leading)
            return
        orders = [self._order([self.seed, r], epoch) for r in range(len(self.fractions))]
        sizes = split_rows(self.global_batch, self.fractions)
        for step in range(self.steps(None)):
            yield [
                order[step * size : (step + 1) * size]
                for order, size in zip(orders, sizes, strict=True)
            ]

    def _order(self, seed: int | Sequence[int] | None, epoch: int) -> np.ndarray:
        """Return the rows of an epoch in their order, int64 of shape (rows,)."""
        order = np.arange(self.rows) if seed is None else epoch_order(self.rows, seed, epoch)
        return order if self.rows_of_split is None else order * self.rows_of_split // self.rows


def batches(
    order: np.ndarray, global_batch: int, fractions: Sequence[float], leading: bool = False
) -> Iterator[list[np.ndarray]]:
    """Yield, for each step of an epoch, the row numbers of every rank.

    A step takes the next `global_batch` rows of `order`, and the ranks divide these rows into
    contiguous parts. Together the ranks take the same rows as one rank with the global batch, and
    every rank makes the same number of steps. The parts of the last step may be uneven or empty.

    With `leading`, a rank takes as many rows as without it, but all ranks begin with the first row
    of the step. So n ranks of equal fractions compute the same gradient, and the other rows of the
    step are not used in this epoch. Cruz Varona (2021) gives this division as pseudocode: each of n
    devices takes the rows [0, B/n) of a batch of B rows.
    """
    for start in range(0, len(order), global_batch):
        step = order[start : start + global_batch]
        sizes = split_rows(len(step), fractions)
        yield [step[:n] for n in sizes] if leading else np.split(step, np.cumsum(sizes)[:-1])


def split_rows(rows: int, fractions: Sequence[float]) -> np.ndarray:
    """Divide rows among ranks in proportion to their fractions, int64 of shape (ranks,).

    The method is largest remainders. Of equal remainders, the lower rank comes first. So ranks with
    equal fractions differ by at most one row.
    """
    exact = rows * np.asarray(fractions, np.float64)
    whole = np.floor(exact + 1e-9).astype(np.int64)
    # Rounded, so that rounding errors do not decide between equal remainders.
    first = np.argsort(-np.round(exact - whole, 9), kind="stable")
    whole[first[: rows - whole.sum()]] += 1
    return whole


def gather_steps(
    data: Arrays, weighting: str, steps: Sequence[RankRows], ranks: Sequence[int]
) -> list[StepInputs]:
    """Return, for each rank in `ranks`, the result of `gather` for its rows of all steps.

    The divisor of a rank must be equal in every step. With `data` and `weighting` bound by
    `partial`, this function is an `escala.engines.base.Gather`.
    """
    by_rank = divisors(steps[0], weighting)
    return [
        gather(data, np.concatenate([step[rank] for step in steps]), by_rank[rank])
        for rank in ranks
    ]


def gather(data: Arrays, rows: np.ndarray, divisor: float) -> StepInputs:
    """Return inputs, targets and weights of a rank's rows, and the divisor of the sum of losses.

    Without rows, the result is one row of weight 0, because TensorFlow's convolutions reject a
    batch without rows. So the rank takes part in the exchange and adds nothing.
    """
    inputs, targets = data.gather("train", rows if len(rows) else np.zeros(1, np.int64))
    weights = np.full(len(targets), float(len(rows) > 0), np.float32)
    return (*inputs, targets, weights, np.float32(divisor))


def divisors(step: RankRows, weighting: str) -> list[float]:
    """Return the divisor of each rank's sum of losses, so that the sum over ranks is a mean.

    With the `weighting` "rows" every row has equal weight. With "ranks" every rank has equal
    weight, even with few rows. The result is then the mean of the ranks' means, and a rank without
    rows has the mean 0.
    """
    if weighting == "rows":
        return [sum(map(len, step))] * len(step)
    return [max(1, len(rows)) * len(step) for rows in step]


def balance_fractions(rows: Sequence[int], seconds: np.ndarray, batch: int) -> np.ndarray:
    """Return fractions of a batch with which all ranks need equal time for a step.

    `rows` are two numbers of rows. `seconds`, float64 (ranks, 2), are the times of a step with each
    number. The fractions sum to 1. In the model, a step of n rows lasts a + b n seconds, with a and
    b of the rank. The fractions solve a + b n = T for every rank, and the sum of all n is `batch`.
    A rank with a > T takes no rows.
    """
    slope = np.maximum((seconds[:, 1] - seconds[:, 0]) / (rows[1] - rows[0]), 1e-9)
    fixed = seconds[:, 0] - slope * rows[0]
    working = np.ones(len(slope), bool)
    while True:
        step_seconds = (batch + (fixed / slope)[working].sum()) / (1 / slope)[working].sum()
        shares = np.where(working, (step_seconds - fixed) / slope, 0.0)
        if (shares >= 0).all():
            return shares / shares.sum()
        working &= shares > 0


def row_moments(rows: np.ndarray) -> list[int]:
    """Return the sum of row numbers, and the sum of their squares, modulo 2^64.

    If the ranks took the planned rows of an epoch, the sums over all ranks, modulo 2^64, equal the
    sums of the planned rows. Other rows could give these sums only by coincidence. So this is a
    check of each run and no proof.
    """
    numbers = rows.astype(np.uint64)
    return [int(numbers.sum()), int((numbers**2).sum())]


def total_moments(moments_of_ranks: Iterable[Sequence[int]]) -> list[int]:
    """Return the row moments of all ranks together from each rank's; see `row_moments`."""
    return [sum(moments) % 2**64 for moments in zip(*moments_of_ranks, strict=True)]


def evaluation_rows(rows: int, rank: int, ranks: int, divided: bool = True) -> slice:
    """Return the test rows that a rank evaluates; if not `divided`, rank 0 evaluates all."""
    parts = np.array_split(np.arange(rows), ranks if divided else 1)
    if rank >= len(parts) or not len(parts[rank]):
        return slice(0, 0)
    return slice(int(parts[rank][0]), int(parts[rank][-1]) + 1)
