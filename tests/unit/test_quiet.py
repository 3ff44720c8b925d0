"""The fixed kernel beside a run, and what becomes of matches that stay disturbed."""

from __future__ import annotations

import os

import numpy as np
import pytest
from fixtures_runs import REFERENCES, FakeExperiment, changed, fair
from pages import tabled
from sentences import told

from escala.analysis.comparable import Matched
from escala.analysis.verdicts import FASTER, NO_VERDICT, leave_out_disturbed
from escala.core.files import read_json, write_json
from escala.record import disturbance as module
from escala.record.disturbance import SLOWDOWN, Kernel, with_kernel
from escala.report.findings.answer import first_line
from escala.report.findings.context import Report
from escala.report.findings.words import Names
from escala.runtime.node import Seconds, seconds_of_kernel

MPI = "horovod-mpi"


@pytest.fixture
def judged(monkeypatch, tmp_path):
    """Return a function that judges a run by given times of the kernel before and after it."""
    times: list[list[float]] = []

    def kernels(cores: list[int]) -> list[Seconds]:
        return [Seconds(each / 1000, each / 1000, 0.002) for each in times.pop(0)]

    monkeypatch.setattr(module, "seconds_of_kernel", kernels)

    def judge(before: list[float], after: list[float]) -> dict:
        times.extend([before, before, after, after])
        kernel = Kernel(list(range(len(before))))
        kernel.time()
        kernel.time()
        return kernel.judge(tmp_path / "logs/kernel-s.json")

    return judge


def test_a_core_that_may_not_be_used_or_is_elsewhere_makes_the_kernel_unknown(tmp_path):
    for cores, said in (([0, 10_000], "not timed"), (None, "another machine")):
        kernel = Kernel(cores)
        kernel.time()
        kernel.time()
        found = kernel.judge(tmp_path / "kernel.json")
        assert found["slowdown"] is None and said in found["unavailable"]
        undisturbed = {"disturbed": False, "reason": None}
        assert with_kernel(undisturbed, found)["disturbed"] is False


@pytest.mark.parametrize(("place", "times"), [(0, 1.6), (1, 1.6), (0, 1.1)])
def test_a_slower_core_before_or_after_a_run_disturbs_it(judged, place, times):
    assert judged([50, 30], [51, 30])["slowdown"] is None
    assert judged([50, 30], [49, 30])["slowdown"] is None
    sides = [[50.0, 30.0], [50.0, 30.0]]
    # The core that is the slower one as usual is not slow.
    sides[place][1] *= times
    found = judged(*sides)
    assert found["usual_ms"] == pytest.approx([50, 30])
    assert found["slowdown"] == pytest.approx(times)
    # The usual time is of the same cores.
    for _ in range(3):
        assert judged([80], [80])["slowdown"] in (None, pytest.approx(1))
    for before in (False, None, True):
        reason = "0.50 core of other processes" if before else None
        run = with_kernel({"disturbed": before, "reason": reason}, found)
        assert run["disturbed"] == (True if times > SLOWDOWN else before)
        assert (reason or "") in (run["reason"] or "")


def test_many_cores_have_no_more_chances_to_be_called_slow(judged):
    def times() -> list[float]:
        return (50 * np.exp(random.normal(0, 0.1, 64))).tolist()

    random = np.random.default_rng(3)
    for _ in range(4):
        judged(times(), times())
    found = judged(times(), times())
    slowest = max(found["before_ms"] + found["after_ms"])
    assert slowest / 50 > SLOWDOWN > found["slowdown"]


def disturb(experiment: FakeExperiment, strategy: str, repeats: list[int], **told: object) -> None:
    """Say of the runs of some repeats of a strategy that other work disturbed them."""
    for path in experiment.runs:
        run = read_json(path)
        if run["strategy"] == strategy and run["knobs"]["cores_per_process"] == 1:
            found = {"disturbed": run["repeat"] in repeats, "reason": "others", "nodes": []}
            changed([path], disturbance=found | {"kernel": None, "earlier": []} | told)


def rows_of(experiment: FakeExperiment) -> tuple[dict, dict]:
    """Return the rows of two processes against one in `speedup` and in `best_use`."""
    frames = tabled(experiment, references=REFERENCES, only=["speedup", "best_use"])
    speedup, best = (frames[name].to_dict("records") for name in ("speedup", "best_use"))
    [row] = [
        each
        for each in speedup
        if each["strategy"] == MPI and each["reference"] == 1 and each["decides"]
    ]
    [use] = [each for each in best if each["alternative_variant"] == "tuned"]
    assert use["strategy"] == MPI
    return row, use


@pytest.mark.parametrize("side", [MPI, "single"])
def test_disturbed_matches_are_left_out_whichever_side_was(tmp_path, side):
    experiment = fair(tmp_path, 5.0, 4.0, 3.0, repeats=8)
    for path in experiment.runs:
        run = read_json(path)
        if run["strategy"] == side and run["repeat"] in (2, 5):
            longer = run["seconds"] | {"train": 9 * run["seconds"]["train"]}
            changed([path], seconds=longer)
    disturb(experiment, side, [2, 5])
    for row in rows_of(experiment):
        assert (row["matches"], row["disturbed_matches"], row["stays_disturbed"]) == (6, 2, False)
        assert row["ratio"] == pytest.approx(0.6, abs=0.03)
    assert rows_of(experiment)[0]["verdict"] == FASTER


