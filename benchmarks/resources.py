"""What sampling the ranks costs them: pairs of the same training with and without the sampler.

The sampler may use only the cores that the ranks use: the worst case. The two of a pair follow each
other, now one first and now the other. What is compared is what runs report, the training seconds
of the slowest rank. Prints the ratio with : without of the medians, and of every pair; beside it
what the sampler says of the runs, and the processor time it took itself.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

import psutil

from escala.files import read_json, write_json
from escala.measure import resources
from escala.parallel import children, launch
from escala.parallel import rank as ranks
from escala.parallel.layout import Layout, assign_cores, available_cores

AS_RANK = "--as-rank"


def request(split: Path, strategy: str, layout: Layout, epochs: int) -> dict:
    """Return what ranks read: the training of the demo's settings, one core each."""
    knobs = {
        "cores_per_process": 1,
        "threads": {"intra_op": 1, "inter_op": 1},
        "sparse_as_dense": True,
        "yield_when_idle": True,
    }
    training = {"epochs": epochs, "validate": False, "tensorboard": False, "save_model": False}
    return {
        "kind": "gradient",
        "workload": "virus-cnn",
        "strategy": strategy,
        "ranks": layout.ranks,
        "cores": assign_cores(layout.processes, 1, available_cores()),
        "knobs": knobs,
        "training": training,
        "data": str(split.resolve()),
        "classes": list(read_json(split / "dataset.json")["classes"]),
        "global_batch": 32,
        "learning_rate": 0.001,
        "seed": 0,
        "shuffle_seed": 0,
        "max_steps": None,
    }


def as_rank(request_file: Path) -> int:
    """Be a rank that the sampler knows of."""
    resources.announce(request_file.parent, launch.rank_of_environment(), 0)
    return ranks.main(str(request_file))


def train(
    wanted: dict, layout: Layout, interface: str, seconds: float | None, folder: Path
) -> dict:
    """Train once, sampled every `seconds` if given.

    Returns
    -------
    The training seconds, and, if sampled, the ranks' `summaries` and the `sampler_percent` of a
    core that the sampler took once it had started.
    """
    write_json(folder / "request.json", wanted)
    environment = launch.environment(wanted["strategy"], wanted["knobs"])
    command = [sys.executable, __file__, AS_RANK, str(folder / "request.json")]
    processes, sampler = [], None
    with launch.launcher(wanted["strategy"])(command, layout, environment) as commands:
        try:
            processes = [children.start(*one, folder / "launcher.log") for one in commands]
            if seconds:
                sampler = Sampler(wanted, interface, seconds, folder)
            codes = [process.wait() for process in processes]
        finally:
            children.stop(processes)
    if any(codes):
        raise SystemExit((folder / "rank0.log").read_text() + (folder / "launcher.log").read_text())
    measured = [read_json(folder / f"rank{r}.json") for r in range(layout.ranks)]
    found = {"seconds": max(sum(e["train_seconds"] for e in one["epochs"]) for one in measured)}
    if sampler:
        found["sampler_percent"] = sampler.end()
        found["summaries"] = resources.summary(resources.read(folder))
    return found


class Sampler:
    """A sampler on the cores of the ranks, and the processor time it takes once it has started."""

    def __init__(self, wanted: dict, interface: str, seconds: float, folder: Path):
        cores = ",".join(str(core) for core in sorted(set().union(*wanted["cores"])))
        options = ["--node", "0", "--interface", interface, "--seconds", str(seconds)]
        module = [sys.executable, "-m", "escala.measure.resources", str(folder), *options]
        command = ["taskset", "--cpu-list", cores, *module]
        self._log = folder / "sampler.log"
        self._process = children.start(command, os.environ, self._log)
        while not (folder / "node0.resources.csv").exists() and self._process.poll() is None:
            time.sleep(0.1)
        self._began = time.monotonic()
        self._before = sum(psutil.Process(self._process.pid).cpu_times()[:2])

    def end(self) -> float:
        """Wait until it has ended, as its ranks have, and return its share of a core in percent."""
        _, status, usage = os.wait4(self._process.pid, 0)
        if status:
            raise SystemExit(self._log.read_text())
        used = usage.ru_utime + usage.ru_stime - self._before
        return 100 * used / (time.monotonic() - self._began)


def spread(values: list[float], digits: int = 3) -> str:
    """Return the median and the range of some values."""
    low, middle, high = (f"{f(values):.{digits}f}" for f in (min, statistics.median, max))
    return f"{middle} ({low} to {high}, n = {len(values)})"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("split", type=Path, help="folder of a split, with train.npy")
    parser.add_argument("--strategy", default="single")
    parser.add_argument("--layout", type=Layout.parse, default=Layout(1, 1), help="such as 1x2")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=resources.SAMPLE_SECONDS)
    parser.add_argument("--interface", default=launch.LOOPBACK)
    arguments = parser.parse_args()
    wanted = request(arguments.split, arguments.strategy, arguments.layout, arguments.epochs)
    without, sampled = [], []
    for pair in range(arguments.pairs):
        for with_sampler in (False, True)[:: 1 if pair % 2 == 0 else -1]:
            seconds = arguments.seconds if with_sampler else None
            with tempfile.TemporaryDirectory() as folder:
                found = train(wanted, arguments.layout, arguments.interface, seconds, Path(folder))
            (sampled if with_sampler else without).append(found)
    plain, beside = ([found["seconds"] for found in runs] for runs in (without, sampled))
    print(f"without the sampler: {spread(plain)} s")
    print(f"with it every {arguments.seconds:g} s: {spread(beside)} s")
    print(f"ratio of the medians: {statistics.median(beside) / statistics.median(plain):.4f}")
    print(f"ratios, pair by pair: {spread([b / p for b, p in zip(beside, plain, strict=True)], 4)}")
    print(f"the sampler used {spread([s['sampler_percent'] for s in sampled])} % of a core")
    for entry in sampled[-1]["summaries"]:
        print(entry)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == [AS_RANK]:
        raise SystemExit(as_rank(Path(sys.argv[2])))
    raise SystemExit(main())
