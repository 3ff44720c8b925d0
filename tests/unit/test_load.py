"""The load of a machine, from made-up trees of the kernel's files, and what training uses."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from fixtures_runs import FakeExperiment, changed
from pages import table_of, tabled
from sentences import check

from escala.core import load, proc
from escala.core.files import read_json
from escala.core.proc import Usage
from escala.programs.marks import Epoch
from escala.record.disturbance import THRESHOLD_CORES, disturbance, with_stops
from escala.record.schema import validate_run
from escala.report.findings import why, write
from escala.report.findings.context import Report
from escala.training.by_program import _usage

TICK = load.TICK_SECONDS


class Kernel:
    """A tree like /proc, with a control group; all numbers are in seconds."""

    def __init__(self, root: Path):
        self.proc, self.groups = root / "proc", root / "groups"
        self.now, self.clocks = 0.0, {}
        for folder in (self.proc / "self", self.groups / "cpu/job"):
            folder.mkdir(parents=True)
        (self.proc / "self/cgroup").write_text("2:cpu,cpuacct:/job\n")

    def says(self, user=0.0, idle=0.0, iowait=0.0, irq=0.0, softirq=0.0, steal=0.0) -> None:
        """Write the counts of two cores, as the kernel cuts them to ticks."""
        counts = [user, 0, 0, idle, iowait, irq, softirq, steal, 0, 0]
        words = " ".join(str(int(each / TICK + 1e-6)) for each in counts)
        (self.proc / "stat").write_text(f"cpu  {words}\ncpu0 {words}\ncpu1 {words}\nintr 1 2 3\n")

    def process(self, pid: int, own: float, children: float = 0.0) -> None:
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        times = [round(each / TICK) for each in (own, 0, children, 0)]
        fields = ["S", 1, 1, 1, 0, -1, 0, 7, 7, 6, 0, *times, 20, 0, 1, 0, 5]
        (folder / "stat").write_text(f"{pid} (a b) c) {' '.join(map(str, fields))}\n")
        self.clocks[pid] = own

    def read(self, *pids: int) -> dict:
        return load.read(
            pids, self.proc, self.groups, lambda: self.now, lambda pid: self.clocks.get(pid, 0.0)
        )


def test_what_the_kernel_counts_is_read_in_seconds(tmp_path):
    kernel = Kernel(tmp_path)
    kernel.says()
    before = kernel.read()
    kernel.now = 50.0
    # What programs computed is not asked for: it is sampled.
    kernel.says(user=7, idle=60, iowait=3, irq=1, softirq=2, steal=4)
    kernel.process(7, own=4.0005, children=1)
    kernel.process(8, own=2)
    (kernel.groups / "cpu/job/cpu.stat").write_text("nr_throttled 3\nthrottled_time 500000000\n")
    (kernel.groups / "cpu/cpu.stat").write_text("throttled_time 250000000\n")
    found = kernel.read(7, 8, 9)
    # Interrupts count for nobody: they may serve the run.
    grown = load.difference(found, before | {"throttled": 0})
    assert (grown["busy"], grown["steal"]) == (pytest.approx(2 * 50 - 60 - 3 - 1 - 2 - 4), 4)
    assert grown["counted"] == pytest.approx(77)
    assert (found["own"], found["throttled"]) == (pytest.approx(7.0005), 0.75)


def test_what_cannot_be_read_is_unavailable_and_version_2_of_groups_counts_otherwise(tmp_path):
    found = load.read([1], tmp_path, tmp_path)
    unknown = {"busy", "counted", "steal", "throttled"}
    assert {name for name, value in found.items() if value is None} == unknown
    (tmp_path / "stat").write_text("cpu  1 2\n")
    assert load.read([], tmp_path, tmp_path)["busy"] is None
    kernel = Kernel(tmp_path)
    (kernel.proc / "self/cgroup").write_text("0::/job\n")
    (kernel.groups / "job").mkdir()
    (kernel.groups / "job/cpu.stat").write_text("usage_usec 1\nthrottled_usec 250000\n")
    assert kernel.read()["throttled"] == 0.25


def test_a_process_that_ends_counts_through_its_parent(tmp_path):
    kernel = Kernel(tmp_path)
    kernel.process(7, own=1)
    kernel.process(8, own=2)
    before = kernel.read(7, 8)
    (kernel.proc / "8/stat").unlink()
    del kernel.clocks[8]
    kernel.process(7, own=1, children=5)
    assert load.difference(kernel.read(7, 8), before)["own"] == pytest.approx(3)


def process(boot: str = "b", host: str = "h", **changes: float | None) -> dict:
    found = {
        "seconds": 10.0, "busy": 12.0, "counted": 20.0, "own": 12.0, "steal": 0.0,
        "throttled": 0.0, "stretches": 1, "cores": 2,
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
        # None of them alone is above the limit.
        ({"busy": 12.7, "steal": 0.6}, True,
         "0.07 core of other processes and 0.06 core taken by other virtual machines"),
        ({"busy": 11.9}, False, None),
        ({"busy": None}, None, "h: /proc/stat cannot be read"),
        ({"counted": 0.0}, None, "h: /proc/stat does not count what the cores do"),
        ({"busy": None, "steal": 3.0}, True, "0.30 core taken by other virtual machines"),
        ({"throttled": None}, False, None),
    ],
)  # fmt: skip
def test_a_run_is_disturbed_by_cores_that_are_not_its_own(changes, disturbed, reason):
    found = disturbance([process(**changes), {"boot": "b", "host": "h"}])
    assert (found["disturbed"], found["reason"]) == (disturbed, reason)
    [node] = found["nodes"]
    known = [node[f"{name}_cores"] or 0 for name in ("foreign", "steal", "throttled")]
    assert node["taken_cores"] == pytest.approx(sum(known))
    assert (node["taken_cores"] > node["limit_cores"]) == bool(disturbed)


def test_a_large_machine_may_give_a_fraction_of_its_cores_to_its_services():
    many = {"cores": 64, "counted": 640.0, "busy": 13.5}
    assert not disturbance([process(**many)])["disturbed"]
    assert disturbance([process(**many | {"busy": 20.0})])["disturbed"]


def test_the_error_is_three_standard_deviations_of_what_the_kernel_cuts():
    random, seconds, stretches = np.random.default_rng(1), 0.2, 9
    begun, took = random.random((2, 20000, stretches * 5))
    cut = np.floor(begun + took) - np.floor(begun) - took
    [node] = disturbance([process(seconds=seconds, stretches=stretches, counted=0.4)])["nodes"]
    assert node["limit_cores"] > THRESHOLD_CORES
    error = 3 * cut.sum(axis=1).std() * TICK / seconds
    assert node["limit_cores"] == pytest.approx(error, rel=0.02)


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
    found, seconds = reader.sums, reader.sums["seconds"]
    assert (found["own"] > 0.1 * seconds) == own
    if not own:
        assert found["busy"] - found["own"] > THRESHOLD_CORES * seconds


def test_a_run_with_a_stopped_process_is_disturbed_whatever_its_cores_did():
    for before in (False, None, True):
        found = {"disturbed": before, "reason": "0.50 core" if before is not False else None}
        assert with_stops(found, 0.0) == found
        stopped = with_stops(found, 4.0)
        assert stopped["disturbed"] is True and "stopped for 4.0 s" in stopped["reason"]
        assert ("0.50 core" in stopped["reason"]) == (before is True)


PAGES = 2000


def touch(pages: int) -> None:
    with mmap.mmap(-1, pages * mmap.PAGESIZE) as memory:
        memory.madvise(mmap.MADV_NOHUGEPAGE)
        for page in range(pages):
            memory[page * mmap.PAGESIZE] = 1


def test_pages_that_this_process_first_writes_to_are_counted():
    before = proc.usage_of_self()
    touch(PAGES)
    grown = proc.usage_of_self().since(before)
    assert PAGES <= grown.minor_faults < 2 * PAGES
    assert min(grown) >= 0 and grown.user_seconds + grown.system_seconds > 0


TREE = f"""
import mmap, os, sys
def touch():
    memory = mmap.mmap(-1, {PAGES} * mmap.PAGESIZE)
    memory.madvise(mmap.MADV_NOHUGEPAGE)
    for page in range({PAGES}):
        memory[page * mmap.PAGESIZE] = 1