@pytest.mark.parametrize(
    ("repeats", "disturbed", "decided"),
    [
        (7, 0, True), (7, 1, True),
        # Four are left, and five are needed.
        (7, 2, True), (6, 2, False),
        (9, 3, True),
        # More than a third.
        (12, 4, True), (12, 5, False), (7, 7, False),
    ],
)  # fmt: skip
def test_a_session_that_stays_disturbed_gets_no_verdict(tmp_path, repeats, disturbed, decided):
    experiment = fair(tmp_path, 5.0, 4.0, 3.0, repeats=repeats)
    disturb(experiment, MPI, list(range(1, disturbed + 1)))
    row, use = rows_of(experiment)
    assert row["verdict"] == (FASTER if decided else NO_VERDICT)
    if not disturbed:
        disturb(experiment, MPI, [], disturbed=None)
        assert rows_of(experiment)[0]["verdict"] == FASTER, "of which nothing is known, it is kept"
    assert decided or use["verdict"] == use["run_verdict"] == NO_VERDICT
    for each in (row, use):
        assert each["stays_disturbed"] == (not decided)
        assert each["disturbed_matches"] == disturbed
        assert each["matches"] == (repeats - disturbed if decided else repeats)


@pytest.mark.parametrize(("disturbed", "judged"), [(0, 4), (1, 4), (2, 3)])
def test_a_session_that_stays_disturbed_does_not_count_over_sessions(tmp_path, disturbed, judged):
    """Of four sessions of four matches, one has so many that were disturbed; three are enough."""
    experiment = fair(tmp_path, 5.0, 4.0, 3.0, repeats=4)
    for path in experiment.runs:
        run = read_json(path)
        for month in (1, 2, 3):
            hit = month == 1 and run["repeat"] <= disturbed
            found = {"disturbed": hit, "reason": None, "nodes": [], "kernel": None, "earlier": []}
            older = {"session": f"20250{month}01T000000Z-1", "disturbance": found}
            started = f"2025-0{month}-01T00:00:00+00:00"
            name = path.parent / "sessions" / f"{older['session']}.json"
            write_json(name, run | older | {"started": started})
    for row in rows_of(experiment):
        assert row["sessions"] == judged and row["over_sessions"] and not row["stays_disturbed"]
        assert row["matches"] == 16 - (disturbed if judged == 4 else 4)


def test_the_page_tells_why_there_is_no_verdict_and_what_to_do(tmp_path):
    experiment = fair(tmp_path, 5.0, 4.0, 3.0)
    disturb(experiment, MPI, [1, 2, 3])
    frames = tabled(experiment, references=REFERENCES)
    sure = " ".join(told(frames, "sure"))
    assert "other work disturbed 3 of 7 paired runs to the end" in sure
    assert first_line(*Report(frames).answers, Names()).startswith("no verdict from disturbed runs")
    assert "`--again`" in " ".join(told(frames, "next"))
    disturb(experiment, MPI, [1])
    frames = tabled(experiment, references=REFERENCES)
    assert "no verdict" not in " ".join(told(frames, "sure"))
    assert "Of 7 paired runs of `horovod-mpi 1x2 tuned`, 1 stayed" in " ".join(told(frames, "sure"))
    assert "disturbed runs" not in first_line(*Report(frames).answers, Names())
    # An undisturbed session says what would not be seen.
    for kernel, told_of in ((None, "a slower clock is not seen"), ({"slowdown": 1.02}, "network")):
        quiet = {"disturbed": False, "reason": None, "kernel": kernel, "earlier": []}
        changed(experiment.runs, disturbance=quiet)
        sure = " ".join(told(tabled(experiment, references=REFERENCES), "sure"))
        assert "No disturbance was detected." in sure and told_of in sure
        assert ("a slower clock" in sure) == (kernel is None)
    changed(experiment.runs, disturbance=quiet | {"disturbed": None, "reason": "no counters"})
    assert "No disturbance was detected." not in told(tabled(experiment), "sure")


@pytest.mark.usefixtures("whole_kernel")
def test_the_kernel_runs_on_each_core_and_leaves_this_process_its_own():
    before = os.sched_getaffinity(0)
    cores = sorted(before)[:2]
    found = seconds_of_kernel(cores)
    assert len(found) == len(cores) and os.sched_getaffinity(0) == before
    for seconds in found:
        assert 0 < seconds.least <= seconds.cpu / 10 and seconds.cpu <= seconds.wall
    with pytest.raises(ValueError, match="9999"):
        seconds_of_kernel([9999])


@pytest.mark.usefixtures("whole_kernel")
def test_what_shares_the_core_lengthens_the_wall_time_and_not_the_speed():
    core = min(os.sched_getaffinity(0))
    alone = seconds_of_kernel([core])[0]
    # Two kernels on one core have half of it each.
    shared = seconds_of_kernel([core, core])[0]
    assert shared.wall > 1.5 * shared.cpu
    assert shared.least < 1.25 * alone.least


@pytest.mark.parametrize("disturbed", [False, True])
def test_too_few_matches_stay_disturbed_only_if_one_is_disturbed(disturbed):
    matches = Matched([{"disturbance": {"disturbed": disturbed}}], [{}], [])
    assert leave_out_disturbed(matches)[1:] == (disturbed, disturbed)
