"""Scores are the same within a bound in every paired run, and never by an interval of no width."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from fixtures_runs import REFERENCES, changed, fair
from pages import tabled
from scipy import stats

from escala.core.files import read_json
from escala.report.findings import section_findings
from escala.report.findings.context import Report

pytestmark = pytest.mark.usefixtures("few_resamples")

#: Differences of the accuracy in seven paired runs, by the verdict on them.
DIFFERENCES = {
    "same": [-0.01] * 3 + [-0.012, -0.008, -0.014, -0.006],
    "not distinguishable": [-0.3] + [0.0] * 6,
    "different": [-0.3, -0.31] * 3 + [-0.29],
}


def _tabled(folder: Path, differences: list[float]) -> dict[str, pd.DataFrame]:
    """Return the tables of `fair` with these differences of two processes from one."""
    experiment = fair(folder, 5.6, 4.6, 3.9, repeats=len(differences))
    two = [path for path in experiment.runs if "horovod-mpi" in path.parts]
    for path, difference in zip(two, differences, strict=True):
        evaluation = read_json(path)["evaluation"]
        changed([path], evaluation=evaluation | {"accuracy": evaluation["accuracy"] + difference})
    return tabled(experiment, references=REFERENCES)


def _sentences(frames, section: str) -> list[str]:
    return [each.text for each in section_findings(section, Report(frames, "demo"))]


def _row(frames):
    means = frames["mean_scores"]
    return means[(means["strategy"] == "horovod-mpi") & (means["reference"] == 1)].iloc[0]


@pytest.mark.parametrize(("verdict", "differences"), DIFFERENCES.items())
def test_the_answer_has_the_verdict_of_the_table(tmp_path, verdict, differences):
    frames = _tabled(tmp_path, differences)
    row, is_same = _row(frames), verdict == "same"
    assert (row["verdict"], row["bound"]) == (verdict, 0.02)
    [text] = [text for text in _sentences(frames, "answer") if "train to" in text]
    assert verdict in text and ("within 0.02 in all seven" in text) == is_same
    assert ("35 %" in text) == is_same == (row["beyond_bound_fraction"] < 0.5)


def test_equal_accuracies_have_no_interval_of_no_width(tmp_path):
    experiment = fair(tmp_path, 5.6, 4.6, 3.9, repeats=7)
    for path in experiment.runs:
        changed([path], evaluation=read_json(path)["evaluation"] | {"accuracy": 0.98})
    frames = tabled(experiment, references=REFERENCES)
    means = frames["mean_scores"]
    ends = means[["mean_low", "mean_high", "difference_low", "difference_high"]]
    assert ends.isna().all(axis=None) and (means["verdict"].dropna() == "same").all()
    scores = _sentences(frames, "scores")
    assert not any("by more than" in text for text in scores)
    assert any("in up to 35 % of runs" in text for text in scores)


@pytest.mark.parametrize("repeats", [5, 6])
def test_a_comparison_over_seeds_takes_as_many_repeats_as_a_verdict(tmp_path, repeats):
    differences, enough = DIFFERENCES["different"][:repeats], repeats == 6
    frames = _tabled(tmp_path, differences)
    assert _row(frames)["verdict"] == ("different" if enough else "no verdict")
    low, high = stats.ttest_1samp(differences, 0).confidence_interval()
    scores = "\n".join(_sentences(frames, "scores"))
    for part in (f"tuned` by more than {-low:.3g}.", f"({low:.3g} to {high:.3g})."):
        assert (part in scores) == ("Over seeds only, " in scores) == enough
    assert ("Over test rows only, no class differs" in scores) != enough
