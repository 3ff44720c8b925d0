"""Findings are single short sentences with their evidence, and have the numbers of the tables."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from fixtures_runs import (
    CLASSES,
    LABELS,
    REFERENCES,
    FakeExperiment,
    changed,
    fair,
    laddered,
    program,
    regression,
    three_configurations,
    twice,
    with_fits,
)
from hypothesis import given
from hypothesis import strategies as st
from pages import epoch_rows, failed, tabled
from scipy import stats
from sentences import check, told

from escala.analysis.attribution import OFF_CORE, OVERLAP, UNEXPLAINED, WHOLE
from escala.analysis.comparable import CONFIGURATION
from escala.analysis.rates import DOES_NOT_LEARN, LEARNS, UNKNOWN, judge_learning
from escala.analysis.statistics import MATCHES_FOR_INTERVAL
from escala.analysis.verdicts import FASTER, NO_VERDICT, NOT_DISTINGUISHABLE, Ratio
from escala.core.files import read_json, write_json
from escala.experiment.runs import layout_in_words, strategy_in_words
from escala.record.collect import evaluate
from escala.report.findings import SECTIONS, section_findings, why
from escala.report.findings.context import Report, inverse
from escala.report.findings.words import (
    Finding,
    Names,
    list_names,
    name_in_words,
    quote,
    significant,
    with_labels,
)
from escala.report.summary import all_findings, first_screen, overview, summary
from escala.report.tables.views import names_of_rows
from escala.strategies import STRATEGIES

pytestmark = pytest.mark.usefixtures("few_resamples")


def _text(frames: dict[str, pd.DataFrame], section: str) -> str:
    return " ".join(told(frames, section))


@pytest.fixture(scope="module")
def measured(few_resamples, tmp_path_factory):
    return tabled(fair(tmp_path_factory.mktemp("fair"), 5.6, 4.6, 3.9), references=REFERENCES)


@pytest.fixture
def frames(measured):
    """Tables whose best use, two processes, takes less time than one."""
    return {name: frame.copy() for name, frame in measured.items()}


# Every experiment.


def _all_failed(root: Path) -> dict[str, pd.DataFrame]:
    reason = "a `quoted`\nreason. And | more <b>" + " 1" * 99
    failures = dict.fromkeys((1, 2, 3), ("failed", reason))
    experiment = FakeExperiment(root, leaky=True).add_dataset()
    experiment.add("single", "1x1", 5.0, failed=failures)
    return tabled(experiment.add("horovod-mpi", "2x2", 5.0, failed=failures, cores=2))


def _unlike(root: Path) -> dict[str, pd.DataFrame]:
    """Return the tables of many nodes, some of whose runs are without a match."""
    experiment = fair(root, 4.0, 4.0, 4.0, repeats=8)
    experiment.add("horovod-gloo", "2x8", 3.9, 7, rows=64, cores=4, accuracy=0.7)
    paths = [path for path in experiment.runs if "horovod-gloo" in path.parts]
    kind = {"cpu": "Faster CPU", "cores_total": 2, "memory_bytes": 2**33, "cores_available": 2}
    ranks = read_json(paths[0])["ranks"] | {"hosts": ["other"], "machines": [kind]}
    changed(paths[:3], ranks=ranks)
    return tabled(experiment, references=REFERENCES)


def _two_datasets(root: Path) -> dict[str, pd.DataFrame]:
    first = three_configurations(root)
    second = FakeExperiment(
        root, dataset="published", provenance="files", leaky=True, runs=first.runs,
        split={"by": "cluster"}, not_separable=["COVID", "SARS"], similarity=np.full(705, 0.99),
    ).add_dataset()  # fmt: skip
    more = {"accuracy": 0.7, "untested": "SARS"}
    second.add("single", "1x1", 50.0, untested="SARS")
    return tabled(second.add("horovod-mpi", "1x2", 60.0, variant="as-published", **more))


def _many_references(root: Path) -> dict[str, pd.DataFrame]:
    """Return the tables of a reference for each variant, and enough matches or too few."""
    experiment = FakeExperiment(root, seeds=(4, 5)).add_dataset()
    for variant in ("plain", "fast", "small", "large"):
        experiment.add("single", "1x1", 5.0, 6, variant=variant)
        experiment.add("horovod-mpi", "1x2", 3.0, 6, variant=variant, accuracy=0.7)
        experiment.add("horovod-gloo", "1x2", 3.0, 2, variant=variant, accuracy=0.7)
    return tabled(experiment)


def _laddered(root: Path) -> dict[str, pd.DataFrame]:
    experiment, paths, rungs = laddered(root)
    return tabled(experiment, series_files=paths, rungs=rungs)


def _twice(root: Path) -> dict[str, pd.DataFrame]:
    experiment, again = twice(root, 0.01)
    return tabled(experiment, series_files=again)


def _unknown_part(root: Path) -> dict[str, pd.DataFrame]:
    experiment = three_configurations(root)
    for path in experiment.runs[:3]:
        changed([path], seconds=read_json(path)["seconds"] | {"averaging": None})
    return tabled(experiment)


def _cut(root: Path) -> dict[str, pd.DataFrame]:
    experiment = FakeExperiment(root).add_dataset().add("single", "1x1", 5.0)
    changed(experiment.runs, training={"steps_per_epoch": 1000, "resumed_after": [1]})
    return tabled(experiment)


def _clusters(root: Path) -> dict[str, pd.DataFrame]:
    """Return the tables of fits, and of a dataset that is split by clusters."""
    experiment = with_fits(root)
    clusters = FakeExperiment(
        root, dataset="demo-cluster", split={"by": "cluster"},
        not_separable=["COVID", "SARS"], similarity=np.full(705, 0.97),
    )  # fmt: skip
    clusters.add_dataset().add("single", "1x1", 5.0, accuracy=0.8, untested="SARS")
    experiment.runs += clusters.runs
    return tabled(experiment)


EXPERIMENTS = {
    "three": lambda root: tabled(three_configurations(root)),
    "fair": lambda root: tabled(fair(root, 5.6, 4.6, 3.9), references=REFERENCES),
    "fits": lambda root: tabled(with_fits(root)),
    "regression": lambda root: tabled(regression(root)),
    "unlike": _unlike,
    "two datasets": _two_datasets,
    "many references": _many_references,
    "failed": _all_failed,
    "ladder": _laddered,
    "noise": _twice,
    "unknown part": _unknown_part,
    "cut": _cut,
    "clusters": _clusters,
}
#: Others show what they tell.
SWEPT = ("fair", "fits", "unlike", "many references", "ladder")
#: Of experiments, a section, and a pattern that is in it or, after "not", is in none of it.
TOLD = [
    ("unknown part", "why", r"`single 1x1` spends at least 6\.9 of 30\.8 s"),
    ("three", "why", r"not at least"),
    ("cut", "why", r"unavailable: no run ended ok without interruption"),
    ("cut", "scores", r"unavailable: no run that ended ok trained over whole epochs"),
    ("cut", "answer", r"^Nothing was compared"),
    ("failed", "answer", r"^Unavailable: `"),
    ("failed", "why", r"unavailable"),
    ("failed", "scores", r"unavailable"),
    ("noise", "sure", r"times the time of its duplicate .* drifted in session"),
    ("regression", "scores", r"its split is leaky"),
    ("regression", "scores", r"`rmse` is 0\.5 for `single 1x1` and 0\.55 for `horovod-mpi 1x2`\."),
    ("clusters", "scores", r"lowest precision of a class is"),
    ("clusters", "scores", r"On `demo-1000`, split by `random`, 90 % of the test rows"),
    (
        "clusters",
        "scores",
        r"`kmer-logreg` is 0\.9\d\d on all test rows, and 0\.9\d\d on rows without",
    ),
    ("clusters", "scores", r"On `demo-cluster`, split by `cluster`, 100 %"),
    ("clusters", "scores", r"`COVID, SARS` cannot be separated"),
    ("clusters", "scores", r"unavailable on rows without near-duplicate"),
    ("clusters", "scores", r"no test rows, and hence no scores, of `SARS \(demo-cluster\)`"),
    # Fits are there for their scores and compared in nothing else.
    ("clusters", "scores", r"The median accuracy of `majority` on `demo-1000` is 0\.\d{3}\."),
    *(("clusters", section, r"not kmer-logreg") for section in ("answer", "why", "sure", "cost")),
]
#: What a reader does not know who reads a page for the first time.
TERMS = re.compile(r"\d+x\d+|\b(match|rank|variant|layout|allreduce)(es|s)?\b|horovod-|torch-|ddp-")


def _screen(report: Report, findings: dict[str, list[Finding]]) -> list[str]:
    """Return the texts of the first screen, which are free of our terms."""
    screen = first_screen(report, findings)
    answers = [finding.spoken for answer in screen.answers for finding in answer.findings]
    briefs = [finding.spoken for brief in screen.brief.values() for finding in brief]
    texts = [screen.question, *answers, *briefs]
    for text in texts:
        assert not TERMS.search(re.sub(r"`[^`]*`", "", text)), text
    return texts


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.sweep] if n in SWEPT else []) for n in EXPERIMENTS],
)
def test_every_finding_is_one_short_sentence_and_the_first_screen_is_in_words(name, tmp_path):
    frames = EXPERIMENTS[name](tmp_path)
    report = Report(frames, "demo")
    sections = all_findings(report)
    findings = [each for section in sections.values() for each in section]
    check(findings)
    compared = [each for each in findings if each.table in ("mean_scores", "score_differences")]
    covers = {each.text.partition(",")[0].removeprefix("Over ") for each in compared}
    assert covers <= {"seeds only", "seeds and splits", "test rows only"}
    assert all(("seeds" in each.text) == (each.table == "mean_scores") for each in compared)
    _screen(report, sections)
    if name == "clusters":
        assert re.search(
            r"kmer-logreg \|.*\| – \(fit: 0\.\d\d s\) \|", summary(frames, "demo", "T")
        )
    for _, section, pattern in (row for row in TOLD if row[0] == name):
        expected = not pattern.startswith("not ")
        text = " ".join(finding.text for finding in sections[section])
        assert bool(re.search(pattern.removeprefix("not "), text)) == expected, (pattern, text)
    if name == "noise":
        drift = frames["drift"]
        for changes, said in (
            ({"change_low": -0.1, "change_high": 0.3}, "changed within session"),
            ({"detected": False}, "No drift of the machine was detected"),
        ):
            assert said in _text(frames | {"drift": drift.assign(**changes)}, "sure")


# Words.


@given(st.text(min_size=1), st.integers(2, 60))
def test_a_quotation_ends_where_it_ends(text, letters):
    shown = quote(text, letters)
    assert re.fullmatch(r"`[^`\n]*`", shown) and len(shown) <= letters + 2
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


@pytest.mark.parametrize(
    ("layout", "strategy", "threads", "expected"),
    [
        ("1x1", "single", 1, "one process"),
        ("1x1", "single", 2, "one process with two threads"),
        ("1x2", "ddp-gloo", 4, "two processes on one node with four threads each"),
        ("2x1", "ddp-gloo", 1, "two processes on two nodes"),
        ("3x4", "horovod-gloo", 1, "12 processes on three nodes"),
        ("1x2", "mirrored", 1, "one process with two copies of the model"),
        ("1x2", "no-longer-there", 1, "two processes on one node"),
    ],
)
def test_a_layout_is_said_by_its_processes(layout, strategy, threads, expected):
    assert layout_in_words(layout, strategy, threads) == expected


def test_each_strategy_is_said_in_words_of_its_own_or_by_its_name(monkeypatch):
    said = [strategy_in_words(name) for name in STRATEGIES]
    assert len(set(said)) == len(said)
    quiet = type("Quiet", (STRATEGIES["horovod-mpi"],), {"name": "horovod-quiet"})
    monkeypatch.setitem(STRATEGIES, "horovod-quiet", quiet)
    for name in ("horovod-quiet", "no-longer-there"):
        assert strategy_in_words(name) == name


def test_words_tell_configurations_apart_and_say_no_more(measured, tmp_path):
    named = name_in_words(tabled(three_configurations(tmp_path / "three")))
    for label, expected in {
        "single 1x1": "one process",
        "horovod-mpi 1x2": "two processes on one node (Horovod over MPI)",
        "horovod-gloo 1x2": "two processes on one node (Horovod over Gloo)",
    }.items():
        assert named[label] == named[f"{label} tuned"] == expected
    named = name_in_words(measured)
    assert named["single 1x1 threads"] == "one process with two threads"
    assert named["horovod-mpi 1x2 tuned"] == "two processes on one node"
    experiment = FakeExperiment(tmp_path / "many").add_dataset()
    other = FakeExperiment(experiment.root, dataset="other", runs=experiment.runs).add_dataset()
    for each in (experiment, other):
        for variant in ("slow", "fast"):
            each.add("single", "1x1", 5.0, variant=variant)
    frames = tabled(other)
    labels = with_labels(frames["configurations"], frames)["label"]
    said = set(map(Names(name_in_words(frames)), labels))
    assert len(said) == len(labels) == 4 and "one process (`slow`, `other`)" in said


def test_verbs_follow_their_subjects_and_words_leave_out_the_number_of_paired_runs():
    names = Names({"a 1x2": "two processes on one node", "b 1x1": "one process"})
    assert names.subject("a 1x2", "takes") == "two processes on one node take"
    assert Names().subject("a 1x2", "takes") == "`a 1x2` takes"
    assert names.subject("b 1x1", "takes") == "one process takes"
    ratio = Ratio(0.5, 0.4, 0.6, 9)
    assert names.fraction(ratio, "time") == "0.50 of the time (0.40–0.60)"
    assert Names().interval(ratio) == " (0.40–0.60, 9 paired runs)"


# The first screen, the table of configurations, and the summary.


def test_the_first_screen_prefers_the_configuration_that_answers(frames):
    [answer] = Report(frames).answers
    general, mine = (
        Finding(f"Something about {what}.", "runs", spoken=f"Something about {what}.")
        for what in ("all", quote(answer.label))
    )
    line = Finding("The answer.", "best_use", task=answer.key)
    for of_all, sections in (([general, mine], "why sure cost next"), ([general], "why sure next")):
        found = {
            name: of_all if name in sections else [] for name in ("why", "sure", "cost", "next")
        }
        screen = first_screen(
            Report(frames), found | {"answer": [line], "scores": [], "failures": []}
        )
        assert set(screen.brief) == set(sections.split())
        prefers = [brief == [general] for brief in screen.brief.values()]
        assert set(prefers) == {mine not in of_all}


def test_the_table_of_configurations_has_the_values_of_the_tables(frames):
    def numbers(cell: str) -> list[float]:
        return [float(each) for each in re.findall(r"\d+\.?\d*", cell)]

    headings, rows = overview(Report(frames))
    cells = {row[0]: dict(zip(headings, row, strict=True)) for row in rows}
    speedup = frames["speedup"].query("strategy == 'horovod-mpi' and reference == 1").iloc[0]
    [label] = [each for each in cells if each.startswith("horovod-mpi")]
    for heading, column in (("speed-up", "speedup"), ("efficiency",) * 2):
        ends = [round(speedup[f"{column}{end}"], 2) for end in ("", "_low", "_high")]
        assert numbers(cells[label][heading]) == ends
    [answer] = Report(frames).answers
    for each in answer.alternatives:
        text = cells[each.label]["time to the best use"].partition(", ")[0]
        assert numbers(text) == [round(value, 2) for value in inverse(each.ratio)[:3]]
    [accuracy] = frames["configurations"].query("strategy == 'horovod-mpi'")["accuracy"]
    assert numbers(cells[label]["accuracy"])[0] == round(accuracy, 3)
    runs = frames["runs"].query("strategy == 'horovod-mpi'")
    assert {cells[label]["global batch"]} == {f"{each:g}" for each in runs["global_batch"]}


def test_the_summary_has_all_findings_with_links_to_their_evidence(tmp_path):
    frames = tabled(three_configurations(tmp_path))
    files = ["figures/seconds_per_epoch.svg", "tables/best_use.csv", "tables/runs.csv"]
    text = summary(frames, "demo", "A title", files)
    title, answer, *_ = text.split("\n\n")
    assert "rep 1, 2, 3 (failed): `a 'quoted' reason." in summary(
        _all_failed(tmp_path / "failed"), "demo", "A title"
    )
    evidence = "([table](tables/best_use.csv), [figure](figures/seconds_per_epoch.svg))"
    found = all_findings(Report(frames, "demo"))
    assert title == "# A title" and answer == f"**{found['answer'][0].spoken}** {evidence}"
    for section, findings in found.items():
        for finding in findings[section == "answer" :]:
            assert f"- {finding.text}" in text
    assert "- [best_use.csv](tables/best_use.csv)" in text
    headings = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert [each for each in [*SECTIONS.values()] if each in headings] == headings[:-2]
    count, remedy = (finding.text for finding in found["failures"])
    assert "9 timing runs, 1 did not" in count and "`uv run escala retry results/demo`" in remedy
    assert "- `horovod-gloo 1x2` rep 3 (failed): `rank 1 was ended by signal 9`\n" in text


# Times and costs.


def test_only_current_runs_count_and_name_their_machines(tmp_path):
    frames = failed(tmp_path / "failed")
    assert "Of 2 timing runs, 2 did not end ok." in told(frames, "failures")
    earlier = frames["runs"].iloc[:1].assign(current=False, repeat=9)
    frames["runs"] = pd.concat([frames["runs"], earlier], ignore_index=True)
    assert "Of 2 timing runs, 2 did not end ok." in told(frames, "failures")
    experiment = FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 5.0)
    run = read_json(experiment.runs[0])
    older = {"session": "20250101T000000Z-1", "started": "2025-01-01T00:00:00+00:00"}
    older["machine"] = run["machine"] | {"cpu": "Old CPU"}
    path = experiment.runs[0].parent / "sessions" / "20250101T000000Z-1.json"
    write_json(path, run | older)
    frames = tabled(experiment)
    assert "Old CPU" in set(frames["runs"]["cpu"])
    text = _text(frames, "data")
    assert "3 runs that ended ok" in text and "Example CPU" in text and "Old CPU" not in text


def test_the_cost_and_the_efficiency_are_those_of_all_cores(frames):
    core_time, hours = told(frames, "cost")
    [answer] = Report(frames).answers
    # Two processes with a core each against one process with one core.
    assert all(f"{2 * end:.2f}" in core_time for end in answer.fewer.ratio[:3])
    row = answer.fewer.row
    for cores, seconds in ((2, row["run_seconds"]), (1, row["alternative_run_seconds"])):
        assert f"{cores * seconds / 3600:.2g}" in hours
    rows = epoch_rows(frames).set_index(["variant", "reference"])
    fractions = (rows["efficiency"] / rows["speedup"]).to_dict()
    assert fractions == pytest.approx({("threads", 1): 0.5, ("tuned", 1): 0.5, ("tuned", 2): 1})


@pytest.mark.parametrize(("error", "direction"), [(0.25, "above"), (-0.25, "below")])
def test_the_largest_error_of_predictions_has_a_direction(frames, error, direction):
    errors = {"predicted_seconds_per_epoch": 1.0, "error": [0.1, -0.05, error], "ranks": 2}
    frames["predictions"] = frames["configurations"][list(CONFIGURATION)].assign(
        **errors, runs=7, covered=6, basis="predicted"
    )
    assert f"the predicted time is 25 % {direction} the measured time" in _text(frames, "sure")


# Parts of a step.


def _steps(frames, parts: dict[str, float], timed: float | None = None) -> str:
    """Return why, by how much more the parts of a step of two processes take, in ms.

    A step in the timing runs takes `timed` ms more; as with clocks if it is not given.
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
        ends = {"": more, "_low": more - 5, "_high": more + 5}
        one = {"strategy": "single", "layout": "1x1", "seconds": 0.1}
        two = {"strategy": "horovod-mpi", "layout": "1x2", "seconds": 0.1 + more / 1000}
        two |= {f"difference{end}_seconds": value / 1000 for end, value in ends.items()}
        rows += [about | {"part": part} | each for each in (one, two)]
    empty = frames["attribution"].iloc[:0]
    frames["attribution"] = pd.concat([empty, pd.DataFrame(rows)], ignore_index=True)
    return _text(frames, "why")


