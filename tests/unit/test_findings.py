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
    with_classes,
)
from hypothesis import given
from hypothesis import strategies as st
from pages import tabled
from sentences import check, told

from escala.core.files import read_json, write_json
from escala.report import pilot, tables
from escala.report.findings import SECTIONS, Finding, section_findings
from escala.report.findings.context import Report
from escala.report.findings.words import list_names, quote, significant

pytestmark = pytest.mark.usefixtures("few_resamples")


def _all_failed(root: Path) -> FakeExperiment:
    reason = "a `quoted`\nreason. And | more <b>" + " 1" * 99
    failed = dict.fromkeys((1, 2, 3), ("failed", reason))
    experiment = FakeExperiment(root, leaky=True).add_dataset()
    experiment.add("single", "1x1", 5.0, failed=failed)
    return experiment.add("horovod-mpi", "2x2", 5.0, failed=failed, cores=2)


def _unlike(root: Path) -> FakeExperiment:
    """Return an experiment of many nodes, some of whose runs are without a match."""
    experiment = fair(root, 4.0, 4.0, 4.0, repeats=8)
    experiment.add("horovod-gloo", "2x8", 3.9, 7, rows=64, cores=4, accuracy=0.7)
    paths = [path for path in experiment.runs if "horovod-gloo" in path.parts]
    kind = {"cpu": "Faster CPU", "cores_total": 2, "memory_bytes": 2**33, "cores_available": 2}
    ranks = read_json(paths[0])["ranks"] | {"hosts": ["other"], "machines": [kind]}
    changed(paths[:3], ranks=ranks)
    return experiment


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
    return tabled(experiment, series_files=paths, rungs=rungs)


def _twice(root: Path, slower: float, seconds: int | None = None) -> dict[str, pd.DataFrame]:
    experiment, again = twice(root, slower)
    return tabled(experiment, series_files=again[:seconds])


def _piloted(root: Path, half_width: str = "0.1 %") -> dict[str, pd.DataFrame]:
    experiment, again = twice(root)
    matches = {"half_width": half_width, "repeats": 7, "at_most": 40}
    write_json(root / "pilot.json", pilot.plan(tables.Evidence(experiment.runs), matches))
    return tabled(experiment, series_files=again, pilot_file=root / "pilot.json")


#: Experiments that no other test makes, by name. Tests of the summary check theirs as well.
EXPERIMENTS = {
    "unlike": lambda root: tabled(_unlike(root), references=REFERENCES),
    "two datasets": lambda root: tabled(_two_datasets(root)),
    "many references": lambda root: tabled(_many_references(root)),
    "failed": lambda root: tabled(_all_failed(root)),
    "ladder": _laddered,
    "noise": lambda root: _twice(root, 0.01),
    "pilot": lambda root: _piloted(root),
    "few second runs": lambda root: _twice(root, 0.0, 5),
}


@pytest.fixture(scope="module", params=EXPERIMENTS)
def findings(few_resamples, request, tmp_path_factory) -> list[Finding]:
    """All findings on one experiment."""
    frames = EXPERIMENTS[request.param](tmp_path_factory.mktemp("experiment"))
    return [
        each for section in SECTIONS for each in section_findings(section, Report(frames, "demo"))
    ]


def test_every_finding_is_one_short_sentence(findings):
    check(findings)


def test_a_comparison_of_scores_begins_with_what_it_covers(findings):
    compared = [each for each in findings if each.table in ("mean_scores", "score_differences")]
    covered = {each.text.partition(",")[0].removeprefix("Over ") for each in compared}
    assert covered <= {"seeds only", "seeds and splits", "test rows only"}
    assert all(("seeds" in each.text) == (each.table == "mean_scores") for each in compared)


@given(st.text(min_size=1), st.integers(2, 60))
def test_a_quotation_ends_where_it_ends(text, letters):
    shown = quote(text, letters)
    assert re.fullmatch(r"`[^`\n]*`", shown) and len(shown) <= letters + 2


def test_a_reason_that_is_cut_keeps_its_last_words():
    assert quote(f"failed: {'Traceback … ' * 20}no data").endswith("no data`")


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
    text = list_names(names)
    shown = re.findall(r"`([^`]*)`", text)
    more = re.search(r" and (\d+) more$", text)
    assert shown == names[: len(shown)] and 1 <= len(shown) <= 3
    assert len(shown) + (int(more[1]) if more else 0) == len(names)


def _sure(frames) -> str:
    return " ".join(told(frames, "sure"))


def test_noise_drift_and_what_one_session_shows_are_told(tmp_path):
    frames = _twice(tmp_path, 0.01)
    text, drift = _sure(frames), frames["drift"]
    assert f"{frames['noise']['ratio'].iloc[0]:.2f} times the time of its duplicate" in text
    assert "The machine drifted in session" in text
    assert f"{1 + drift['change'].iloc[0]:.2f} times as long" in text
    for changes, words in (
        ({"change_low": -0.1, "change_high": 0.3}, "changed within session"),
        ({"detected": False}, "No drift of the machine was detected in 1 session"),
    ):
        assert words in _sure(frames | {"drift": drift.assign(**changes)})


