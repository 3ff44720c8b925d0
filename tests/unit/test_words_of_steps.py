"""What is told of the parts of a step, and when nothing is explained by them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from fixtures_runs import REFERENCES, fair
from pages import tabled
from sentences import told

from escala.analysis.attribution import OFF_CORE, OVERLAP, UNEXPLAINED, WHOLE
from escala.analysis.verdicts import FASTER, NO_VERDICT, NOT_DISTINGUISHABLE
from escala.report.findings import why

pytestmark = pytest.mark.usefixtures("few_resamples")


@pytest.fixture(scope="module")
def measured(few_resamples, tmp_path_factory):
    return tabled(fair(tmp_path_factory.mktemp("fair"), 5.6, 4.6, 3.9), references=REFERENCES)


@pytest.fixture
def frames(measured):
    return {name: frame.copy() for name, frame in measured.items()}


def _text(frames: dict[str, pd.DataFrame], section: str) -> str:
    return " ".join(told(frames, section))


def _steps(
    frames: dict[str, pd.DataFrame], parts: dict[str, float], timed: float | None = None
) -> str:
    """Return what is told of a step of two processes, by how much more its parts take, in ms.

    Parameters
    ----------
    timed : how much more a step takes in the timing runs; as with clocks if it is not given.
    """
    total = sum(parts.values())
    about = {
        "dataset": "demo-1000", "workload": "virus-cnn", "network": "native", "rank": 0,
        "variant": "tuned", "fraction": 0.2, "reference_label": "single 1x1 tuned",
        "kind": "measured", "reference_strategy": "single", "reference_layout": "1x1",
        "reference_variant": "tuned", "reference_network": "native", "reference_steps": 1.0,
        "runs": 3, "matches": 3, "slowdown": 1.0,
        "timed_difference_seconds": (total if timed is None else timed) / 1000,
    }  # fmt: skip
    rows = []
    for part, more in {**parts, WHOLE: total}.items():
        one = {"strategy": "single", "layout": "1x1", "seconds": 0.1}
        two = {
            "strategy": "horovod-mpi", "layout": "1x2", "seconds": 0.1 + more / 1000,
            "difference_seconds": more / 1000, "difference_low_seconds": (more - 5) / 1000,
            "difference_high_seconds": (more + 5) / 1000,
        }  # fmt: skip
        rows += [about | {"part": part} | each for each in (one, two)]
    empty = frames["attribution"].iloc[:0]
    frames["attribution"] = pd.concat([empty, pd.DataFrame(rows)], ignore_index=True)
    return _text(frames, "why")


def test_there_is_nothing_to_explain_where_times_cannot_be_told_apart(frames):
    frames["best_use"]["verdict"] = NOT_DISTINGUISHABLE
    text = _steps(frames, {"compute": -59.0, "transfer": 40.0})
    assert "A step of `horovod-mpi 1x2" in text and "ms less than" not in text


def test_the_part_that_is_named_explains_the_difference(frames):
    frames["best_use"]["verdict"] = NO_VERDICT
    text = _steps(frames, {"compute": -59.0, "transfer": 40.0, "skew": 20.8})
    assert "takes 1.8 ms more than a step of `single 1x1 tuned`: 40.0 ms more (35.0–45.0)" in text
    assert "takes 1.8 ms more (-3.2 to 6.8) than" in text
    text = _steps(frames, {"compute": -59.0, "transfer": 40.0})
    assert "takes 19.0 ms less than a step of `single 1x1 tuned`: 59.0 ms less (54.0–64.0)" in text
    assert "In three runs with clocks" in text


@pytest.mark.parametrize("may_be_0", [set(), {"compute"}, {"compute", "input"}])
def test_a_part_whose_interval_holds_0_is_no_explanation(frames, may_be_0):
    """Of two parts that take less time, the largest is named that surely does."""
    parts = {"compute": -41.0, "input": -30.0}
    _steps(frames, parts)
    table = frames["attribution"]
    is_open = table["part"].isin(may_be_0)
    table.loc[is_open, "difference_high_seconds"] = 0.0335
    [text] = [each for each in told(frames, "why") if "71.0 ms less than" in each]
    named = {part for part in parts if why._PART_NAMES[part] in text}
    assert named == set([part for part in parts if part not in may_be_0][:1])
    assert ("for certain" in text) == (not named)


@pytest.mark.parametrize("timed", [-17.0, -30.0, -38.0])
def test_a_difference_is_that_of_the_timing_runs_and_its_parts_are_of_the_clocks(frames, timed):
    text = _steps(frames, {"compute": -59.0, "transfer": 40.0}, timed)
    assert f"takes {-timed:.1f} ms less than a step of `single 1x1 tuned`: 59.0 ms less" in text


@pytest.mark.parametrize("timed", [21.8, -9.0, -39.0, 0.0])
def test_clocks_that_show_another_difference_than_the_timing_runs_explain_nothing(frames, timed):
    """They show 19.0 ms less: of another sign, or more than twice or less than half as much."""
    text = _steps(frames, {"compute": -59.0, "transfer": 40.0}, timed)
    assert "is not explained" in text and "59.0" not in text
    assert f"{abs(timed):.1f} ms" in text and "19.0 ms less with clocks" in text


@pytest.mark.parametrize("verdict", [FASTER, NOT_DISTINGUISHABLE])
def test_steps_that_contradict_the_answer_explain_nothing(frames, verdict):
    """By steps two processes take more time, and by the answer less."""
    table = frames["best_use"]
    best = table["strategy"] == "horovod-mpi"
    assert best.any()
    table.loc[best, "verdict"] = verdict
    text = _steps(frames, {"compute": 59.0})
    assert ("is not explained" in text) == (verdict == FASTER)


def test_what_others_took_of_the_cores_is_told_and_not_called_explained(frames):
    """Of a step of 100 ms, 75 are off the core; what was not sampled is unavailable."""
    rows = {WHOLE: 1.0, OFF_CORE: 0.75, UNEXPLAINED: 0.0, OVERLAP: 0.0, "compute": 0.25}
    _steps(frames, dict.fromkeys(rows, 0.0))
    table = frames["attribution"]
    table["fraction"] = table["part"].map(rows)
    assert "at most 75.0 % is off the core" in _text(frames, "sure")
    assert "75 % of it off the core" in _text(frames, "why")
    table.loc[table["part"] == OFF_CORE, "fraction"] = None
    text = _text(frames, "sure")
    assert "is off the core is unavailable" in text and "75.0" not in text


def test_a_share_of_the_computing_is_told_where_the_computing_is_known(frames):
    assert "an equal share of" in _steps(frames, {"compute": -59.0, "transfer": 40.0})
    is_computing = frames["attribution"]["part"] == "compute"
    frames["attribution"].loc[is_computing, ["seconds", "difference_seconds"]] = np.nan
    assert "an equal share of" not in _text(frames, "why")


def test_no_part_is_named_where_an_unknown_one_may_be_larger(frames):
    text = _steps(frames, {"compute": -59.0, "input": -0.2})
    assert "59.0 ms less (54.0–64.0)" in text and " % of it" not in text
    parts = frames["attribution"]
    parts.loc[parts["part"] == "compute", ["fraction", "difference_seconds"]] = np.nan
    text = _text(frames, "why")
    assert "takes 59.2 ms less than" in text and "0.2 ms less" not in text
    parts.loc[parts["part"] == "input", "fraction"] = 0.9
    assert "90 % of it" in _text(frames, "why")
