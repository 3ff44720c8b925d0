"""Which rows a rank trains on: disjoint, together complete, in an order all ranks agree on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def epoch_order(rows: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order of the rows in an epoch, int64 of shape (rows,), the same on every rank."""
    return np.random.default_rng([seed, epoch]).permutation(rows)


def steps_per_epoch(rows: int, global_batch: int) -> int:
    return -(-rows // global_batch)


def batches(
    order: np.ndarray, global_batch: int, rank: int, ranks: int
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield, for each step of an epoch, this rank's row numbers and the global number of rows.

    A step takes the next `global_batch` rows of `order`, and its ranks share them in contiguous
    parts that differ by one row at most. So the union over the ranks is what one rank with the
    global batch would take, every rank makes the same number of steps, and the parts of the last
    step may be uneven or empty.
    """
    for start in range(0, len(order), global_batch):
        step = order[start : start + global_batch]
        yield np.array_split(step, ranks)[rank], len(step)


def row_moments(rows: np.ndarray) -> list[int]:
    """Return the sum of row numbers and of their squares.

    Ranks add theirs up to those of the whole epoch if every row was taken once. The converse holds
    but for a coincidence, so this is a check of each run and no proof.
    """
    numbers = rows.astype(np.uint64)
    return [int(numbers.sum()), int((numbers**2).sum())]


def evaluation_rows(rows: int, rank: int, ranks: int) -> slice:
    """Return the contiguous part of the test rows that a rank evaluates."""
    part = np.array_split(np.arange(rows), ranks)[rank]
    return slice(int(part[0]), int(part[-1]) + 1) if len(part) else slice(0, 0)
