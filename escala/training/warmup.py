"""The warm-up of a rank: trace and compile by real steps, and measure its speed."""

from __future__ import annotations

import logging
import time
from functools import partial

import numpy as np

from escala.data.base import Arrays
from escala.engines.base import Engine
from escala.training.shards import balanced_fractions, batches, gather, gather_steps

log = logging.getLogger("escala")

#: Steps of each size; the median of their times gives a rank's speed.
SPEED_STEPS = 9


def warm_up(engine: Engine, data: Arrays, batch: int, fractions: np.ndarray, rows: int) -> None:
    """Trace, compile and connect by real steps, of a full batch and of the last one of an epoch.

    If that is a full one too, half a batch is taken.

    Parameters
    ----------
    rows : of an epoch, over all ranks.
    """
    last = rows % batch or max(1, batch // 2)
    for size in (batch, last, batch):
        for step in batches(np.arange(size), size, fractions):
            engine.warm_up(step, partial(gather_steps, data, "rows"))


def fractions_by_speed(engine: Engine, data: Arrays, batch: int, ranks: int) -> np.ndarray:
    """Return the fractions of a batch that take every rank the same time, measured before training.

    All ranks work at the same time without exchange, so that contention between them counts.
    """
    sizes = (max(1, batch // (2 * ranks)), batch)
    seconds = np.zeros((ranks, len(sizes)))
    for column, size in enumerate(sizes):
        rows = gather(data, np.arange(size), size)
        engine.step_alone(rows)
        engine.group.meet()
        times = []
        for _ in range(SPEED_STEPS):
            start = time.perf_counter()
            engine.step_alone(rows)
            times.append(time.perf_counter() - start)
        seconds[engine.place.process, column] = float(np.median(times))
    together = engine.group.total(seconds.ravel()).reshape(seconds.shape)
    fractions = balanced_fractions(sizes, together, batch)
    log.info("fractions by speed: %s", ", ".join(f"{fraction:.3f}" for fraction in fractions))
    return fractions