LESS, MORE = {"compute": -59.0, "transfer": 40.0}, {"compute": 59.0}


@pytest.mark.parametrize(
    ("verdict", "parts", "timed", "said", "unsaid"),
    [
        (NOT_DISTINGUISHABLE, LESS, None, "A step of `horovod-mpi 1x2", "ms less than"),
        # The part that is named explains the difference.
        (NO_VERDICT, LESS | {"skew": 20.8}, None, "40.0 ms more (35.0–45.0)", "59.0"),
        (NO_VERDICT, LESS, None, "59.0 ms less (54.0–64.0)", "40.0"),
        # The difference is that of the timing runs, and its parts are of the clocks.
        (
            FASTER,
            LESS,
            -30.0,
            "takes 30.0 ms less than a step of `single 1x1 tuned`: 59.0",
            "is not",
        ),
        # Of another sign, or more than twice or less than half as much.
        (FASTER, LESS, 21.8, "is not explained", "59.0"),
        (FASTER, LESS, -9.0, "is not explained", "59.0"),
        (FASTER, LESS, -39.0, "is not explained", "59.0"),
        # By steps two processes take more time, and by the answer less.
        (FASTER, MORE, None, "is not explained", "59.0 ms more (54"),
        (NOT_DISTINGUISHABLE, MORE, None, "A step of", "is not explained"),
    ],
)
def test_steps_explain_the_answer_that_they_agree_with(frames, verdict, parts, timed, said, unsaid):
    best = frames["best_use"]["strategy"] == "horovod-mpi"
    assert best.any()
    frames["best_use"].loc[best, "verdict"] = verdict
    text = _steps(frames, parts, timed)
    assert said in text and unsaid not in text


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


