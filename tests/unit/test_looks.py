"""A session that decides when it stops: when it looks, what it sees, and why it ends."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from escala import command
from escala.analysis.looks import (
    LESS_THAN_SESSIONS,
    LOOK_LEVEL,
    NO_DIFFERENCE,
    NO_SAVING,
    futility,
    judge_session,
)
from escala.analysis.statistics import LEVEL, MATCHES_FOR_INTERVAL, Interval, rank_interval
from escala.analysis.verdicts import FASTER, NO_VERDICT, NOT_DISTINGUISHABLE, SLOWER
from escala.commands import measure as script
from escala.core import console
from escala.core.environment import SESSION_VARIABLE
from escala.core.files import read_json
from escala.measure import missing
from escala.measure.plan import LOOKS, PlannedRun, looks_until, until_stop
from escala.measure.session import Session
from escala.report import tables
from escala.report.findings import cost, sure
from escala.report.findings.context import Report
from tests.unit.fixtures_runs import FakeExperiment
from tests.unit.test_session import House, house

__all__ = ["house"]  # a fixture

#: Seconds of a step of several processes divided by those of one, by the repeat.
Ratio = Callable[[int], float]


def noisy(ratio: float, spread: float) -> Ratio:
    """Return ratios whose logarithms are evenly spread on both sides of one."""
    return lambda repeat: ratio * math.exp(spread * (-1) ** repeat * (repeat % 5 + 1) / 5)


class Timed:
    """A house whose runs take times that a test names, and whose sessions look at them."""

    def __init__(self, house: House, monkeypatch: pytest.MonkeyPatch):
        self.house, self._monkeypatch = house, monkeypatch
        house.settings["configurations"] = house.settings["configurations"][:2]
        house.settings["workloads"] = {"tal1-cnn": {"epochs": 1, "save_model": False} | {
            "batch": {"rows": 8, "per": "global"}
        }}  # fmt: skip

        self.run_seconds, self._passed = None, 0.0
        # It imports what sets variables, and runs of other variables are not comparable.
        FakeExperiment(Path())._run("single", "1x1", "", 1, "", 1.0, "ok", None, 0.99)

    def measure(self, ratio: Ratio, **repeats: object) -> list[int]:
        """Measure as `escala measure` does, and return the repeats of the runs that it began."""
        self.house.settings["repeats"] = {"decide": True, **repeats}
        self.house.begun, self.house._present = [], missing.Present()
        Path("plan.json").write_text(self.house.plan.text())

        def run(request, data, output, seconds, **about):
            planned = next(each for each in self.house.plan.runs if each.request == request)
            self.house.measure_run(planned, output)
            self._time(planned, output, ratio)
            self._passed += self.run_seconds or 0.0

        if self.run_seconds:
            with_clock = partial(Session, clock=lambda: self._passed)
            self._monkeypatch.setattr(script, "Session", with_clock)
        self._monkeypatch.setattr("escala.record.run.measure", run)
        self._monkeypatch.setenv(SESSION_VARIABLE, "s1")
        _, arguments = command.parse(["measure", "plan.json"])
        assert script.run(arguments) == console.DONE
        return sorted({int(last.removeprefix("rep")) for _, last in self.house.begun})

    def _time(self, planned: PlannedRun, output: Path, ratio: Ratio) -> None:
        run, record = planned.run, read_json(output)
        seconds = 5.0 * (1.0 if run.strategy == "single" else ratio(run.repeat))
        names = (run.strategy, str(run.layout), run.variant, run.repeat, "s1")
        made = FakeExperiment(Path())._run(*names, seconds, "ok", None, 0.99)
        made["epochs"] = [epoch | {"train_seconds": seconds} for epoch in made["epochs"]]
        made["seconds"]["train"] = 3 * seconds
        made["training"]["global_batch"] = 8
        named = {"experiment": "small", "dataset": "small", "workload": "tal1-cnn"}
        record |= {"started": made["started"], "wall_seconds": 3 * seconds + 14.0}
        record |= {"seconds": made["seconds"], "data": made["data"] | record["data"]}
        for path in (output, output.parent / "sessions" / "s1.json"):
            path.write_text(json.dumps(made | record | named))

    def looks(self) -> dict:
        return read_json(Path("results/small/looks.json"))

    def left(self) -> list[PlannedRun]:
        return missing.runs_left_of(until_stop(self.house.plan), missing.Present())

    def sentences(self) -> str:
        """Return what the page says of how sure the answer is, and of what to do next."""
        files = [Path(row["file"]) for row in self.house.table()]
        about = {"looks_file": Path("results/small/looks.json"), "level": LOOK_LEVEL}
        read = ("runs", "configurations", "noise", "speedup", "best_use", "looks", "predictions")
        report = Report(tables.tables(files, **about, only=read))
        return "; ".join(finding.text for of in (sure.looks, cost.advice) for finding in of(report))


@pytest.fixture
def timed(house, monkeypatch) -> Timed:
    return Timed(house, monkeypatch)


@pytest.mark.parametrize(
    ("ratio", "at_most", "stop", "seen"),
    [
        (noisy(1.0, 0.02), 20, 5, f"what is not decided shows {NO_DIFFERENCE}"),
        (noisy(0.92, 0.02), 20, 5, f"what is not decided shows {LESS_THAN_SESSIONS}"),
        (lambda n: 0.72 * math.exp(0.4 * (-1) ** n if n < 8 else 0.0), 20, 14,
         "every question was decided"),
    ],
)  # fmt: skip
def test_a_session_stops_at_the_look_that_decides(timed, ratio, at_most, stop, seen):
    assert timed.measure(ratio, at_most=at_most) == list(range(1, stop + 1))
    looks = timed.looks()
    assert sorted({row["repeats"] for row in looks["looks"]}) == [n for n in LOOKS if n <= stop]
    assert [row["ended"] for row in looks["looks"]][-1] == seen
    assert not any(row["ended"] for row in looks["looks"][:-1])
    for row in looks["looks"]:
        logs = np.log([ratio(n) for n in range(1, row["repeats"] + 1)])
        if row["strategy"] == "single":
            logs = -logs
        assert row["matches"] == row["repeats"] and row["level"] == LOOK_LEVEL
        assert math.log(row["ratio"]) == pytest.approx(rank_interval(logs, LOOK_LEVEL)[0])
    assert len(timed.house.table()) == 2 * stop
    assert not timed.left() and timed.measure(ratio, at_most=at_most) == []
    number = {5: "five", 14: "14"}[stop]
    assert f"stopped after {number} repeats, because {seen}" in timed.sentences()


def test_no_repeat_begins_after_its_minutes_and_the_same_call_goes_on(timed, capsys):
    ratio = noisy(0.6, 0.1)
    assert timed.measure(ratio, minutes=1e-6) == [1]
    assert "stopped after 1 repeat, because 1e-06 min were over" in capsys.readouterr().err
    assert timed.left() and len(timed.house.table()) == 2
    assert timed.measure(ratio, minutes=1e-6) == [2]
    for repeat in (3, 4):
        assert timed.measure(ratio, minutes=1e-6) == [repeat]
    text = timed.sentences()
    assert "stopped after four repeats" in text and "repeat the call, which goes on" in text
    assert "at this ratio" not in text
    # At the fifth it is decided, so nothing is left.
    assert timed.measure(ratio, minutes=1e-6) == [5]
    assert timed.looks()["is_final"] and timed.measure(ratio, minutes=1e-6) == []


@pytest.mark.parametrize(
    ("minutes", "before", "stop"),
    [
        # A repeat takes ten minutes: the first look at 50 is within 1.5 times 35, and not 32.
        (35, 0, 5), (32, 0, 4),
        # Repeats of an earlier session took none of the time of this one.
        (15, 3, 5), (5, 3, 4),
        # After the first look, minutes count as they stand.
        (55, 0, 6),
    ],
)  # fmt: skip
def test_a_session_whose_minutes_are_over_goes_on_to_a_first_look_that_is_near(
    timed, minutes, before, stop
):
    ratio = noisy(0.9, 0.6)
    for _ in range(before):
        timed.measure(ratio, minutes=1e-6)
    timed.run_seconds = 5 * 60
    assert timed.measure(ratio, minutes=minutes) == [*range(before + 1, stop + 1)]


def test_what_it_takes_is_told_where_the_time_was_too_short(timed):
    ratio = noisy(0.7, 0.6)
    timed.measure(ratio, at_most=7)
    assert timed.measure(ratio, minutes=1e-6) == [8]
    [row] = [row for row in timed.looks()["looks"] if row["repeats"] == 8]
    assert row["futile"] is None and row["goes_on"] and row["matches_to_decide"] > 8
    assert f"takes about {row['matches_to_decide']} paired runs" in timed.sentences()


@pytest.mark.parametrize(
    ("ratio", "threshold", "stop", "verdict", "seen"),
    [
        (noisy(1.10, 0.02), 0.05, 5, SLOWER, "each ratio of this session lies above or below 1.05"),
        # It is decided that it is slower, and not whether by more than the threshold.
        (noisy(1.04, 0.02), 0.05, 10, NOT_DISTINGUISHABLE, "10 are the most that it may measure"),
        (noisy(1.04, 0.01), None, 5, NOT_DISTINGUISHABLE,
         f"what is not decided shows {NO_SAVING}"),
        (noisy(1.0, 0.02), 0, 5, NOT_DISTINGUISHABLE, f"what is not decided shows {NO_DIFFERENCE}"),
    ],
)  # fmt: skip
def test_a_session_with_a_threshold_stops_when_that_is_decided(
    timed, ratio, threshold, stop, verdict, seen
):
    assert timed.measure(ratio, at_most=10, threshold=threshold) == list(range(1, stop + 1))
    row = timed.looks()["looks"][-1]
    assert (row["repeats"], row["verdict"], row["ended"]) == (stop, verdict, seen)
    if threshold is not None:
        ends = np.exp(rank_interval(np.log([ratio(n) for n in range(1, stop + 1)]), LOOK_LEVEL))
        assert [row["ratio"], row["ratio_low"], row["ratio_high"]] == pytest.approx(ends)


def test_another_threshold_is_another_question_to_what_was_measured(timed):
    ratio = noisy(1.10, 0.02)
    assert timed.measure(ratio, at_most=6, threshold=0.05) == [*range(1, 6)]
    assert timed.measure(ratio, at_most=6, threshold=0.05) == []
    assert timed.measure(ratio, at_most=6, threshold=0.09) == [6]
    assert timed.measure(ratio, at_most=6, threshold=0.05) == [] and not timed.left()
    assert timed.looks()["repeats"] == 5


@pytest.mark.parametrize(
    ("ends", "more", "threshold", "verdict"),
    [
        ((1.06, 1.2), {}, 0.05, SLOWER),
        ((1.04, 1.2), {}, 0.05, NOT_DISTINGUISHABLE),
        ((1.04, 1.2), {}, 0.0, SLOWER),
        ((0.9, 1.049), {}, 0.05, FASTER),
        ((0.9, 1.051), {}, 0.05, NOT_DISTINGUISHABLE),
        ((0.5, 0.6), {}, 0.05, FASTER),
        ((1.06, 1.2), {"stays_disturbed": True}, 0.05, NO_VERDICT),
        ((1.06, 1.2), {"matches": 4}, 0.05, NO_VERDICT),
        ((1.06, 1.2), {"matches": 5}, 0.05, SLOWER),
        ((None, None), {}, 0.05, NO_VERDICT),
    ],
)
def test_a_session_is_judged_by_its_whole_interval(ends, more, threshold, verdict):
    names = ("session_ratio", "session_ratio_low", "session_ratio_high")
    row = dict(zip(names, (ends[0] and sum(ends) / 2, *ends), strict=True))
    row |= {"level": LOOK_LEVEL, "matches": 7, "stays_disturbed": False}
    assert judge_session(row | more, threshold) == verdict


@pytest.mark.parametrize(
    ("at_most", "expected"),
    [(30, LOOKS), (5, (5,)), (6, (5, 6)), (7, (5, 7)), (25, (5, 7, 10, 14, 20, 25))],
)
def test_there_are_six_looks_at_most(at_most, expected):
    assert looks_until(at_most) == expected


def test_looks_err_in_at_most_a_twentieth_of_equal_sessions():
    """Simulate sessions of two equal sides; one run in ten takes 15 to 90 % longer."""
    random, draws = np.random.default_rng(0), 2000
    sides = random.normal(0, 0.05, (2, draws, LOOKS[-1]))
    longer = np.log1p(random.uniform(0.15, 0.9, sides.shape))
    sides += longer * (random.random(sides.shape) < 0.1)
    logs, errs = sides[1] - sides[0], np.zeros(draws, bool)
    for number in LOOKS:
        _, low, high = rank_interval(logs[:, :number], LOOK_LEVEL)
        errs |= (low > 0) | (high < 0)
    # Three standard errors of this number of draws.
    assert errs.mean() <= 1 - LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / draws)
    assert LOOKS[0] == MATCHES_FOR_INTERVAL and LOOK_LEVEL > LEVEL


@pytest.mark.parametrize(
    ("ends", "uses", "seen"),
    [
        ((0.96, 1.04), "as much", NO_DIFFERENCE),
        ((0.96, 1.20), "as much", None),
        ((0.96, 1.20), "less", NO_SAVING),
        ((0.80, 1.04), "less", None),
        ((0.80, 1.04), "more", NO_SAVING),
        ((0.90, 0.98), "as much", LESS_THAN_SESSIONS),
        ((0.80, 0.98), "as much", None),
        ((None, 1.02), "as much", None),
    ],
)
def test_a_comparison_is_futile_if_what_matters_is_excluded(ends, uses, seen):
    assert futility(Interval(1.0, *ends), uses, between=0.14) == seen
