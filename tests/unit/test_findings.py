"""Findings are single short sentences with their evidence, whatever the experiment."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fixtures_runs import (
    REFERENCES,
    FakeExperiment,
    changed,
    fair,
    laddered,
    three_configurations,
    twice,
)
from hypothesis import given
from hypothesis import strategies as st
from sentences import check, problems

from escala.core.files import write_json
from escala.report import pilot, tables
from escala.report.findings import SECTIONS, Finding, of_section
from escala.report.findings.words import listed, quoted, significant

pytestmark = pytest.mark.usefixtures("few_resamples")


def _tables(experiment: FakeExperiment, **more) -> dict[str, pd.DataFrame]:
    return tables.tables(experiment.runs, experiment.dataset_files, experiment.class_files, **more)


def _all_failed(root: Path) -> FakeExperiment:
    failed = dict.fromkeys((1, 2, 3), ("failed", "a `quoted`\nreason. And | more <b>" + " 1" * 99))
    experiment = FakeExperiment(root, leaky=True).add_dataset()
    return experiment.add("single", "1x1", 5.0, failed=failed).add(
        "horovod-mpi", "2x2", 5.0, failed=failed, cores=2
    )


def _unlike(root: Path) -> FakeExperiment:
    """Return an experiment of many nodes, some of whose runs are without a match."""
    experiment = fair(root, 4.0, 4.0, 4.0, repeats=8)
    experiment.add("horovod-gloo", "2x8", 3.9, 7, rows=64, cores=4, accuracy=0.7)
    paths = [path for path in experiment.runs if "horovod-gloo" in path.parts]
    kind = [{"cpu": "Faster CPU", "cores_total": 2, "memory_bytes": 2**33, "cores_available": 2}]
    changed(paths[:3], ranks={**_ranks(paths[0]), "machines": kind})
    return experiment


def _ranks(path: Path) -> dict:
    from escala.core.files import read_json

    return read_json(path)["ranks"] | {"hosts": ["other"]}


def _two_datasets(root: Path) -> FakeExperiment:
    first = three_configurations(root)
    second = FakeExperiment(
        root, dataset="published", provenance="files", leaky=True, runs=first.runs,
        split={"by": "cluster"}, not_separable=["COVID", "SARS"], similarity=np.full(705, 0.99),
    ).add_dataset()  # fmt: skip
    return second.add("single", "1x1", 50.0, untested="SARS").add(
        "horovod-mpi", "1x2", 60.0, variant="as-published", accuracy=0.7, untested="SARS"
    )


def _many_references(root: Path) -> FakeExperiment:
    """Return an experiment with a reference for each variant, and enough matches or too few."""
    experiment = FakeExperiment(root, seeds=(4, 5)).add_dataset()
    for variant in ("plain", "fast", "small", "large"):
        experiment.add("single", "1x1", 5.0, 6, variant=variant)
        experiment.add("horovod-mpi", "1x2", 3.0, 6, variant=variant, accuracy=0.7)
        experiment.add("horovod-gloo", "1x2", 3.0, 2, variant=variant, accuracy=0.7)
    return experiment


def _laddered(root: Path) -> dict[str, pd.DataFrame]:
    experiment, paths, rungs = laddered(root)
    return _tables(experiment, series_files=paths, rungs=rungs)


def _twice(root: Path, slower: float, seconds: int | None = None) -> dict[str, pd.DataFrame]:
    experiment, again = twice(root, slower)
    return _tables(experiment, series_files=again[:seconds])


def _piloted(root: Path, half_width: str = "0.1 %") -> dict[str, pd.DataFrame]:
    experiment, again = twice(root)
    matches = {"half_width": half_width, "repeats": 7, "at_most": 40}
    write_json(root / "pilot.json", pilot.plan(tables.Evidence(experiment.runs), matches))
    return _tables(experiment, series_files=again, pilot_file=root / "pilot.json")


#: Experiments that no other test makes, by name. Tests of the summary check theirs as well.
EXPERIMENTS = {
    "unlike": lambda root: _tables(_unlike(root), references=REFERENCES),
    "two datasets": lambda root: _tables(_two_datasets(root)),
    "many references": lambda root: _tables(_many_references(root)),
    "failed": lambda root: _tables(_all_failed(root)),
    "ladder": _laddered,
    "noise": lambda root: _twice(root, 0.01),
    "pilot": lambda root: _piloted(root),
    "few second runs": lambda root: _twice(root, 0.0, 5),
}


@pytest.fixture(scope="module", params=EXPERIMENTS)
def findings(few_resamples, request, tmp_path_factory) -> list[Finding]:
    """All findings on one experiment."""
    frames = EXPERIMENTS[request.param](tmp_path_factory.mktemp("experiment"))
    return [each for section in SECTIONS for each in of_section(section, frames, "demo")]


def test_every_finding_is_one_short_sentence_with_its_evidence(findings):
    assert findings
    check(findings)


def test_a_comparison_of_scores_begins_with_what_it_covers(findings):
    compared = [each for each in findings if each.table in ("mean_scores", "score_differences")]
    covered = {each.text.partition(",")[0].removeprefix("Over ") for each in compared}
    assert covered <= {"seeds only", "seeds and splits", "test rows only"}
    assert all(("seeds" in each.text) == (each.table == "mean_scores") for each in compared)


def test_the_first_finding_is_the_answer(findings):
    verdicts = "Yes: |No: |Not distinguishable: |No verdict|Unavailable: |Nothing was compared"
    assert re.match(verdicts, findings[0].text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("Yes: two processes take 0.58 of the time (0.55–0.62, 7 matches), as expected.", None),
        ("It takes 0.58 (0.55–0.62), 3 times in 4 runs.", "3 numbers"),
        ("It takes long. So it does not pay.", "not one sentence"),
        (f"It takes {'very ' * 22}long.", None),
        (f"It takes {'very ' * 23}long.", "26 words"),
        ("`1 2 3 4` is a name.", None),
        ("it has no capital.", "no capital"),
        ("It ends without a stop", "not one sentence"),
        ("It has (4 of 5) runs in brackets, and 6.", "3 numbers"),
    ],
)
def test_the_rules_find_what_breaks_them(text, problem):
    assert list(problems(text)) == ([problem] if problem else [])


@given(st.text(min_size=1), st.integers(2, 60))
def test_a_quotation_ends_where_it_ends(text, letters):
    shown = quoted(text, letters)
    assert re.fullmatch(r"`[^`\n]*`", shown) and len(shown) <= letters + 2


@given(st.floats(1e-9, 1e9), st.sampled_from([-1, 1]), st.booleans())
def test_a_number_has_three_digits_and_no_exponent(size, side, signed):
    text = significant(side * size, signed)
    assert re.fullmatch(r"[-+]?\d+(\.\d+)?", text)
    assert float(text) == pytest.approx(side * size, rel=0.005)
    assert len(text.strip("-+0.").replace(".", "").strip("0")) <= 3
    assert text.startswith("+") == (signed and side > 0)
    assert significant(0.0, signed) == significant(-0.0, signed) == "+" * signed + "0"


@given(st.lists(st.from_regex(r"[a-z0-9]{1,8}", fullmatch=True), min_size=1, max_size=40))
def test_a_list_of_names_stays_short_and_counts_the_rest(names):
    text = listed(names)
    shown = re.findall(r"`([^`]*)`", text)
    more = re.search(r" and (\d+) more$", text)
    assert shown == names[: len(shown)] and 1 <= len(shown) <= 3
    assert len(shown) + (int(more[1]) if more else 0) == len(names)


def _sure(frames) -> str:
    return " ".join(each.text for each in of_section("sure", frames, "demo"))


def test_noise_drift_and_what_one_session_shows_are_told(tmp_path):
    frames = _twice(tmp_path, 0.01)
    text = _sure(frames)
    assert re.search(r"`single[^`]*` takes 1\.0\d times its own time \(.*, 7 matches\)", text)
    (row,) = frames["drift"].itertuples()
    assert (
        "The machine drifted in session" in text and f"{1 + row.change:.2f} times as long" in text
    )
    mark = "time than `single 1x1` has 95 % confidence, and was seen in one session only"
    for verdict, words in (("faster", "less"), ("slower", "more")):
        speedup = frames["speedup"].assign(best_verdict=verdict)
        assert f"takes {words} {mark}" in _sure(frames | {"speedup": speedup})
    changed = frames["drift"].assign(change_low=-0.1, change_high=0.3)
    assert "changed within session" in _sure(frames | {"drift": changed})
    steady = frames["drift"].assign(detected=False)
    assert "No drift of the machine was detected in 1 session" in _sure(frames | {"drift": steady})
    assert "seen in one session" not in _sure(
        frames | {"speedup": frames["speedup"].assign(sessions=2)}
    )


def test_ladders_answer_where_nothing_else_is_compared(tmp_path):
    frames = _laddered(tmp_path)
    alone = {
        name: frame[frame["strategy"] == "single"] if "strategy" in frame else frame
        for name, frame in frames.items()
    }
    found = list(of_section("answer", alone, "demo"))
    check(found)
    assert [each.text for each in found] == [
        "Together, the changes of `way` shorten an epoch to 0.50 (range 0.50–0.50) of its time; "
        "the largest, `from slower to fast`, to 0.40."
    ]
    assert {(each.table, each.figure) for each in found} == {("ladder", "ladder")}
    assert next(of_section("why", alone, "demo")).text.startswith(
        "Of the changes of `way`, the largest is `from slower to fast`: 0.40 of the time"
    )
    short = alone["ladder"].iloc[:1]
    failed = short.assign(kind="unavailable", reason="no match")
    for ladder, text in (
        (
            short,
            "With `from slow to slower`, an epoch takes 1.25 (range 1.25–1.25) times the time.",
        ),
        (failed, "Unavailable: the ladder `way` has no ratio: `no match`."),
    ):
        assert next(of_section("answer", alone | {"ladder": ladder}, "demo")).text == text


@pytest.mark.parametrize(("low", "high", "differ"), [(0.26, 0.28, True), (0.19, 0.35, False)])
def test_ladders_with_the_same_ends_that_disagree_are_named(tmp_path, low, high, differ):
    frames = _laddered(tmp_path)
    ladder = frames["ladder"].copy()
    whole = ladder["part"] == "direct"
    ladder.loc[whole, ["ratio", "ratio_low", "ratio_high"]] = 0.17, 0.16, 0.20
    other = ladder.assign(ladder="back")
    other.loc[whole, ["ratio", "ratio_low", "ratio_high"]] = (low + high) / 2, low, high
    both = frames | {"ladder": pd.concat([ladder, other], ignore_index=True)}
    found = [each for each in of_section("sure", both, "demo") if "same ends" in each.text]
    check(found)
    assert len(found) == differ
    if differ:
        ends = sorted([(0.17, "`way`"), ((low + high) / 2, "`back`")])
        assert found[0].text.startswith(f"{ends[0][1]} and {ends[1][1]} have the same ends, but ")
        assert f"ratios {ends[0][0]:.2f} and {ends[1][0]:.2f} do not overlap." in found[0].text


def test_a_pilot_tells_what_it_asked_for_and_whether_it_was_cut(tmp_path):
    frames = _piloted(tmp_path / "cut")
    row = frames["pilot"].loc[frames["pilot"]["needed"].idxmax()]
    text = _sure(frames)
    assert f"had a deviation of {100 * row['deviation']:.1f} %" in text
    assert (
        f"requires {row['needed']} matches" in text and "The experiment allowed 40 repeats" in text
    )
    assert "allowed" not in _sure(_piloted(tmp_path / "enough", "9 %"))