def test_what_others_took_of_the_cores_is_told_and_not_called_explained(frames):
    """Of a step of 100 ms, 75 are off the core; what was not sampled is unavailable."""
    fractions = {WHOLE: 1.0, OFF_CORE: 0.75, UNEXPLAINED: 0.0, OVERLAP: 0.0, "compute": 0.25}
    _steps(frames, dict.fromkeys(fractions, 0.0))
    table = frames["attribution"]
    table["fraction"] = table["part"].map(fractions)
    assert "at most 75.0 % is off the core" in _text(frames, "sure")
    assert "75 % of it off the core" in _text(frames, "why")
    table.loc[table["part"] == OFF_CORE, "fraction"] = None
    text = _text(frames, "sure")
    assert "is off the core is unavailable" in text and "75.0" not in text


def test_no_part_is_named_where_an_unknown_one_may_be_larger(frames):
    text = _steps(frames, {"compute": -59.0, "input": -0.2})
    assert "59.0 ms less (54.0–64.0)" in text and "an equal share of" in text
    parts = frames["attribution"]
    columns = ["seconds", "fraction", "difference_seconds"]
    parts.loc[parts["part"] == "compute", columns] = np.nan
    text = _text(frames, "why")
    assert "takes 59.2 ms less than" in text and "0.2 ms less" not in text
    assert "an equal share of" not in text


