"""Core time and page faults of training steps: read, recorded, tabled, and said on the page."""

from __future__ import annotations

import mmap
import subprocess
import sys

import pytest
from fixtures_runs import FakeExperiment, changed
from pages import tabled
from sentences import check

from escala.core import proc
from escala.core.files import read_json
from escala.core.proc import Usage
from escala.programs.marks import Epoch
from escala.record.schema import validate_run
from escala.report.findings import why
from escala.report.findings.context import Report
from escala.training.by_program import _used

pytestmark = pytest.mark.usefixtures("few_resamples")

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
    assert _used(samples, epochs) == {
        "minor_faults": 500, "user_seconds": pytest.approx(2.5),
        "system_seconds": pytest.approx(0.5), "steps": pytest.approx(4.0),
    }  # fmt: skip
    assert _used(samples[:3], epochs) is None
    assert _used(samples, [epoch(0, 20, 0)])["steps"] is None
    assert _used([(12, Usage(5, 1.0, 1.0)), (15, Usage(4, 1.0, 1.0))], epochs) is None


def used(system: float, faults: int, steps: int | None = 10) -> dict:
    return {
        "minor_faults": faults, "user_seconds": 2.0 - system, "system_seconds": system,
        "steps": steps,
    }  # fmt: skip


@pytest.fixture
def made(tmp_path) -> FakeExperiment:
    experiment = FakeExperiment(tmp_path).add_dataset()
    return experiment.add("single", "1x1", 10.0).add("horovod-mpi", "1x2", 5.0)


def test_the_table_has_the_kernel_s_part_and_the_faults_of_all_ranks(made):
    changed(made.runs, usage=[used(0.5, 1000), used(0.3, 3000)])
    validate_run(read_json(made.runs[0]))
    tables = tabled(made)
    for name in ("runs", "configurations"):
        row = tables[name].iloc[0]
        assert row["kernel_fraction"] == pytest.approx(0.8 / 4.0)
        assert row["core_seconds_per_step"] == pytest.approx(4.0 / 10)
        assert row["faults_per_step"] == pytest.approx(400)
    changed(made.runs, usage=[used(0.5, 1000, steps=None)])
    row = tabled(made)["runs"].iloc[0]
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
    findings = list(why.memory(Report(tabled(made))))
    check(findings)
    found = [each.text for each in findings]
    assert bool(found) == said
    if said:
        assert "`single 1x1" in found[0] and "20 %" in found[0] and "10000 page" in found[0]
        assert "`keep_memory: false`" in found[1] and len(found) == 2


def test_older_runs_say_nothing(made):
    assert not list(why.memory(Report(tabled(made))))
