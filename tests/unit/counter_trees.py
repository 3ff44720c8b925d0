"""Made-up trees of energy counters, as the kernel and Cray lay them out."""

from __future__ import annotations

import os
import threading
import time
from contextlib import suppress
from pathlib import Path

#: The value at which most packages begin again with 0, in µJ.
RANGE = 262_143_328_850


class Tree:
    """A folder like /sys whose counters grow when `grow` is called."""

    def __init__(self, root: Path):
        self.root = root
        self._counters: dict[Path, tuple[float, float, int | None]] = {}

    def zone(self, number: str, name: str, watts: float, start: float = 0, most: int = RANGE):
        """Add a RAPL zone such as `0` or `0:2`; `start` and `most` are in µJ."""
        folder = self.root / "class/powercap" / f"intel-rapl:{number}"
        folder.mkdir(parents=True)
        (folder / "name").write_text(f"{name}\n")
        (folder / "max_energy_range_uj").write_text(f"{most}\n")
        self._counters[folder / "energy_uj"] = (watts * 1e6, start, most)
        self.grow(0)
        return folder / "energy_uj"

    def cray(self, name: str, watts: float, start: float = 0):
        """Add a file of pm_counters such as `accel0_energy`; `start` is in J."""
        path = self.root / "cray/pm_counters" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        self._counters[path] = (watts, start, None)
        self.grow(0)
        return path

    def sockets(self, *packages: int):
        for cpu, package in enumerate(packages):
            folder = self.root / f"devices/system/cpu/cpu{cpu}/topology"
            folder.mkdir(parents=True)
            (folder / "physical_package_id").write_text(f"{package}\n")

    def grow(self, seconds: float) -> None:
        """Let every counter that still exists grow; each wraps at its range."""
        for path, (per_second, value, most) in self._counters.items():
            value += per_second * seconds
            if most is not None and value >= most:
                value -= most
            self._counters[path] = (per_second, value, most)
            if seconds == 0 or path.exists():
                unit = "" if most is not None else " J 1700000000000000 us"
                _overwrite(path, f"{int(value):015d}{unit}\n")

    def set(self, path: Path, value: float) -> None:
        """Set a counter, as a reset does."""
        per_second, _, most = self._counters[path]
        self._counters[path] = (per_second, value, most)


def _overwrite(path: Path, text: str) -> None:
    """Write a text as long as the one before it, so that a reader sees one of the two."""
    with suppress(PermissionError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
        os.pwrite(descriptor, text.encode(), 0)
        os.close(descriptor)


class Growing(threading.Thread):
    """Lets a tree grow with the time, in the background."""

    def __init__(self, tree: Tree):
        super().__init__(daemon=True)
        self._tree, self._ended = tree, threading.Event()

    def __enter__(self) -> Growing:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()

    def run(self) -> None:
        before = time.monotonic()
        while not self._ended.wait(0.01):
            now = time.monotonic()
            self._tree.grow(now - before)
            before = now


def two_packages(root: Path) -> Tree:
    """Return a node of two packages with memory, and zones whose energy others contain."""
    tree = Tree(root)
    tree.sockets(0, 0, 1, 1)
    tree.zone("0", "package-0", 100)
    tree.zone("0:0", "core", 60)
    tree.zone("0:1", "dram", 10)
    tree.zone("1", "package-1", 50)
    tree.zone("1:0", "dram", 5)
    tree.zone("2", "psys", 300)
    mmio = root / "class/powercap/intel-rapl-mmio:0"
    mmio.mkdir()
    (mmio / "name").write_text("package-0\n")
    return tree