if os.fork():
    print(flush=True)
    os.read(0, 1)
    os.wait()
    print(flush=True)
    os.read(0, 1)
else:
    os.read(0, 1)
    touch()
"""


def test_what_a_program_starts_is_counted_also_after_it_ended():
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", TREE], **pipes) as started:
        started.stdout.readline()
        before = proc.total_usage(proc.family_usage(started.pid))
        started.stdin.write(b"12")
        started.stdin.flush()
        started.stdout.readline()
        grown = proc.total_usage(proc.family_usage(started.pid)).since(before)
        started.stdin.write(b"3")
    assert PAGES <= grown.minor_faults < 3 * PAGES
    assert proc.total_usage(proc.family_usage(started.pid)) == Usage(0, 0.0, 0.0)


def epoch(began: float, ended: float, steps: int) -> Epoch:
    return Epoch(began, ended, [ended] * steps, made=[1] * steps)


def test_of_a_program_the_epochs_that_count_are_counted():
    epochs = [epoch(0, 10, 5), epoch(10, 20, 8)]
    # Before the second epoch, within it, and after it.
    samples = [(t, Usage(100 * t, 0.5 * t, 0.1 * t)) for t in (1, 9, 12, 15, 17, 30)]
    assert _usage(samples, epochs) == {
        "minor_faults": 500, "user_seconds": pytest.approx(2.5),
        "system_seconds": pytest.approx(0.5), "steps": pytest.approx(4.0),
    }  # fmt: skip
    assert _usage(samples[:3], epochs) is None
    assert _usage(samples, [epoch(0, 20, 0)])["steps"] is None
    assert _usage([(12, Usage(5, 1.0, 1.0)), (15, Usage(4, 1.0, 1.0))], epochs) is None


def used(system: float, faults: int, steps: int | None = 10) -> dict:
    return {
        "minor_faults": faults, "user_seconds": 2.0 - system, "system_seconds": system,
        "steps": steps,
    }  # fmt: skip


@pytest.fixture
def made(few_resamples, tmp_path) -> FakeExperiment:
    experiment = FakeExperiment(tmp_path).add_dataset()
    return experiment.add("single", "1x1", 10.0).add("horovod-mpi", "1x2", 5.0)


def test_the_table_has_the_kernel_s_part_and_the_faults_of_all_ranks(made):
    assert not list(why.memory(Report(tabled(made)))), "older runs say nothing"
    changed(made.runs, usage=[used(0.5, 1000), used(0.3, 3000)])
    validate_run(read_json(made.runs[0]))
    tables = tabled(made)
    for name in ("runs", "configurations"):
        row = tables[name].iloc[0]
        assert row["kernel_fraction"] == pytest.approx(0.8 / 4.0)
        assert row["core_seconds_per_step"] == pytest.approx(4.0 / 10)
        assert row["faults_per_step"] == pytest.approx(400)
    changed(made.runs, usage=[used(0.5, 1000, steps=None)])
    row = table_of("runs", made).iloc[0]
    assert row["kernel_fraction"] == pytest.approx(0.25) and row.isna()["faults_per_step"]


@pytest.mark.parametrize(
    ("system", "number", "said"),
    [
        (0.4, 100_000, True),
        # Little time, and time in the kernel that page faults do not explain.
        (0.02, 100_000, False),
        (0.8, 500, False),
    ],
)
def test_steps_whose_memory_is_cleared_again_are_named_with_what_keeps_it(
    made, system, number, said
):
    changed(made.runs[:3], usage=[used(system, number)])
    report = Report(tabled(made))
    findings = list(write(why.memory, report, report))
    check(findings)
    found = [each.text for each in findings]
    assert bool(found) == said
    if said:
        assert "`single 1x1" in found[0] and "20 %" in found[0] and "10000 page" in found[0]
        assert "`keep_memory: false`" in found[1] and len(found) == 2