ONE = {"strategy": "single", "layout": "1x1"}
NATIVE = {"strategy": "horovod-mpi", "layout": "2x1", "network": "native"}


@pytest.mark.parametrize(
    ("references", "networks", "pairs"),
    [
        ([ONE, NATIVE], ("native", "slow"), True),
        # Without a match over both, median times are compared.
        ([ONE], ("native", "slow"), False),
        ([ONE], ("native",), None),
    ],
)
def test_what_a_slower_network_costs_is_told(tmp_path, references, networks, pairs):
    """An epoch takes 2 s over the first network, and 3 s over the second one."""
    experiment = FakeExperiment(tmp_path).add_dataset().add("single", "1x1", 1.0, 7)
    for times, network in enumerate(networks, 2):
        experiment.add("horovod-mpi", "2x1", float(times), 7, variant=network)
        over = [path for path in experiment.runs if network in path.parts]
        changed(over, variant="tuned", network=network)
    frames = tabled(experiment, references=references)
    over = [text for text in told(frames, "why") if text.startswith("Over `slow`")]
    assert len(over) == (pairs is not None)
    for text in over:
        [ratio] = re.findall(r"takes (1\.\d+) times the time over `native`", text)
        assert float(ratio) == pytest.approx(1.5, abs=0.1)
        assert ("7 paired runs" in text) == pairs


