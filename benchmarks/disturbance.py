"""Count how often runs are called disturbed: on an idle machine, and alongside a busy process.

    uv run python -m benchmarks.disturbance results/demo/data/demo-1000/split4 --idle 100 --busy 20

Runs of one process and of two take turns. Nothing else may run on the machine. Of every kind of
run, a line gives how many were called disturbed, and the cores of other processes: median, 95th
percentile and range. The last line is the seconds of all.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import cycle, islice
from pathlib import Path

import numpy as np

from escala.core import hardware
from escala.core.files import read_json
from escala.experiment import Experiment, read
from escala.experiment.files import ROOT
from escala.record.disturbance import THRESHOLD_CORES
from escala.record.run import measure

TIME_LIMIT_SECONDS = 3600
CONFIGURATIONS = {"1x1": "single", "1x2": "horovod-mpi"}


def requests(epochs: int) -> list[dict]:
    """Return the requests of a run of one process and of one of two: the default experiment's."""
    settings = read(ROOT / "config.yaml") | {
        "workloads": {"virus-cnn": {"epochs": epochs}},
        "configurations": [
            {"strategy": strategy, "layouts": [layout], "variants": ["tuned"]}
            for layout, strategy in CONFIGURATIONS.items()
        ],
        "references": [{"strategy": "single", "layout": "1x1", "variant": "tuned"}],
    }
    experiment = Experiment(settings, "config.yaml")
    return [experiment.request(run) for run in experiment.runs if run.repeat == 1]


@contextmanager
def neighbour(wanted: bool) -> Iterator[None]:
    """Keep one core busy by a process that is not the run's, while the block runs.

    Its parent ends at once: children of this process, which measures, belong to the run.
    """
    script = "exec 1>&-; while :; do :; done" if wanted else "exit"
    started = subprocess.run(
        ["sh", "-c", f"sh -c '{script}' & echo $!"], stdout=subprocess.PIPE, text=True, check=True
    )
    try:
        yield
    finally:
        if wanted:
            os.kill(int(started.stdout), signal.SIGKILL)


def measured(request: dict, split: Path, busy: bool) -> dict:
    """Return the disturbance of one run, with its training `seconds`."""
    with tempfile.TemporaryDirectory() as folder, neighbour(busy):
        output = Path(folder) / "run.json"
        outcome = measure(request, split, output, TIME_LIMIT_SECONDS)
        if outcome.status != "ok":
            raise SystemExit(outcome.reason)
        run = read_json(output)
    return run["disturbance"] | {"seconds": run["seconds"]["train"]}


def line(layout: str, busy: bool, found: list[dict]) -> str:
    """Describe the runs of one kind."""
    cores = np.array([run["nodes"][0]["foreign_cores"] for run in found], float)
    errors = [run["nodes"][0]["error_cores"] for run in found]
    steal = max(run["nodes"][0]["steal_cores"] for run in found)
    alarms = sum(bool(run["disturbed"]) for run in found)
    return (
        f"{layout}{'busy' if busy else 'idle':>7}{len(found):>6}{alarms:>10}"
        f"{np.median(cores):>9.3f}{np.quantile(cores, 0.95):>8.3f}"
        f"{cores.min():>8.3f} to {cores.max():.3f}"
        f"{np.median(errors):>9.3f}{steal:>8.3f}"
        f"{np.median([run['seconds'] for run in found]):>9.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("split", type=Path, help="folder of a split, with train.npy")
    parser.add_argument("--idle", type=int, default=100, help="runs alone; default: %(default)s")
    parser.add_argument("--busy", type=int, default=20, help="runs alongside one busy process")
    parser.add_argument("--epochs", type=int, default=3)
    arguments = parser.parse_args()
    machine, began = hardware.describe(), time.monotonic()
    print(f"{machine['cpu']}, {machine['cores_available']} cores, load {os.getloadavg()[0]:.2f}")
    wanted = requests(arguments.epochs)
    found: dict[tuple[str, bool], list[dict]] = {}
    for busy, number in ((False, arguments.idle), (True, arguments.busy)):
        for request in islice(cycle(wanted), number):
            run = measured(request, arguments.split, busy)
            found.setdefault((request["layout"], busy), []).append(run)
            print(f"{request['layout']} {run['reason'] or 'not disturbed'}", flush=True)
    print(f"threshold {THRESHOLD_CORES} cores")
    print("run  beside  runs disturbed  median    95 %             range    error   steal  seconds")
    for (layout, busy), runs in sorted(found.items(), key=lambda each: each[0][1]):
        print(line(layout, busy, runs))
    print(f"{time.monotonic() - began:.0f} s")


if __name__ == "__main__":
    main()
