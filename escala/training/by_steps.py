"""Train a workload by steps in this process, by the engine of its strategy."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from escala import engines
from escala.core.load import Load
from escala.probes import Probe
from escala.strategies.base import Place
from escala.training.process import startup_seconds


def run(plan: dict, folder: Path, place: Place, probe: Probe | None, load: Load) -> dict:
    """Train, and return what this process tells (`escala.training.process.Told`)."""
    with _without_garbage_collection():
        from escala.training.train import train

        engine = engines.create_engine(plan, place)
    ranks, total = engine.start()
    if (ranks, total) != (place.ranks, plan["ranks"]):
        raise RuntimeError(
            f"requested rank {_listed(place.ranks)} of {plan['ranks']}, "
            f"obtained rank {_listed(ranks)} of {total}"
        )
    startup = startup_seconds(place.process, place.processes)
    measured = {}
    if not engine.group.serve(folder):
        measured = train(plan, engine, folder, probe, load)
        measured["seconds"]["startup"] = startup
    engine.group.stop()
    return measured | {"ranks": total} | engine.obtained()


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Pause the collector of reference cycles, and exclude the block's objects from it afterwards.

    Importing a framework allocates millions of objects that live as long as the process. Searching
    them repeatedly takes a fifth of the import.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks)) or "none"