# How sure.


def _disturb(frames: dict[str, pd.DataFrame], **runs: object) -> None:
    """Change one run of the best use, while nothing can be told apart."""
    frames["runs"]["disturbed"] = False
    [answer] = Report(frames).answers
    table = frames["runs"]
    mine = (table["strategy"] == answer.names[2]) & (table["variant"] == answer.names[4])
    for name, value in runs.items():
        table.loc[mine & (table["repeat"] == 1), name] = value
    frames["best_use"] = frames["best_use"].assign(
        verdict=NOT_DISTINGUISHABLE, ratio_low=0.61, ratio_high=1.4
    )


def test_runs_that_stay_disturbed_are_named_and_slow_ones_are_not(frames):
    slow = {name: frame.copy() for name, frame in frames.items()}
    because = "0.97 core of other processes"
    _disturb(frames, disturbed=True, disturbed_because=because, earlier_attempts=2)
    assert quote(because) in _text(frames, "sure")
    assert "Leave the machine idle" in _text(frames, "next")
    _disturb(slow, train_seconds_per_epoch=30.0)
    assert "No disturbance was detected. Only work of others" in _text(slow, "sure")
    slow["runs"]["kernel_slowdown"] = 1.02
    assert "No disturbance was detected. Other work on a GPU" in _text(slow, "sure")
    assert "sessions" in _text(slow, "next") and "Leave the machine idle" not in _text(slow, "next")


