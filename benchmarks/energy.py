"""Measure what sampling the energy of a node costs the ranks, in matches with and without sampling.

The sampler, as all else of a run, may use only the cores that the ranks use: the worst case. The
two of a match follow each other, now one first and now the other. What is compared is what runs
report, the training seconds. On a machine without counters, made-up ones grow ten times a second
during both runs of a match. Prints the ratio with : without of the matches, with its 95 % interval.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
from pathlib import Path

from escala.analysis.statistics import VALUES_FOR_INTERVAL, ratio_interval
from escala.core.arguments import above_zero, whole_number
from escala.core.files import read_json
from escala.core.hardware import available_cores
from escala.experiment import Experiment, read
from escala.experiment.files import ROOT
from escala.probes import energy
from escala.record.run import measure
from escala.runtime.layout import Layout

TIME_LIMIT_SECONDS = 3600
#: Of the made-up counters: joules, seconds between two updates, and the range in µJ.
_STEP_JOULES, _STEP_SECONDS, _RANGE = 10, 0.1, 262_143_328_850


class MadeUp:
    """A tree like /sys with the counters of a package and its memory."""

    def __init__(self, root: Path):
        self.root, self._ended, self._files = root, threading.Event(), []
        for zone, name in (("0", "package-0"), ("0:0", "dram")):
            folder = root / "class" / "powercap" / f"intel-rapl:{zone}"
            folder.mkdir(parents=True)
            (folder / "name").write_text(name)
            (folder / "max_energy_range_uj").write_text(str(_RANGE))
            self._files.append(os.open(folder / "energy_uj", os.O_WRONLY | os.O_CREAT))
        self._write(0)
        threading.Thread(target=self._grow, daemon=True).start()

    def _grow(self) -> None:
        joules = 0
        while not self._ended.wait(_STEP_SECONDS):
            joules += _STEP_JOULES
            self._write(joules)

    def _write(self, joules: int) -> None:
        for file in self._files:
            os.pwrite(file, f"{joules * 1_000_000 % _RANGE:015d}\n".encode(), 0)


def request(strategy: str, layout: Layout, epochs: int, settings: dict) -> dict:
    """Return the request of an energy run: the default experiment's, of another configuration."""
    changed = read(ROOT / "config.yaml") | {
        "workloads": {"virus-cnn": {"epochs": epochs}},
        "configurations": [{"strategy": strategy, "layouts": [str(layout)], "variants": ["tuned"]}],
        "references": [{"strategy": strategy, "layout": str(layout), "variant": "tuned"}],
        "energy": {"repeats": 1, "cool_down_seconds": 0} | settings,
    }
    experiment = Experiment(changed, "config.yaml")
    wanted = experiment.request(experiment.instrumented("energy")[0])
    return wanted | {"training": wanted["training"] | {"epochs": epochs}}


def train(wanted: dict, split: Path, sampled: bool, folder: Path) -> dict:
    """Train once and return the run."""
    if not sampled:
        wanted = wanted | {"instrument": None, "probe_settings": None}
    outcome = measure(wanted, split, folder / "run.json", TIME_LIMIT_SECONDS)
    if outcome.status != "ok":
        raise SystemExit(outcome.reason)
    return read_json(folder / "run.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("split", type=Path, help="folder of a split, with train.npy")
    parser.add_argument("--strategy", default="single", help="default: %(default)s")
    parser.add_argument("--layout", type=Layout.parse, default=Layout(1, 1), help="such as 1x2")
    parser.add_argument(
        "--epochs", type=whole_number, default=3, help="of a run; default: %(default)s"
    )
    parser.add_argument(
        "--pairs", type=whole_number, default=7, help="six or more; default: %(default)s"
    )
    parser.add_argument(
        "--seconds",
        type=above_zero,
        default=energy.SAMPLE_SECONDS,
        help="between two samples; default: %(default)s",
    )
    parser.add_argument("--sysfs", type=Path, help="default: made-up counters")
    arguments = parser.parse_args()
    if arguments.matches < VALUES_FOR_INTERVAL:
        parser.error(f"an interval needs {VALUES_FOR_INTERVAL} matches")
    os.sched_setaffinity(0, available_cores()[: arguments.layout.ranks])
    with tempfile.TemporaryDirectory() as tree:
        sysfs = arguments.sysfs or MadeUp(Path(tree)).root
        settings = {"seconds": arguments.seconds, "sysfs": str(sysfs)}
        wanted = request(arguments.strategy, arguments.layout, arguments.epochs, settings)
        ratios = []
        for match in range(arguments.matches):
            seconds = {}
            for sampled in (False, True)[:: 1 if match % 2 == 0 else -1]:
                with tempfile.TemporaryDirectory() as folder:
                    run = train(wanted, arguments.split, sampled, Path(folder))
                    seconds[sampled] = run["seconds"]["train"]
            ratios.append(seconds[True] / seconds[False])
            print(f"{seconds[False]:.2f} s without, {seconds[True]:.2f} s with", flush=True)
    ratio = ratio_interval(ratios)
    print(
        f"ratio with : without, every {arguments.seconds:g} s: {ratio.estimate:.4f} "
        f"({ratio.low:.4f} to {ratio.high:.4f}, {len(ratios)} matches)"
    )


if __name__ == "__main__":
    main()
