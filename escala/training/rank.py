"""One process of a training run: `python -m escala.training.rank PLAN.json`.

A rank writes only files in the run's `ranks/` folder: its log, its step times, its part of the test
predictions, and `rank{r}.json` with its measurements, or `rank{r}.error.json` if it failed.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from importlib import import_module
from pathlib import Path

from escala.core import alone, children, errors, plugins
from escala.core.errors import Diverged, Failed, Unavailable
from escala.core.files import read_json, write_json
from escala.probes import Probe, probe_of_plan
from escala.runtime.spawn import HOST, process_of_environment
from escala.strategies.base import Place
from escala.training.process import PARTS, Measurements, load_reader

log = logging.getLogger("escala")

#: Names of the errors of Python and of frameworks about a lack of memory.
OUT_OF_MEMORY = {"MemoryError", "ResourceExhaustedError", "OutOfMemoryError"}
#: PyTorch has no special error about processor memory, but its message has these words.
NO_MEMORY = "can't allocate memory"
#: Folder alongside the plan for temporary files.
SCRATCH = "scratch"


def main(plan_file: str) -> int:
    children.die_with_parent()
    plan = read_json(plan_file)
    rank = process_of_environment()
    place = Place.of(plan, rank)
    folder = Path(plan_file).parent
    _log_to(folder / f"rank{rank}.log")
    # TensorFlow leaves files of generated code behind if a rank is killed. PyTorch's compiler
    # changes the working directory.
    tempfile.tempdir = str((folder / SCRATCH).absolute())
    Path(tempfile.tempdir).mkdir(exist_ok=True)
    os.sched_setaffinity(0, place.cores)
    # If memory runs out, the kernel ends this process and its children before other processes.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="utf-8")
    try:
        probe = probe_of_plan(plan, folder)
        # The run reserves each of its machines; the supervisor reserves the machine on which it
        # runs. A run of several nodes does not wait here, because two such runs could wait for each
        # other.
        supervisor, hold = plan["supervisor"], nullcontext()
        if not place.local and supervisor["host"] != socket.gethostname():
            holder = {key: supervisor[key] for key in ("experiment", "run")}
            hold = alone.hold(holder, wait=False)
        with (
            hold,
            probe.around(rank, place.node) if probe else nullcontext(),
            _busy_neighbours(sum(r in place.ranks for r in plan["knobs"]["busy_neighbours"])),
        ):
            measured = _run(plan, folder, place, probe)
    except (Exception, SystemExit) as error:
        # The log of a program that failed ends with the program's own lines.
        if not isinstance(error, (Failed, Diverged)):
            log.exception("this rank failed")
        failure = _failure(error, plan) | {
            "at": getattr(error, "at", time.time()),
            "code": getattr(error, "code", None),
        }
        write_json(folder / f"rank{rank}.error.json", failure, durable=False)
        # Other ranks may wait for this rank inside a collective, so end without cleanup.
        os._exit(1)
    write_json(folder / f"rank{rank}.json", measured, durable=False)
    log.info("done")
    return 0


def _run(plan: dict, folder: Path, place: Place, probe: Probe | None) -> Measurements:
    load = load_reader(plan, place)
    # Each trainer imports its own libraries, so import only the trainer of this run.
    trainer = "by_program" if "start" in plan else "train" if plan["engine"] else "by_fit"
    measured = import_module(f"escala.training.{trainer}").run(plan, folder, place, probe, load)
    seconds = dict.fromkeys(PARTS) | measured.get("seconds", {})
    return (
        dict.fromkeys(Measurements.__annotations__)
        | measured
        | {
            "seconds": seconds,
            "load": load.sums,
            "host": os.environ.get(HOST) or socket.gethostname(),
            # A number that is new at each boot (man 4 random).
            "boot": Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8").strip(),
            "step": os.environ.get("SLURM_STEP_ID"),
            "cores": sorted(os.sched_getaffinity(0)),
        }
    )


@contextmanager
def _busy_neighbours(count: int) -> Iterator[None]:
    """Keep the cores of this process busy with `count` processes, to slow the rank on purpose."""
    busy = [sys.executable, "-c", "while True: pass"]
    started = [children.start(busy, os.environ, None) for _ in range(count)]
    try:
        yield
    finally:
        children.stop(started, grace_seconds=0)


def _failure(error: BaseException, plan: dict) -> dict:
    """Return `status` and `reason` of an error; the reason has the place in the workload's code."""
    if isinstance(error, Failed):
        return {"status": "failed", "reason": str(error)[:500]}
    # Errors are compared by name, because this module imports no framework.
    names = {kind.__name__ for kind in type(error).__mro__}
    if names & OUT_OF_MEMORY or NO_MEMORY in str(error):
        status = "out-of-memory"
    elif isinstance(error, Diverged):
        status = "diverged"
    else:
        status = "unavailable" if isinstance(error, Unavailable) else "failed"
    if status == "diverged" and "start" in plan:
        return {"status": status, "reason": str(error)[:500]}
    # Imported here, because most ranks of programs do not need it.
    from escala.workloads import WORKLOADS

    known = plan["workload"] in WORKLOADS
    folders = [WORKLOADS[plan["workload"]].folder] if known else []
    folders += plugins.folders(plugins.KINDS).values()
    places = filter(None, (errors.place_in(error, folder) for folder in folders))
    where = next((f"{place}: " for place in places), "")
    return {"status": status, "reason": f"{where}{errors.text_of(error)}"[:500]}


def _log_to(path: Path) -> None:
    """Send all output of this process, including output of C++, to its own log."""
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