def test_runs_without_a_partner_are_counted_in_the_advice(frames):
    [answer] = Report(frames).answers
    frames["best_use"] = frames["best_use"].assign(matches=4, verdict=NO_VERDICT)
    # Three of its seven runs have no run of another configuration in their session and repeat.
    expected = f"{quote(answer.label)}, set `repeats` to {MATCHES_FOR_INTERVAL + 3} or more"
    assert expected in _text(frames, "next")


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
    short = alone["ladder"].iloc[:1]
    lost = short.assign(kind="unavailable", reason="no match")
    assert "`from slow to slower`, an epoch takes 1.25 (" in _text(
        alone | {"ladder": short}, "answer"
    )
    assert "`way` has no ratio: `no match`" in _text(alone | {"ladder": lost}, "answer")
    # Two with the same ends that disagree are named.
    for low, high, differ in ((0.26, 0.28, True), (0.19, 0.35, False)):
        ladder = frames["ladder"].copy()
        whole, columns = ladder["part"] == "direct", ["ratio", "ratio_low", "ratio_high"]
        ladder.loc[whole, columns] = 0.17, 0.16, 0.20
        other = ladder.assign(ladder="back")
        other.loc[whole, columns] = 0.27, low, high
        both = frames | {"ladder": pd.concat([ladder, other], ignore_index=True)}
        named = [text for text in told(both, "sure") if "same ends" in text]
        assert len(named) == differ and all("`way` and `back`" in text for text in named)


