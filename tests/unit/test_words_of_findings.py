"""Numbers and directions in findings and on the page are those of the tables."""

from __future__ import annotations

import pandas as pd
import pytest
from fixtures_runs import REFERENCES, fair
from pages import TITLE, Parsed, failed, tabled
from sentences import told

from escala.analysis.comparable import CONFIGURATION
from escala.analysis.verdicts import NO_VERDICT, NOT_DISTINGUISHABLE
from escala.report.findings.context import Report, inverse
from escala.report.findings.words import Finding, quote
from escala.report.first_screen import first_screen
from escala.report.page import page
from escala.report.summary import overview

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.fixture(scope="module")
def measured(few_resamples, tmp_path_factory):
    return tabled(fair(tmp_path_factory.mktemp("fair"), 5.6, 4.6, 3.9), references=REFERENCES)


@pytest.fixture
def frames(measured):
    return {name: frame.copy() for name, frame in measured.items()}


def _text(frames: dict[str, pd.DataFrame], section: str) -> str:
    return " ".join(told(frames, section))


def _numbers(cell: str) -> list[float]:
    return [float(each) for each in cell.replace("(", "–").rstrip(")").split("–") if each.strip()]


def test_the_table_of_configurations_has_the_values_of_the_tables(frames):
    headings, rows = overview(Report(frames))
    assert "training s per epoch" in headings
    cells = {row[0]: dict(zip(headings, row, strict=True)) for row in rows}
    speedup = frames["speedup"].query("strategy == 'horovod-mpi' and reference == 1").iloc[0]
    [label] = [each for each in cells if each.startswith("horovod-mpi")]
    for heading, column in (("speed-up", "speedup"), ("efficiency",) * 2):
        assert _numbers(cells[label][heading]) == [
            round(speedup[f"{column}{end}"], 2) for end in ("", "_low", "_high")
        ]
    [answer] = Report(frames).answers
    for each in answer.alternatives:
        text = cells[each.label]["time to the best use"].partition(", ")[0]
        assert _numbers(text) == [round(value, 2) for value in inverse(each.ratio)[:3]]
    row = list(cells[label].values())
    [accuracy] = frames["configurations"].query("strategy == 'horovod-mpi'")["accuracy"]
    assert _numbers(row[headings.index("accuracy")])[0] == round(accuracy, 3)
    runs = frames["runs"].query("strategy == 'horovod-mpi'")
    assert {row[headings.index("global batch")]} == {f"{each:g}" for each in runs["global_batch"]}


@pytest.mark.parametrize(("error", "direction"), [(0.25, "above"), (-0.25, "below")])
def test_the_largest_error_of_predictions_has_a_direction(frames, error, direction):
    errors = {"predicted_seconds_per_epoch": 1.0, "error": [0.1, -0.05, error], "ranks": 2}
    frames["predictions"] = frames["configurations"][list(CONFIGURATION)].assign(
        **errors, runs=7, covered=6, basis="predicted"
    )
    said = f"`horovod-mpi 1x2 tuned`: the predicted time is 25 % {direction} the measured one"
    assert said in _text(frames, "sure")


def test_only_the_current_runs_count_as_failed(tmp_path):
    frames = failed(tmp_path)
    assert "Of 2 timing runs, 2 did not end ok." in _text(frames, "failures")
    earlier = frames["runs"].iloc[:1].assign(current=False, repeat=9)
    frames["runs"] = pd.concat([frames["runs"], earlier], ignore_index=True)
    assert "Of 2 timing runs, 2 did not end ok." in _text(frames, "failures")


def test_the_first_screen_prefers_the_configuration_that_answers(frames):
    [answer] = Report(frames).answers
    general = Finding("Something about all.", "runs")
    own = Finding(f"Something about {quote(answer.label)}.", "runs")
    found = {name: [general, own] for name in ("why", "sure", "cost", "next")}
    line = Finding("The answer.", "best_use", task=answer.key)
    screen = first_screen(Report(frames, "demo"), found | {"answer": [line], "scores": []})
    assert set(screen.brief) == set(found)
    assert not any(text.startswith("Something about all") for text in screen.brief.values())
    only = {
        "why": [general],
        "sure": [general],
        "cost": [],
        "next": [general],
        "answer": [line],
        "scores": [],
    }
    assert set(first_screen(Report(frames, "demo"), only).brief) == {"why", "sure", "next"}


def test_the_page_tells_where_its_results_come_from(frames):
    frames["runs"]["hosts"] = ["n1;n2", *["n2"] * (len(frames["runs"]) - 1)]
    parsed = Parsed(page(frames, "demo", TITLE, {}))
    told = dict(zip(parsed.text_of("dt"), parsed.text_of("dd"), strict=True))
    assert told["hosts"] == "n1, n2" and told["experiment"] == "demo"
    assert told["measurements"] == f"{len(frames['runs'])} measurements"
    assert "digests of the code" in told and "sessions" in told


def _undecided(frames: dict[str, pd.DataFrame], **runs: object) -> None:
    """Change one run of the best use, while nothing can be told apart."""
    [answer] = Report(frames).answers
    table = frames["runs"]
    mine = (table["strategy"] == answer.names[2]) & (table["variant"] == answer.names[4])
    for name, value in runs.items():
        table.loc[mine & (table["repeat"] == 1), name] = value
    frames["best_use"] = frames["best_use"].assign(
        verdict=NOT_DISTINGUISHABLE, ratio_low=0.61, ratio_high=1.4
    )


def test_runs_that_stay_disturbed_are_named_before_more_sessions(frames):
    frames["runs"]["disturbed"] = False
    because = "0.97 core of other processes"
    _undecided(frames, disturbed=True, disturbed_because=because, earlier_attempts=2)
    assert quote(because) in _text(frames, "sure")
    assert "Leave the machine idle" in _text(frames, "next")


def test_a_slow_run_is_not_called_disturbed(frames):
    frames["runs"]["disturbed"] = False
    _undecided(frames, train_seconds_per_epoch=30.0)
    assert "No disturbance was detected. Only cores" in _text(frames, "sure")
    frames["runs"]["kernel_slowdown"] = 1.02
    assert "No disturbance was detected. Other work on a GPU" in _text(frames, "sure")
    steps = _text(frames, "next")
    assert "sessions" in steps and "Leave the machine idle" not in steps


def test_runs_without_a_partner_are_counted_in_the_advice(frames):
    [answer] = Report(frames).answers
    frames["best_use"] = frames["best_use"].assign(matches=5, verdict=NO_VERDICT)
    needed = int(frames["best_use"]["needed"].iloc[0])
    # Two of its seven runs have no run of another configuration in their session and repeat.
    steps = _text(frames, "next")
    assert f"{quote(answer.label)}, set `repeats` to {needed + 2} or more" in steps
