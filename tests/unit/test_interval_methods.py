"""The benchmark of methods judges as the project does, and finds what was simulated."""

from __future__ import annotations

import shutil

import interval_methods
import numpy as np
import pytest
from fixtures_runs import SESSION, changed, twice

from escala.analysis.statistics import (
    difference_interval,
    mean_interval,
    median_interval,
)


def test_each_method_is_that_of_the_project():
    logs = np.random.default_rng(0).normal(0, 0.1, (5, 9))
    of_project = {
        "order": median_interval,
        "signed": difference_interval,
        "student": mean_interval,
    }
    for name, method in interval_methods.METHODS.items():
        found = np.stack(method(logs), axis=1)
        assert found == pytest.approx(np.array([of_project[name](row) for row in logs]))


def test_what_was_chosen_keeps_what_is_asked_of_it():
    """Fewer draws than in the decision: false verdicts below 5 %, and power at seven matches."""
    rows = list(interval_methods.methods(np.random.default_rng(1), 2000))
    signed = [row for row in rows if row["method"] == "signed"]
    assert max(row["faster"] + row["slower"] for row in signed) <= 0.055
    assert min(row["coverage"] for row in signed) >= 0.93
    [asked] = [
        row for row in signed if (row["matches"], row["disturbed"], row["noise"]) == (7, 0.1, 0.05)
    ]
    assert asked["0.65"] >= 0.95 and asked["0.65 floor"] >= 0.94


def test_the_best_of_equal_configurations_rarely_gets_a_verdict():
    rows = list(interval_methods.best(np.random.default_rng(2), 1000))
    signed = [row for row in rows if row["method"] == "signed"]
    assert max(row["false, simultaneous"] for row in signed) <= 0.05
    assert max(row["false, own level"] for row in signed) > 0.2


def test_sessions_that_differ_are_covered_by_the_interval_over_sessions_only():
    rows = list(interval_methods.sessions(np.random.default_rng(3), 1000))
    coverage = {(row["between"], row["sessions"], row["method"]): row["coverage"] for row in rows}
    assert min(of for (_, _, name), of in coverage.items() if name == "Student") >= 0.93
    assert coverage[0.1, 5, "all matches"] < 0.8
    false = [row["faster"] + row["slower"] for row in rows if row["method"] == "Student"]
    assert max(false) <= 0.06


def test_real_sessions_are_judged_with_what_is_equal(tmp_path):
    """`horovod-gloo` becomes a second name of the reference, which takes 2 % less time."""
    experiment, _ = twice(tmp_path)
    others = [path for path in experiment.runs if "horovod-gloo" in path.parts]
    for path in others:
        place = path.parents[5] / "single" / "1x1" / "same" / "native" / path.parent.name
        place.mkdir(parents=True)
        path.rename(place / "run.json")
        shutil.rmtree(path.parent)
    same = sorted(tmp_path.glob("**/same/native/rep*/run.json"))
    first = [path for path in experiment.runs if "single" in path.parts]
    alike = interval_methods.read_run(first[0])
    names = ("strategy", "layout", "knobs", "ranks", "training", "epochs")
    changed(same, **{name: alike[name] for name in names}, variant="same")
    found = interval_methods.timed([experiment.folder])
    assert list(found) == [SESSION] and len(found[SESSION]) == 28
    rows = [row for row in interval_methods.real(found) if row["method"] == "signed"]
    false = {frozenset(row["what"].split(" and ")): row["false"] for row in rows}
    first, second, same = (
        f"single 1x1 {name}" for name in ("tuned native", "tuned native again", "same native")
    )
    assert false[frozenset((first, second))] == 0 and false[frozenset((first, same))] == 1
    assert len(false) == 3
    few = {SESSION: [run for run in found[SESSION] if run["repeat"] <= 5]}
    assert list(interval_methods.real(few)) == []
