"""The warm-up of a rank: trace and compile by real steps, and measure its speed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np

from escala.data.base import Arrays
from escala.strategies import Strategy
from escala.training.calls import Steps, calls, gathered
from escala.training.shards import balanced_shares, batches
from escala.training.step import gather

log = logging.getLogger("escala")

#: Steps of each size; the median of their times gives a rank's speed.
SPEED_STEPS = 9


@contextmanager
def unchanged(variables) -> Iterator[None]:
    """Restore the earlier value of every variable when the block ends."""
    saved = [v.numpy() for v in variables]
    yield
    for variable, value in zip(variables, saved, strict=True):
        variable.assign(value)


def warm_up(
    make: Steps, data: Arrays, request: dict, strategy: Strategy, shares: np.ndarray
) -> None:
    """Trace, compile and connect by real steps, of a full batch and of a smaller last one.

    Parameters
    ----------
    make : the compiled steps by their number in a call.
    """
    rows, ranks = min(request["global_batch"], data.rows("train")), strategy.driven_ranks
    for size in (rows, max(1, rows // 2), rows):
        for of_rank in batches(np.arange(size), size, shares):
            for count in make:
                for call in calls([of_rank] * count, count):
                    make[len(call)](gathered(data, call, ranks, [size] * len(of_rank)))
    strategy.join()


def stated_shares(request: dict) -> np.ndarray | None:
    """Return the shares that the knob `shares` states, which sum to 1, or none without it."""
    stated = request["knobs"]["shares"]
    return None if stated is None else np.divide(stated, sum(stated))


def shares_by_speed(
    alone: Callable, data: Arrays, request: dict, strategy: Strategy, ranks: int
) -> np.ndarray:
    """Return the shares of a batch that take every rank the same time, measured before training.

    All ranks work at the same time without exchange, so that contention between them counts.
    """
    batch = min(request["global_batch"], data.rows("train"))
    sizes = (max(1, batch // (2 * ranks)), batch)
    seconds = np.zeros((ranks, len(sizes)))
    for column, size in enumerate(sizes):
        rows = gather(data, np.arange(size), size)
        alone([rows])
        strategy.total(np.zeros(1))
        times = []
        for _ in range(SPEED_STEPS):
            start = time.perf_counter()
            alone([rows])
            times.append(time.perf_counter() - start)
        seconds[strategy.place.process, column] = float(np.median(times))
    shared = strategy.total(seconds.ravel()).reshape(seconds.shape)
    shares = balanced_shares(sizes, shared, batch)
    log.info("shares by speed: %s", ", ".join(f"{share:.3f}" for share in shares))
    return shares
