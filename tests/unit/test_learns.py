"""A network that is no better than naming the largest class is said not to learn."""

from __future__ import annotations

import json

import numpy as np
import pytest
from fixtures_runs import (
    CLASSES,
    LABELS,
    FakeExperiment,
    changed,
    program,
    regression,
    three_configurations,
)
from pages import tabled
from sentences import check

from escala.analysis.rates import DOES_NOT_LEARN, LEARNS, UNKNOWN, judge_learning
from escala.core.files import read_json
from escala.record.evaluation import evaluate
from escala.report.findings import section_findings
from escala.report.findings.context import Report
from escala.report.tables.views import names_of_rows

pytestmark = pytest.mark.usefixtures("few_resamples")

#: 270 of 705 rows are of the largest class.
LARGEST = 270 / 705


def _scored(experiment: FakeExperiment, strategy: str, predicted: np.ndarray) -> None:
    """Give the runs of a strategy these predictions of the test rows."""
    scores = json.loads(json.dumps(evaluate(LABELS, predicted, CLASSES)))
    for path in experiment.runs:
        if strategy in path.parts and read_json(path)["evaluation"]:
            changed([path], evaluation=scores)
            np.save(path.with_name("predictions.npy"), predicted)


def _kinds(frames) -> dict[str, str]:
    rows = frames["configurations"]
    names = names_of_rows(rows)
    return {
        f"{row.workload} {row.strategy}": judge_learning(frames, name).kind
        for row, name in zip(rows.itertuples(), names, strict=True)
    }


def _first(frames) -> list[str]:
    """Return what the first screen tells of the scores in any case."""
    found = [each for each in section_findings("scores", Report(frames, "demo")) if each.first]
    check(found)
    return [each.text for each in found]


STUCK = {
    "on the largest class": np.zeros_like(LABELS),
    "on another class": np.full_like(LABELS, 3),
    "on chance": np.random.default_rng(3).integers(0, 5, len(LABELS)),
    "near the largest class": np.where(np.arange(len(LABELS)) < 280, LABELS, 0),
}


@pytest.mark.parametrize("predicted", STUCK.values(), ids=STUCK)
def test_what_is_no_better_than_the_largest_class_does_not_learn(tmp_path, predicted):
    experiment = three_configurations(tmp_path)
    for strategy in ("single", "horovod-mpi", "horovod-gloo"):
        _scored(experiment, strategy, predicted)
    frames = tabled(experiment)
    assert set(_kinds(frames).values()) == {DOES_NOT_LEARN}
    found = judge_learning(frames, next(names_of_rows(frames["configurations"])))
    assert found.largest_class == pytest.approx(LARGEST)
    assert found.low <= found.accuracy == pytest.approx((predicted == LABELS).mean())
    numbers, times = _first(frames)
    assert f"{found.accuracy:.2f} after three epochs" in numbers and f"{LARGEST:.2f}" in numbers
    assert times.startswith("The times of `virus-cnn` are")


def test_only_the_configuration_that_does_not_learn_is_named(tmp_path):
    experiment = three_configurations(tmp_path, repeats=7)
    for strategy in ("horovod-mpi", "horovod-gloo"):
        _scored(experiment, strategy, np.zeros_like(LABELS))
    frames = tabled(experiment)
    kinds = _kinds(frames)
    assert kinds.pop("virus-cnn single") == LEARNS
    assert set(kinds.values()) == {DOES_NOT_LEARN}
    assert all("`virus-cnn` under `horovod-" in text for text in _first(frames))


def test_what_learns_is_compared_with_the_best_baseline(tmp_path):
    experiment = three_configurations(tmp_path)
    assert _first(tabled(experiment)) == []
    right = np.where(np.arange(len(LABELS)) % 2, LABELS, 4)
    for strategy in ("single", "horovod-mpi", "horovod-gloo"):
        _scored(experiment, strategy, right)
    experiment.add("single", "1x1", 0.4, accuracy=0.97, workload="kmer-logreg")
    experiment.add("single", "1x1", 0.001, accuracy=0.4, workload="majority")
    frames = tabled(experiment)
    assert _kinds(frames)["virus-cnn single"] == LEARNS
    found = judge_learning(frames, next(names_of_rows(frames["configurations"])))
    assert found.workload == "kmer-logreg" and found.baseline > found.high > found.accuracy
    [text] = _first(frames)
    assert f"{found.baseline:.2f}" in text and f"{found.accuracy:.2f}" in text


@pytest.mark.parametrize("made", [program, regression])
def test_scores_of_unknown_meaning_say_nothing_of_learning(tmp_path, made):
    experiment = made(tmp_path)
    if made is program:
        evaluation = {"rows": None, "scores": {"accuracy": 0.01}}
        changed(experiment.runs, evaluation=evaluation)
    frames = tabled(experiment)
    assert set(_kinds(frames).values()) == {UNKNOWN} and _first(frames) == []
