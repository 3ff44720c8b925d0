"""Measure what sampling the energy of a node costs the ranks, in matches with and without sampling.

What is compared is what runs report, the training seconds. On a machine without counters, made-up
ones grow ten times a second during both runs of a match. Prints the ratio with : without of the
matches, with its 95 % interval.
"""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

from benchmarks import probed
from escala.analysis.statistics import VALUES_FOR_INTERVAL, ratio_interval
from escala.probes import energy

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


def main() -> None:
    parser = probed.parser(__doc__.split("\n\n")[0], energy.SAMPLE_SECONDS)
    parser.add_argument("--sysfs", type=Path, help="in place of made-up counters")
    arguments = parser.parse_args()
    if arguments.matches < VALUES_FOR_INTERVAL:
        parser.error(f"an interval needs {VALUES_FOR_INTERVAL} matches")
    with tempfile.TemporaryDirectory() as tree:
        sysfs = str(arguments.sysfs or MadeUp(Path(tree)).root)
        settings, ratios = {"repeats": 1, "cool_down_seconds": 0, "sysfs": sysfs}, []
        for runs in probed.matches(arguments, "energy", **settings):
            without, beside = (run["seconds"]["train"] for run in runs)
            ratios.append(beside / without)
            print(f"{without:.2f} s without, {beside:.2f} s with", flush=True)
    ratio = ratio_interval(ratios)
    print(
        f"ratio with : without, every {arguments.seconds:g} s: {ratio.estimate:.4f} "
        f"({ratio.low:.4f} to {ratio.high:.4f}, {len(ratios)} matches)"
    )


if __name__ == "__main__":
    main()
