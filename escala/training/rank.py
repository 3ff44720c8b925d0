"""One process of a training run: `python -m escala.training.rank REQUEST.json`.

A rank writes only files in the run's `ranks/` folder: its log, its step times, its part of the test
predictions, and `rank{r}.json` with its measurements, or `rank{r}.error.json` if it failed.
"""

from __future__ import annotations

import gc
import logging
import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from escala.core import alone, children, clock, load, plugins, user_code
from escala.core.errors import Diverged, Unavailable
from escala.core.files import read_json, write_json
from escala.probes import Probe, of_run
from escala.runtime.launch import process_of_environment
from escala.strategies.knobs import readable
from escala.strategies.shared.devices import gpus_in_use, set_device
from escala.strategies.shared.place import Place

log = logging.getLogger("escala")

#: Folder beside the request for files that are not needed after the run.
SCRATCH = "scratch"


def main(request_file: str) -> int:
    children.die_with_parent()
    request = read_json(request_file)
    rank = process_of_environment()
    place = Place.of(request, rank)
    folder = Path(request_file).parent
    _log_to(folder / f"rank{rank}.log")
    # TensorFlow leaves files of generated code behind if a rank is killed.
    tempfile.tempdir = str(folder / SCRATCH)
    Path(tempfile.tempdir).mkdir(exist_ok=True)
    os.sched_setaffinity(0, place.cores)
    try:
        probe = of_run(request, folder)
        with (
            _machine(request, place),
            probe.around(rank, place.node) if probe else nullcontext(),
            _busy_neighbours(request["knobs"]["busy_neighbours"].count(rank)),
        ):
            measured = _run(request, folder, place, probe)
    except Exception as error:
        log.exception("this rank failed")
        write_json(folder / f"rank{rank}.error.json", _failure(error, request), durable=False)
        # Other ranks may wait for this one inside a collective, so end without cleanup.
        os._exit(1)
    write_json(folder / f"rank{rank}.json", measured, durable=False)
    log.info("done")
    return 0


def _run(request: dict, folder: Path, place: Place, probe: Probe | None) -> dict:
    by_kind = {"steps": _by_steps, "fit": _by_fit}
    measured = by_kind[request["kind"]](request, folder, place, probe)
    return measured | {
        "host": socket.gethostname(),
        "boot": _boot(),
        "cores": sorted(os.sched_getaffinity(0)),
    }


def _boot() -> str:
    """Return the identifier of this boot, and so of its clock (man 4 random)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _machine(request: dict, place: Place) -> AbstractContextManager[None]:
    """Return the context that holds this machine for the run, unless its supervisor does.

    A run of several nodes does not wait for one of them: two runs could wait for each other.
    """
    supervisor = request["supervisor"]
    if place.local or supervisor["host"] == socket.gethostname():
        return nullcontext()
    return alone.hold({key: supervisor[key] for key in ("experiment", "run")}, wait=False)


@contextmanager
def _busy_neighbours(count: int) -> Iterator[None]:
    """Keep the cores of this process busy with other processes, to slow the rank on purpose."""
    busy = [sys.executable, "-c", "while True: pass"]
    started = [children.start(busy, os.environ, None) for _ in range(count)]
    try:
        yield
    finally:
        children.stop(started, grace_seconds=0)


def _by_steps(request: dict, folder: Path, place: Place, probe: Probe | None) -> dict:
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
    startup = _startup_seconds(place.process, place.processes)
    if strategy.trains:
        reader = _load(request, place)
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


def _load(request: dict, place: Place) -> load.Load:
    """Return the reader of the load of this node, which reads in the first process of a node.

    The run's own are the ranks here, what they start, what started them, and on the first node what
    supervises the run.
    """
    if place.local:
        return load.Load(None)
    parent = os.getppid()
    roots = [parent if parent > 1 else os.getpid()]
    supervisor = request["supervisor"]
    if place.node == 0 and load.is_alive(supervisor["pid"], supervisor["started"]):
        roots.append(supervisor["pid"])
    return load.Load(roots)


def _by_fit(request: dict, folder: Path, place: Place, _: Probe | None) -> dict:
    from threadpoolctl import threadpool_info, threadpool_limits

    from escala.training.fit import fit
    from escala.workloads import workload

    workload(request["workload"])  # The thread pools of its libraries exist from here on.
    with threadpool_limits(request["knobs"]["threads"]["intra_op"]):
        startup = _startup_seconds(place.process, 1)
        reader = _load(request, place)
        measured = fit(request, folder, reader)
        measured["load"] = reader.found
        threads = max(pool["num_threads"] for pool in threadpool_info())
    measured["seconds"]["startup"] = startup
    return measured | {"ranks": 1, "threads": {"intra_op": threads, "inter_op": 1}}


def _startup_seconds(rank: int, ranks: int) -> float:
    """Return the time since the start of this process, and log that it is ready."""
    seconds = clock.age()
    cores = sorted(os.sched_getaffinity(0))
    log.info("rank %d of %d on cores %s, ready after %.1f s", rank, ranks, cores, seconds)
    return seconds


def _failure(error: Exception, request: dict) -> dict:
    """Return the status and the reason of an error, with its place in the workload's code."""
    # Use TensorFlow only if it is imported already: a fit does not need it.
    tensorflow = sys.modules.get("tensorflow")
    exhausted = (tensorflow.errors.ResourceExhaustedError,) if tensorflow else ()
    if isinstance(error, Diverged):
        status = "diverged"
    elif isinstance(error, Unavailable):
        status = "unavailable"
    elif isinstance(error, (MemoryError, *exhausted)):
        status = "out-of-memory"
    else:
        status = "failed"
    where = _place(error, request["workload"])
    return {"status": status, "reason": f"{where}{user_code.message(error)}"[:500]}


def _place(error: Exception, workload: str) -> str:
    """Return where an error was raised in the folder of the workload or of a user's kind."""
    from escala.workloads import WORKLOADS

    folders = [WORKLOADS[workload].folder, *plugins.folders(plugins.KINDS).values()]
    places = (user_code.location(error, folder) for folder in folders)
    return next((f"{place}: " for place in places if place), "")


def _log_to(path: Path) -> None:
    """Send all output of this process, including that of C++, to its own log."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True)
    logging.basicConfig(
        level=logging.WARNING, stream=sys.stdout, format="%(asctime)s %(name)s: %(message)s"
    )
    log.setLevel(logging.INFO)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
