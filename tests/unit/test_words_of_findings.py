"""Numbers and directions in findings and on the page are those of the tables."""

from __future__ import annotations

import pandas as pd
import pytest
from escala.report.findings.verdicts import answering
from fixtures_runs import REFERENCES, fair
from pages import TITLE, Parsed, failed, tabled
from sentences import told

from escala.analysis.verdicts import NOT_DISTINGUISHABLE
from escala.record.comparable import CONFIGURATION
from escala.report.findings.words import Finding, quoted
from escala.report.first_screen import brief
from escala.report.overview import overview
from escala.report.page import page

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


def test_the_table_of_configurations_has_the_columns_of_speedup(frames):
    headings, rows = overview(frames)
    assert "training s per epoch" in headings
    speedup = frames["speedup"].query("strategy == 'horovod-mpi' and reference == 1").iloc[0]
    [row] = [row for row in rows if row[0].startswith("horovod-mpi")]
    for heading, column in (("ratio",) * 2, ("speed-up", "speedup"), ("efficiency",) * 2):
        assert _numbers(row[headings.index(heading)]) == [
            round(speedup[f"{column}{end}"], 2) for end in ("", "_low", "_high")
        ]
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
    [answer] = answering(frames)
    general = Finding("Something about all.", "runs")
    own = Finding(f"Something about {quoted(answer.label)}.", "runs")
    found = brief(frames, {name: [general, own] for name in ("why", "sure", "cost", "next")})
    assert found == {"why": [own], "sure": [own], "cost": [own], "next": [general]}
    only = {"why": [general], "sure": [general], "cost": [], "next": [general]}
    assert brief(frames, only) == {key: [general] for key in ("why", "sure", "next")}


def test_the_page_tells_where_its_results_come_from(frames):
    frames["runs"]["hosts"] = ["n1;n2", *["n2"] * (len(frames["runs"]) - 1)]
    parsed = Parsed(page(frames, "demo", TITLE, {}))
    told = dict(zip(parsed.text_of("dt"), parsed.text_of("dd"), strict=True))
    assert told["hosts"] == "n1, n2" and told["experiment"] == "demo"
    assert told["measurements"] == f"{len(frames['runs'])} measurements"
    assert "digests of the code" in told and "sessions" in told


def _without_verdict(frames: dict[str, pd.DataFrame], **runs: object) -> None:
    """Change one run of two processes, while nothing can be told apart."""
    table, speedup = frames["runs"], frames["speedup"]
    two_ranks = (table["strategy"] == "horovod-mpi") & (table["repeat"] == 1)
    for name, value in runs.items():
        table.loc[two_ranks, name] = value
    main = speedup["reference"] == 1
    speedup.loc[main, ["verdict", "ratio_low", "ratio_high"]] = [NOT_DISTINGUISHABLE, 0.61, 1.4]


def test_runs_that_stay_disturbed_are_named_before_more_matches(frames):
    frames["runs"]["disturbed"] = False
    because = "0.97 core of other processes"
    _without_verdict(frames, disturbed=True, disturbed_because=because, earlier_attempts=2)
    sure, steps = _text(frames, "sure"), _text(frames, "next")
    assert "1 run was measured again, because other work disturbed" in sure
    assert f"1 run stayed disturbed, for example by `{because}`" in sure
    assert "Leave the machine idle" in steps and "four times" not in steps


def test_a_slow_run_is_not_called_disturbed(frames):
    frames["runs"]["disturbed"] = False
    _without_verdict(frames, train_seconds_per_epoch=30.0)
    assert "No disturbance was detected. Only cores" in _text(frames, "sure")
    frames["runs"]["kernel_slowdown"] = 1.02
    assert "No disturbance was detected. Other work on a GPU" in _text(frames, "sure")
    steps = _text(frames, "next")
    assert "about four times its 7 matches" in steps and "Leave the machine idle" not in steps


def test_runs_without_a_partner_are_told_and_counted_in_the_advice(frames):
    assert "no run of the reference" not in _text(frames, "sure")
    speedup = frames["speedup"]
    main = (speedup["reference"] == 1) & (speedup["strategy"] == "horovod-mpi")
    speedup.loc[main, ["matches", "verdict"]] = [5, "no verdict"]
    said = "Of 7 runs of `horovod-mpi 1x2 tuned`, 2 had no run of the reference in the same session"
    assert said in _text(frames, "sure")
    assert "`horovod-mpi 1x2 tuned`, set `repeats` to 8 or more" in _text(frames, "next")