# Scores.


#: Differences of the accuracy in seven paired runs, by the verdict on them.
DIFFERENCES = {
    "same": [-0.01] * 3 + [-0.012, -0.008, -0.014, -0.006],
    "not distinguishable": [-0.3] + [0.0] * 6,
    "different": [-0.3, -0.31] * 3 + [-0.29],
    "no verdict": [-0.3, -0.31] * 2,
}


@pytest.mark.parametrize(("verdict", "differences"), DIFFERENCES.items())
def test_scores_are_the_same_within_a_bound_in_every_paired_run(tmp_path, verdict, differences):
    experiment = fair(tmp_path, 5.6, 4.6, 3.9, repeats=len(differences))
    two = [path for path in experiment.runs if "horovod-mpi" in path.parts]
    for path, difference in zip(two, differences, strict=True):
        evaluation = read_json(path)["evaluation"]
        changed([path], evaluation=evaluation | {"accuracy": evaluation["accuracy"] + difference})
    frames = tabled(experiment, references=REFERENCES)
    means = frames["mean_scores"]
    row = means[(means["strategy"] == "horovod-mpi") & (means["reference"] == 1)].iloc[0]
    assert (row["verdict"], row["bound"]) == (verdict, 0.02)
    if verdict != "no verdict":
        [text] = [text for text in told(frames, "answer") if "train to" in text]
        is_same = verdict == "same"
        assert verdict in text and ("within 0.02 in all seven" in text) == is_same
        assert ("35 %" in text) == is_same == (row["beyond_bound_fraction"] < 0.5)
    if verdict in ("different", "no verdict"):
        low, high = stats.ttest_1samp(differences, 0).confidence_interval()
        for part in ("Over seeds only, ", f"more than {-low:.3g}.", f"({low:.3g} to {high:.3g})."):
            assert (part in _text(frames, "scores")) == (verdict == "different")


