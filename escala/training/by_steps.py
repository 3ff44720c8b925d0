"""Train a workload by steps in this process, under a strategy."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from escala.probes import Probe
from escala.strategies.knobs import readable
from escala.strategies.shared.devices import gpus_in_use, set_device
from escala.strategies.shared.place import Place
from escala.training.process import load_reader, startup_seconds


def run(request: dict, folder: Path, place: Place, probe: Probe | None) -> dict:
    """Return what one process of a run measures; `escala.training.train` describes it."""
    knobs = request["knobs"]
    set_device(knobs["device"], place)
    with _without_garbage_collection():
        import tensorflow as tf

        from escala.strategies import STRATEGIES
        from escala.strategies.base import set_products, set_threads
        from escala.training.train import train

    set_threads(knobs["threads"])
    set_products(knobs["products"])
    name = request["strategy"]
    strategy = STRATEGIES[name](readable(knobs, name), place)
    ranks, total = strategy.start()
    if (ranks, total) != (place.ranks, request["ranks"]):
        raise RuntimeError(
            f"requested rank {_listed(place.ranks)} of {request['ranks']}, "
            f"obtained rank {_listed(ranks)} of {total}"
        )
    gpus = gpus_in_use(knobs["device"])
    startup = startup_seconds(place.process, place.processes)
    if strategy.trains:
        reader = load_reader(request, place)
        measured = train(request, strategy, total, folder, probe, reader)
        measured["seconds"]["startup"] = startup
        measured["load"] = reader.found
    else:
        measured = {}
        strategy.serve(folder)
    strategy.stop()
    return measured | {
        "ranks": total,
        "gpus": gpus,
        "threads": {
            "intra_op": tf.config.threading.get_intra_op_parallelism_threads(),
            "inter_op": tf.config.threading.get_inter_op_parallelism_threads(),
        },
    }


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Pause the collector of reference cycles, and exclude the block's objects from it afterwards.

    Importing TensorFlow allocates millions of objects that live as long as the process. Searching
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
