"""One rank of a training run: `python -m escala.parallel.rank REQUEST.json`.

Everything a rank has to say goes to files in the run's `ranks/` folder: its log, its step times,
its part of the test predictions, and `rank{r}.json` with what it measured, or `rank{r}.error.json`
if it could not finish.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

import psutil

from escala.errors import Diverged
from escala.files import read_json, write_json
from escala.parallel.children import die_with_parent
from escala.parallel.launch import rank_of_environment

log = logging.getLogger("escala")


def main(request_file: str) -> int:
    die_with_parent()
    request = read_json(request_file)
    rank = rank_of_environment()
    folder = Path(request_file).parent
    _log_to(folder / f"rank{rank}.log")
    cores = request["cores"][rank]
    os.sched_setaffinity(0, cores)
    try:
        measured = _run(request, folder, rank)
    except Exception as error:
        log.exception("this rank failed")
        write_json(folder / f"rank{rank}.error.json", _failure(error))
        # Other ranks may wait for this one inside a collective: leave without a farewell.
        os._exit(1)
    write_json(folder / f"rank{rank}.json", measured)
    log.info("done")
    return 0


def _run(request: dict, folder: Path, rank: int) -> dict:
    knobs = request["knobs"]
    import tensorflow as tf

    from escala.parallel.strategies import STRATEGIES
    from escala.parallel.train import train

    tf.config.threading.set_intra_op_parallelism_threads(knobs["threads"]["intra_op"])
    tf.config.threading.set_inter_op_parallelism_threads(knobs["threads"]["inter_op"])
    strategy = STRATEGIES[request["strategy"]](knobs)
    started, ranks = strategy.start()
    if (started, ranks) != (rank, request["ranks"]):
        raise RuntimeError(
            f"asked for rank {rank} of {request['ranks']}, obtained rank {started} of {ranks}"
        )
    startup = time.time() - psutil.Process().create_time()
    log.info(
        "rank %d of %d on cores %s, ready after %.1f s",
        rank,
        ranks,
        sorted(os.sched_getaffinity(0)),
        startup,
    )
    measured = train(request, strategy, rank, ranks, folder)
    strategy.stop()
    measured["seconds"]["startup"] = startup
    measured |= {
        "rank": rank,
        "ranks": ranks,
        "cores": sorted(os.sched_getaffinity(0)),
        "threads": {
            "intra_op": tf.config.threading.get_intra_op_parallelism_threads(),
            "inter_op": tf.config.threading.get_inter_op_parallelism_threads(),
        },
    }
    return measured


def _failure(error: Exception) -> dict:
    import tensorflow as tf

    if isinstance(error, Diverged):
        status = "diverged"
    elif isinstance(error, MemoryError | tf.errors.ResourceExhaustedError):
        status = "out-of-memory"
    else:
        status = "failed"
    return {"status": status, "reason": f"{type(error).__name__}: {error}"[:500]}


def _log_to(path: Path) -> None:
    """Send everything this process prints, from C++ too, to its own log."""
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