# What does not learn.


def _score(experiment: FakeExperiment, strategies: tuple[str, ...], predicted: np.ndarray) -> None:
    """Give the runs of strategies these predictions of the test rows."""
    scores = json.loads(json.dumps(evaluate(LABELS, predicted, CLASSES)))
    for path in experiment.runs:
        if {*strategies} & {*path.parts} and read_json(path)["evaluation"]:
            changed([path], evaluation=scores)
            np.save(path.with_name("predictions.npy"), predicted)


def _kinds(frames) -> dict[str, str]:
    rows = frames["configurations"]
    names = zip(rows["workload"] + " " + rows["strategy"], names_of_rows(rows), strict=True)
    return {label: judge_learning(frames, name).kind for label, name in names}


def _first(frames) -> list[str]:
    """Return what the first screen tells of the scores in any case."""
    return [each.text for each in section_findings("scores", Report(frames, "demo")) if each.first]


ALL = ("single", "horovod-mpi", "horovod-gloo")


@pytest.mark.parametrize(
    "predicted",
    [
        np.zeros_like(LABELS),
        np.full_like(LABELS, 3),
        np.random.default_rng(3).integers(0, 5, len(LABELS)),
        np.where(np.arange(len(LABELS)) < 280, LABELS, 0),
    ],
    ids=["largest class", "another class", "chance", "near the largest class"],
)
def test_what_is_no_better_than_the_largest_class_does_not_learn(tmp_path, predicted):
    experiment = three_configurations(tmp_path)
    _score(experiment, ALL, predicted)
    frames = tabled(experiment)
    assert set(_kinds(frames).values()) == {DOES_NOT_LEARN}
    found = judge_learning(frames, next(names_of_rows(frames["configurations"])))
    assert found.largest_class == pytest.approx(270 / 705)
    assert found.low <= found.accuracy == pytest.approx((predicted == LABELS).mean())
    numbers, times = _first(frames)
    assert f"{found.accuracy:.2f}" in numbers and f"{270 / 705:.2f}" in numbers
    assert times.startswith("The times of `virus-cnn` are")


def test_what_learns_is_compared_with_the_best_baseline(tmp_path):
    experiment = three_configurations(tmp_path, repeats=7)
    [learns] = _first(tabled(experiment))
    assert learns.startswith("`virus-cnn` learns: ")
    _score(experiment, ALL[1:], np.zeros_like(LABELS))
    frames = tabled(experiment)
    assert _kinds(frames) == {"virus-cnn single": LEARNS} | {
        f"virus-cnn {strategy}": DOES_NOT_LEARN for strategy in ALL[1:]
    }
    *failing, learns = _first(frames)
    assert failing and all("`virus-cnn` under `horovod-" in text for text in failing)
    assert learns.startswith("`virus-cnn` learns: ")
    _score(experiment, ALL, np.where(np.arange(len(LABELS)) % 2, LABELS, 4))
    experiment.add("single", "1x1", 0.4, accuracy=0.97, workload="kmer-logreg")
    experiment.add("single", "1x1", 0.001, accuracy=0.4, workload="majority")
    frames = tabled(experiment)
    found = judge_learning(frames, next(names_of_rows(frames["configurations"])))
    assert found.kind == LEARNS and found.baseline_workload == "kmer-logreg"
    assert found.baseline > found.high > found.accuracy
    learns, text = _first(frames)
    assert f"{found.accuracy:.2f}" in learns and f"{found.largest_class:.2f}" in learns
    assert f"{found.baseline:.2f}" in text and f"{found.accuracy:.2f}" in text


@pytest.mark.parametrize("made", [program, regression])
def test_scores_of_unknown_meaning_do_not_judge_learning(tmp_path, made):
    experiment = made(tmp_path)
    if made is program:
        changed(experiment.runs, evaluation={"rows": None, "scores": {"accuracy": 0.01}})
    frames = tabled(experiment)
    assert set(_kinds(frames).values()) == {UNKNOWN}
    assert all(" is not judged: " in text for text in _first(frames)) and _first(frames)
