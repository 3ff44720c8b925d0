"""The load of a machine, read from made-up trees of the kernel's files."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from escala.core import load
from escala.record.disturbance import THRESHOLD_CORES, disturbance

TICK = load.TICK_SECONDS


class Kernel:
    """A tree like /proc, with a control group; all numbers are in seconds."""

    def __init__(self, root: Path):
        self.proc, self.groups = root / "proc", root / "groups"
        for folder in (self.proc / "self", self.proc / "pressure", self.groups / "cpu/job"):
            folder.mkdir(parents=True)
        (self.proc / "self/cgroup").write_text("2:cpu,cpuacct:/job\n")

    def says(self, user=0.0, nice=0.0, system=0.0, softirq=0.0, steal=0.0) -> None:
        counts = [user, nice, system, 1000.0, 5.0, 3.0, softirq, steal, 0.0, 0.0]
        words = " ".join(str(round(each / TICK)) for each in counts)
        (self.proc / "stat").write_text(f"cpu  {words}\ncpu0 {words}\nintr 1 2 3\n")

    def process(self, pid: int, own: float, children: float = 0.0, faults: int = 0) -> None:
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        times = [round(each / TICK) for each in (own, 0, children, 0)]
        fields = ["S", 1, 1, 1, 0, -1, 0, 7, 7, faults, 0, *times, 20, 0, 1, 0, 5]
        (folder / "stat").write_text(f"{pid} (a b) c) {' '.join(map(str, fields))}\n")

    def read(self, *pids: int) -> dict:
        return load.read(pids, self.proc, self.groups)


def test_what_the_kernel_counts_is_read_in_seconds(tmp_path):
    kernel = Kernel(tmp_path)
    kernel.says(user=10, nice=2, system=3, softirq=50, steal=1)
    kernel.process(7, own=4, children=1, faults=6)
    kernel.process(8, own=2)
    (kernel.groups / "cpu/job/cpu.stat").write_text("nr_throttled 3\nthrottled_time 500000000\n")
    (kernel.groups / "cpu/cpu.stat").write_text("throttled_time 250000000\n")
    (kernel.proc / "pressure/cpu").write_text("some avg10=0.00 total=1500000\nfull total=0\n")
    found = kernel.read(7, 8, 9)
    # Interrupts count for nobody: they may serve the run.
    assert (found["busy"], found["steal"]) == (pytest.approx(15), 1)
    assert (found["own"], found["major_faults"]) == (pytest.approx(7), 6)
    assert (found["throttled"], found["pressure"]) == (0.75, 1.5)


def test_version_2_of_control_groups_counts_in_microseconds(tmp_path):
    kernel = Kernel(tmp_path)
    (kernel.proc / "self/cgroup").write_text("0::/job\n")
    (kernel.groups / "job").mkdir()
    (kernel.groups / "job/cpu.stat").write_text("usage_usec 1\nthrottled_usec 250000\n")
    assert kernel.read()["throttled"] == 0.25


def test_what_cannot_be_read_is_unavailable(tmp_path):
    found = load.read([1], tmp_path, tmp_path)
    assert [name for name, value in found.items() if value is None] == [
        "busy", "steal", "throttled", "pressure",
    ]  # fmt: skip
    (tmp_path / "stat").write_text("cpu  1 2\n")
    assert load.read([], tmp_path, tmp_path)["busy"] is None


def test_a_process_that_ends_counts_through_its_parent(tmp_path):
    kernel = Kernel(tmp_path)
    kernel.process(7, own=1)
    kernel.process(8, own=2)
    before = kernel.read(7, 8)
    (kernel.proc / "8/stat").unlink()
    kernel.process(7, own=1, children=5)
    assert load.difference(kernel.read(7, 8), before)["own"] == pytest.approx(3)


def process(boot: str = "b", host: str = "h", **changes: float | None) -> dict:
    found = {
        "seconds": 10.0, "busy": 12.0, "own": 12.0, "steal": 0.0, "throttled": 0.0,
        "pressure": 9.0, "major_faults": 0, "stretches": 1, "cores": 2, "processes": 4,
    }  # fmt: skip
    return {"boot": boot, "host": host, "load": found | changes}


@pytest.mark.parametrize(
    ("changes", "disturbed", "reason"),
    [
        ({}, False, None),
        ({"busy": 19.7, "own": 10.0}, True, "0.97 core of other processes"),
        ({"busy": 12.5}, False, None),
        ({"steal": 3.0}, True, "0.30 core taken by other virtual machines"),
        ({"throttled": 20.0}, True, "2.00 core held back by a quota"),
        # The run's own threads press on each other, and read from the disk.
        ({"pressure": 10.0, "major_faults": 9999}, False, None),
        ({"busy": 11.9}, False, None),
        ({"busy": None}, None, "h: /proc/stat cannot be read"),
        ({"busy": 0.0}, None, "h: /proc/stat does not count what the run computed"),
        ({"busy": None, "steal": 3.0}, True, "0.30 core taken by other virtual machines"),
        ({"throttled": None, "pressure": None}, False, None),
    ],
)
def test_a_run_is_disturbed_by_cores_that_are_not_its_own(changes, disturbed, reason):
    found = disturbance([process(**changes), {"boot": "b", "host": "h"}])
    assert (found["disturbed"], found["reason"]) == (disturbed, reason)


def test_the_ticks_of_a_short_run_raise_no_alarm():
    """Ten stretches of 20 ms, each cut to whole ticks at both ends."""
    changes = {"seconds": 0.2, "stretches": 10, "own": 0.3}
    assert not disturbance([process(busy=0.36, **changes)])["disturbed"]
    assert disturbance([process(**{"seconds": 1.0, "busy": 2.0, "own": 1.0})])["disturbed"]


def test_the_error_is_three_standard_deviations_of_what_the_kernel_counts():
    """Ticks are cut at both ends of a stretch, and those of a busy core are samples."""
    random, seconds, stretches, cores, processes, busy = np.random.default_rng(1), 0.2, 9, 2, 4, 0.6
    begun, took = random.random((2, 20000, stretches * (cores + 2 * processes)))
    cut = np.floor(begun + took) - np.floor(begun) - took
    sampled = random.binomial(round(cores * seconds / TICK), busy, 20000)
    changes = {"seconds": seconds, "stretches": stretches, "busy": busy * cores * seconds}
    [node] = disturbance([process(**changes)])["nodes"]
    deviation = (cut.sum(axis=1) + sampled).std() * TICK / seconds
    assert node["error_cores"] == pytest.approx(3 * deviation, rel=0.02)


def test_nodes_on_one_machine_have_one_load():
    lab = [process(host=f"node{n}", busy=12.0, own=6.0) for n in (1, 2)]
    found = disturbance(lab)
    assert found["disturbed"] is False and len(found["nodes"]) == 1
    apart = disturbance([process("one", "node1"), process("two", "node2", busy=17.0)])
    assert apart["reason"] == "0.50 core of other processes on node2"
    assert disturbance([process("one"), {"boot": "two", "host": "x"}])["disturbed"] is None


BUSY = "import time\nend = time.monotonic() + {seconds}\nwhile time.monotonic() < end: pass"


@pytest.mark.parametrize("own", [True, False])
def test_a_busy_process_is_own_or_foreign(own):
    """Others may compute meanwhile: only what this process adds can be told."""
    busy = subprocess.Popen([sys.executable, "-c", BUSY.format(seconds=30)])
    try:
        deadline = time.monotonic() + 20
        while load.read([busy.pid])["own"] < 0.2 and time.monotonic() < deadline:
            time.sleep(0.05)
        reader = load.Load([os.getpid() if own else busy.pid + 10**7])
        reader.begin()
        time.sleep(1.0)
        reader.end()
    finally:
        busy.kill()
        busy.wait()
    found, seconds = reader.found, reader.found["seconds"]
    assert (found["own"] > 0.1 * seconds) == own
    if not own:
        assert found["busy"] - found["own"] > THRESHOLD_CORES * seconds
