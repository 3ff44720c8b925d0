"""Measure what sampling costs the ranks, in matches of the same training with and without it.

The sampler, as all else of a run, may use only the cores that the ranks use: the worst case. The
two of a match follow each other, now one first and now the other. What is compared is what runs
report, the training seconds. Prints the ratio with : without of the medians, and of every match;
beside it what the sampler says of the ranks, and the processor time it took itself.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

import psutil

from escala.core.files import read_json
from escala.core.hardware import available_cores
from escala.experiment import Experiment, read
from escala.experiment.files import ROOT
from escala.probes import resources
from escala.record.run import measure
from escala.runtime.layout import Layout

TIME_LIMIT_SECONDS = 3600
#: Between two looks at the sampler, which take as long with it as without.
WATCH_SECONDS = 2.0


def request(strategy: str, layout: Layout, epochs: int, seconds: float) -> dict:
    """Return the request of a sampled run: the default experiment's, of another configuration."""
    settings = read(ROOT / "config.yaml") | {
        "workloads": {"virus-cnn": {"epochs": epochs}},
        "configurations": [{"strategy": strategy, "layouts": [str(layout)]}],
        "resources": {"enabled": True, "seconds": seconds},
    }
    experiment = Experiment(settings, "config.yaml")
    wanted = experiment.request(experiment.probed("resources")[0])
    return wanted | {"training": wanted["training"] | {"epochs": epochs}}


def train(wanted: dict, split: Path, sampled: bool, folder: Path) -> dict:
    """Train once.

    Returns
    -------
    The training `seconds`, and, if sampled, the ranks' `summaries` and the `sampler_percent` of a
    core that the sampler took once it had started.
    """
    wanted = (
        wanted if sampled else wanted | {"instrument": None, "probe_settings": None, "repeat": 1}
    )
    with Watch(folder / "ranks") as watch:
        outcome = measure(wanted, split, folder / "run.json", TIME_LIMIT_SECONDS)
    if outcome.status != "ok":
        raise SystemExit(outcome.reason)
    result = read_json(folder / "run.json")
    return {
        "seconds": sum(epoch["train_seconds"] for epoch in result["epochs"]),
        "summaries": result["resources"],
        "sampler_percent": watch.percent,
    }


class Watch(threading.Thread):
    """Sees the processor time of the sampler below this process, while it samples into a folder."""

    def __init__(self, folder: Path):
        super().__init__(daemon=True)
        self._folder, self._ended = folder, threading.Event()
        self._moments: list[tuple[float, float]] = []

    def __enter__(self) -> Watch:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        while not self._ended.wait(WATCH_SECONDS):
            for process in psutil.Process().children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    samples = resources.__name__ in process.cmdline()
                    if samples and any(self._folder.glob("*.resources.csv")):
                        used = sum(process.cpu_times()[:2])
                        self._moments.append((time.monotonic(), used))

    @property
    def percent(self) -> float | None:
        """Return the fraction of a core between the first and the last look; None without two."""
        if len(self._moments) < 2:
            return None
        (began, before), (ended, after) = self._moments[0], self._moments[-1]
        return 100 * (after - before) / (ended - began)


def spread(values: list[float], digits: int = 3) -> str:
    """Return the median and the range of some values."""
    low, middle, high = (f"{f(values):.{digits}f}" for f in (min, statistics.median, max))
    return f"{middle} ({low} to {high}, n = {len(values)})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("split", type=Path, help="folder of a split, with train.npy")
    parser.add_argument("--strategy", default="single")
    parser.add_argument("--layout", type=Layout.parse, default=Layout(1, 1), help="such as 1x2")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=resources.SAMPLE_SECONDS)
    arguments = parser.parse_args()
    os.sched_setaffinity(0, available_cores()[: arguments.layout.ranks])
    wanted = request(arguments.strategy, arguments.layout, arguments.epochs, arguments.seconds)
    found: dict[bool, list[dict]] = {False: [], True: []}
    for match in range(arguments.matches):
        for sampled in (False, True)[:: 1 if match % 2 == 0 else -1]:
            with tempfile.TemporaryDirectory() as folder:
                found[sampled].append(train(wanted, arguments.split, sampled, Path(folder)))
    plain, beside = ([run["seconds"] for run in found[sampled]] for sampled in (False, True))
    print(f"without the sampler: {spread(plain)} s")
    print(f"with it every {arguments.seconds:g} s: {spread(beside)} s")
    print(f"ratio of the medians: {statistics.median(beside) / statistics.median(plain):.4f}")
    print(
        f"ratios, match by match: {spread([b / p for b, p in zip(beside, plain, strict=True)], 4)}"
    )
    used = [run["sampler_percent"] for run in found[True] if run["sampler_percent"] is not None]
    print(
        f"the sampler used {spread(used)} % of a core" if used else "too short to see the sampler"
    )
    for entry in found[True][-1]["summaries"]:
        print(entry)


if __name__ == "__main__":
    main()