def test_ladders_answer_where_nothing_else_is_compared(tmp_path):
    frames = _laddered(tmp_path)
    alone = {
        name: frame[frame["strategy"] == "single"] if "strategy" in frame else frame
        for name, frame in frames.items()
    }
    [answer] = section_findings("answer", Report(alone, "demo"))
    check([answer])
    assert "changes of `way` shorten an epoch to 0.50 (range 0.50–0.50)" in answer.text
    assert "the largest, `from slower to fast`, to 0.40." in answer.text
    assert (answer.table, answer.figure) == ("ladder", "ladder")
    assert "the largest is `from slower to fast`: 0.40 of the time" in told(alone, "why")[0]
    short = alone["ladder"].iloc[:1]
    failed = short.assign(kind="unavailable", reason="no match")
    for ladder, text in (
        (short, "With `from slow to slower`, an epoch takes 1.25 ("),
        (failed, "Unavailable: the ladder `way` has no ratio: `no match`."),
    ):
        assert told(alone | {"ladder": ladder}, "answer")[0].startswith(text)


@pytest.mark.parametrize(("low", "high", "differ"), [(0.26, 0.28, True), (0.19, 0.35, False)])
def test_ladders_with_the_same_ends_that_disagree_are_named(tmp_path, low, high, differ):
    frames = _laddered(tmp_path)
    ladder = frames["ladder"].copy()
    whole, columns = ladder["part"] == "direct", ["ratio", "ratio_low", "ratio_high"]
    ladder.loc[whole, columns] = 0.17, 0.16, 0.20
    other = ladder.assign(ladder="back")
    other.loc[whole, columns] = 0.27, low, high
    both = frames | {"ladder": pd.concat([ladder, other], ignore_index=True)}
    found = [text for text in told(both, "sure") if "same ends" in text]
    assert len(found) == differ
    assert all("`way` and `back`" in text and "0.17 and 0.27 do not" in text for text in found)


def test_a_pilot_tells_what_it_asked_for_and_whether_it_was_cut(tmp_path):
    frames = _piloted(tmp_path / "cut")
    row, text = frames["pilot"].loc[frames["pilot"]["needed"].idxmax()], _sure(frames)
    assert f"had a deviation of {100 * row['deviation']:.1f} %" in text
    assert f"requires {row['needed']} paired runs" in text and "allowed 40 repeats" in text
    assert "allowed" not in _sure(_piloted(tmp_path / "enough", "9 %"))


ONE = {"strategy": "single", "layout": "1x1"}
NATIVE = {"strategy": "horovod-mpi", "layout": "2x1", "network": "native"}


@pytest.mark.parametrize(
    ("references", "networks", "told_of"),
    [
        ([ONE, NATIVE], ("native", "slow"), r" \(.*7 paired runs\)"),
        # Without a match over both, median times are compared.
        ([ONE], ("native", "slow"), ""),
        ([ONE], ("native",), None),
    ],
)
def test_what_a_slower_network_costs_is_told(tmp_path, references, networks, told_of):
    """An epoch takes 2 s over the first network, and 3 s over the second one."""
    experiment = FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 1.0, 7)
    for times, network in enumerate(networks, 2):
        experiment.add("horovod-mpi", "2x1", float(times), 7, variant=network)
        over = [path for path in experiment.runs if network in path.parts]
        changed(over, variant="tuned", network=network)
    found = [text for text in told(tabled(experiment, references=references), "why")
             if text.startswith("Over ")]  # fmt: skip
    if told_of is None:
        assert found == []
        return
    start = r"Over `slow`, an epoch of `horovod-mpi 2x1 tuned` takes (1\.\d+) times the time over"
    ratio = re.fullmatch(f"{start} `native`{told_of}\\.", found[0])[1]
    assert float(ratio) == pytest.approx(1.5, abs=0.1)


def test_time_outside_the_steps_of_which_a_part_is_unknown_is_a_lower_bound(tmp_path):
    experiment = three_configurations(tmp_path)
    assert not [text for text in told(tabled(experiment), "why") if "at least" in text]
    for path in experiment.runs[:3]:
        changed([path], seconds=read_json(path)["seconds"] | {"averaging": None})
    [found] = [text for text in told(tabled(experiment), "why") if "at least" in text]
    assert found.startswith("`single 1x1` spends at least 6.9 of 30.8 s")


@pytest.mark.parametrize(("classes", "said"), [(100, False), (101, True)])
def test_that_scores_of_single_classes_are_not_kept_is_told(tmp_path, classes, said):
    experiment = with_classes(three_configurations(tmp_path, repeats=1), classes)
    texts = told(tabled(experiment), "scores")
    assert any("single classes" in text and "more than 100" in text for text in texts) == said
    assert any("median accuracy" in text for text in texts), "accuracy is kept in any case"
