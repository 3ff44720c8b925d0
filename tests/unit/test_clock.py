"""Durations and moments do not follow the time of day when it is set."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import time

import pytest

from escala.core import proc
from escala.probes._sampler import announce
from escala.probes.clocks import to_epoch
from escala.probes.resources import Rank
from escala.record import run
from escala.training import process

HOUR = 3600.0


@pytest.fixture
def set_clock(monkeypatch):
    """Set the time of day forward or back, as far as Python tells it."""
    real = time.time

    def by(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: real() + seconds)

    return by


@pytest.mark.parametrize("step", [-HOUR, 0, HOUR])
def test_startup_is_the_age_of_the_process(set_clock, step):
    set_clock(step)
    ps = subprocess.run(
        ["ps", "-o", "etimes=", "-p", str(os.getpid())], capture_output=True, text=True, check=True
    )
    assert process.startup_seconds(0, 1) == pytest.approx(int(ps.stdout), abs=5)


def test_a_process_began_before_its_children():
    child = subprocess.Popen(["sleep", "60"])
    now = time.clock_gettime(time.CLOCK_BOOTTIME)
    try:
        assert proc.started() < proc.started(child.pid) <= now
    finally:
        child.kill()
        child.wait()
    with pytest.raises((FileNotFoundError, ProcessLookupError)):
        proc.started(child.pid)


@pytest.mark.parametrize("step", [-HOUR, HOUR])
@pytest.mark.parametrize("within", [False, True], ids=["between-steps", "within-a-step"])
def test_moments_of_steps_go_on_where_the_clock_is_set(set_clock, tmp_path, step, within):
    tf = pytest.importorskip("tensorflow")
    from escala.engines.tensorflow.record_clocks import Moments
    from escala.probes.clocks import RETURNED, STEP_BEGINS

    kernel = tf.Variable([1.0], name="kernel")
    clocks = Moments(tmp_path / "clocks.csv", [kernel], inside=True)
    before = time.time()
    for number in (1, 2, 3):
        if number == 2 and not within:
            set_clock(step)
        began = gathered = time.perf_counter()
        stamps = [time.time()]
        if number == 2 and within:
            set_clock(step)
        stamps += [time.time() for _ in range(3)]
        clocks._stamps.assign(stamps)
        clocks.note(1, number, began, gathered, time.perf_counter())
    clocks.write()
    with open(tmp_path / "clocks.csv") as handle:
        rows = list(csv.DictReader(handle))
    moments = [float(row["seconds"]) for row in rows]
    assert before - 1 <= min(moments) <= max(moments) <= before + 60
    for number in ("1", "2", "3"):
        moment_seconds = {
            row["moment"]: float(row["seconds"]) for row in rows if row["step"] == number
        }
        assert (
            moment_seconds[STEP_BEGINS]
            <= moment_seconds["updated"]
            <= moment_seconds[RETURNED] + 1e-3
        )


def test_a_process_that_loses_its_core_between_two_readings_knows_the_time_of_day(monkeypatch):
    """Of the pairs of readings, the first and the third are 4 ms apart."""
    readings = iter([1000.0, 10.004, 1000.01, 10.01, 1000.02, 10.024])
    monkeypatch.setattr(time, "time", lambda: next(readings))
    monkeypatch.setattr(time, "perf_counter", lambda: next(readings))
    assert to_epoch() == pytest.approx(990, abs=1e-6)


def test_a_rank_that_is_made_slow_does_not_sleep_for_a_step_of_the_clock(set_clock, monkeypatch):
    tf = pytest.importorskip("tensorflow")
    from escala.engines.tensorflow import step

    slept = []
    monkeypatch.setattr(step.time, "sleep", slept.append)

    def compute(value):
        set_clock(HOUR)
        return value + 1.0

    assert step.slow_down(compute, 2.0)(tf.constant(1.0)).numpy() == 2.0
    assert 0 < sum(slept) < 60


def test_samples_of_resources_are_told_by_a_clock_that_nobody_sets(set_clock, tmp_path):
    announce(tmp_path, 0, 0)
    announced = json.loads((tmp_path / "rank0.pid").read_text())
    set_clock(HOUR)
    mine = Rank(0, announced["pid"], announced["started"])
    before = time.monotonic()
    row = mine.row("lo")
    assert before - 1e-3 <= float(row["seconds"]) <= time.monotonic()


def test_a_result_that_is_not_valid_is_a_failed_run_and_kept(
    small_split, request_for, tmp_path, monkeypatch
):
    collect = run.collect

    def wrong(plan, data, folder):
        outcome = collect(plan, data, folder)
        outcome.found["seconds"] |= {"startup": -3.0, "loading": float("nan")}
        return outcome

    monkeypatch.setattr(run, "collect", wrong)
    request = request_for("single", "1x1", workload="majority")
    outcome = run.measure(request, small_split, tmp_path / "run.json", 300)
    assert outcome.status == "failed"
    assert "run.invalid.json holds what was measured" in outcome.reason
    result = json.loads((tmp_path / "run.json").read_text())
    assert (result["status"], result["reason"]) == ("failed", outcome.reason)
    assert result["evaluation"] is result["seconds"] is None
    kept = json.loads((tmp_path / "run.invalid.json").read_text())
    assert kept["evaluation"]["rows"] == 69
    assert (tmp_path / "predictions.npy").exists()
