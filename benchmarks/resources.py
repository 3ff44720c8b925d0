"""Measure what sampling costs the ranks, in matches of the same training with and without it.

What is compared is what runs report, the training seconds. Prints the ratio with : without of the
medians, and of every match; beside it what the sampler says of the ranks, and the processor time it
took itself.
"""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from pathlib import Path

import psutil

from benchmarks import probed
from benchmarks.common import spread
from escala.probes import resources

#: Between two looks at the sampler, which take as long with it as without.
WATCH_SECONDS = 2.0


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
        """Return the percent of a core between the first and the last look; None without two."""
        if len(self._moments) < 2:
            return None
        (began, before), (ended, after) = self._moments[0], self._moments[-1]
        return 100 * (after - before) / (ended - began)


def main() -> None:
    arguments = probed.parser(__doc__.split("\n\n")[0], resources.SAMPLE_SECONDS).parse_args()
    watches: list[Watch] = []

    def watch(folder: Path) -> Watch:
        watches.append(Watch(folder / "ranks"))
        return watches[-1]

    found = list(probed.matches(arguments, "resources", watch))
    plain, beside = (
        [sum(epoch["train_seconds"] for epoch in run["epochs"]) for run in runs]
        for runs in zip(*found, strict=True)
    )
    print(f"without the sampler: {spread(plain)} s")
    print(f"with it every {arguments.seconds:g} s: {spread(beside)} s")
    print(f"ratio of the medians: {statistics.median(beside) / statistics.median(plain):.4f}")
    ratios = [one / other for one, other in zip(beside, plain, strict=True)]
    print(f"ratios, match by match: {spread(ratios)}")
    used = [each.percent for each in watches if each.percent is not None]
    print(
        f"the sampler used {spread(used)} % of a core" if used else "too short to see the sampler"
    )
    for entry in found[-1][1]["resources"]:
        print(entry)


if __name__ == "__main__":
    main()
