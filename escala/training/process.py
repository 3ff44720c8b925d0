"""What every process of a run does, however its workload is trained."""

from __future__ import annotations

import logging
import os

from escala.core import clock, load
from escala.strategies.base import Place

log = logging.getLogger("escala")


def load_reader(plan: dict, place: Place, grows: bool = False) -> load.Load:
    """Return the reader of the load of this node, which reads in the first process of a node.

    The run's own are the ranks here, what they start, what started them, and on the first node what
    supervises the run. `grows` is explained at `escala.core.load.Load`.
    """
    if place.local:
        return load.Load(None)
    parent = os.getppid()
    roots = [parent if parent > 1 else os.getpid()]
    supervisor = plan["supervisor"]
    if place.node == 0 and clock.runs(supervisor["pid"], supervisor["started"]):
        roots.append(supervisor["pid"])
    return load.Load(roots, grows)


def startup_seconds(rank: int, ranks: int) -> float:
    """Return the time since the start of this process, and log that it is ready."""
    seconds = clock.age()
    cores = sorted(os.sched_getaffinity(0))
    log.info("rank %d of %d on cores %s, ready after %.1f s", rank, ranks, cores, seconds)
    return seconds
