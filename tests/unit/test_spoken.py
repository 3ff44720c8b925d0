"""The first screen is in words: no name of a layout, and none of our terms."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from fixtures_runs import REFERENCES, FakeExperiment, fair, program, three_configurations
from pages import tabled

from escala.analysis.verdicts import Ratio
from escala.experiment.runs import layout_in_words, strategy_in_words
from escala.report.findings.context import Report
from escala.report.findings.words import Names, name_in_words, with_labels
from escala.report.first_screen import all_findings, first_screen
from escala.strategies import STRATEGIES

pytestmark = pytest.mark.usefixtures("few_resamples")

#: What a reader does not know who reads a page for the first time.
TERMS = re.compile(
    r"\d+x\d+|\b(match|rank|variant|layout|allreduce|pilot)(es|s)?\b|horovod-|torch-|ddp-"
)


def _screen(frames: dict[str, pd.DataFrame]) -> list[str]:
    """Return the texts of the first screen, which are free of our terms."""
    screen = first_screen(Report(frames, "demo"), all_findings(Report(frames, "demo")))
    told = [finding.spoken for answer in screen.answers for finding in answer.findings]
    found = [screen.question, *told, *screen.brief.values()]
    for text in found:
        assert not TERMS.search(re.sub(r"`[^`]*`", "", text)), text
    return found


@pytest.mark.parametrize(
    ("layout", "strategy", "threads", "expected"),
    [
        ("1x1", "single", 1, "one process"),
        ("1x1", "single", 2, "one process with two threads"),
        ("1x2", "horovod-mpi", 1, "two processes on one node"),
        ("1x2", "ddp-gloo", 4, "two processes on one node with four threads each"),
        ("2x1", "ddp-gloo", 1, "two processes on two nodes"),
        ("3x4", "horovod-gloo", 1, "12 processes on three nodes"),
        ("1x2", "mirrored", 1, "one process with two copies of the model"),
        ("1x2", "own-launcher", 1, "two processes on one node"),
        ("1x2", "no-longer-there", 1, "two processes on one node"),
    ],
)
def test_a_layout_is_said_by_its_processes(layout, strategy, threads, expected):
    assert layout_in_words(layout, strategy, threads) == expected


def test_each_strategy_is_said_in_words_of_its_own_or_by_its_name(monkeypatch):
    said = [strategy_in_words(name) for name in STRATEGIES]
    assert len(set(said)) == len(said)

    class Quiet(STRATEGIES["horovod-mpi"]):
        name = "horovod-quiet"

    class Quieter(Quiet):
        name, said = "horovod-quieter", "Horovod, and quiet"

    for each in (Quiet, Quieter):
        monkeypatch.setitem(STRATEGIES, each.name, each)
    assert strategy_in_words("horovod-quiet") == "horovod-quiet"
    assert strategy_in_words("horovod-quieter") == "Horovod, and quiet"
    assert strategy_in_words("no-longer-there") == "no-longer-there"


def test_words_tell_configurations_apart_and_say_no_more(tmp_path):
    frames = tabled(three_configurations(tmp_path))
    assert name_in_words(frames) == {
        "single 1x1": "one process",
        "single 1x1 tuned": "one process",
        "horovod-mpi 1x2": "two processes on one node (Horovod over MPI)",
        "horovod-mpi 1x2 tuned": "two processes on one node (Horovod over MPI)",
        "horovod-gloo 1x2": "two processes on one node (Horovod over Gloo)",
        "horovod-gloo 1x2 tuned": "two processes on one node (Horovod over Gloo)",
    }


def test_threads_variants_and_datasets_are_said_where_they_differ(tmp_path):
    frames = tabled(fair(tmp_path / "fair", 5.6, 4.6, 3.9), references=REFERENCES)
    named = name_in_words(frames)
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
    assert len(said) == len(labels) == 4
    assert "one process (`slow`, `other`)" in said


def test_verbs_follow_their_subjects_and_words_leave_out_the_number_of_paired_runs():
    names = Names({"a 1x2": "two processes on one node", "b 1x1": "one process"})
    subjects = [each.subject("a 1x2", "takes") for each in (names, Names())]
    assert subjects == ["two processes on one node take", "`a 1x2` takes"]
    assert names.subject("b 1x1", "takes") == "one process takes"
    assert names.subject("c 1x1", "takes") == "`c 1x1` takes"
    ratio = Ratio(0.5, 0.4, 0.6, 9)
    assert names.fraction(ratio, f"time of {names('b 1x1')}") == (
        "0.50 of the time of one process (0.40–0.60)"
    )
    assert Names().interval(ratio) == " (0.40–0.60, 9 paired runs)"


def test_the_first_screen_says_how_sure_the_answer_is(tmp_path):
    frames = tabled(fair(tmp_path, 5.6, 4.6, 3.9), references=REFERENCES)
    frames["runs"]["earlier_attempts"] = [1, *[0] * (len(frames["runs"]) - 1)]
    [answer] = Report(frames).answers
    question, text, *more = _screen(frames)
    assert answer.there.in_words in question
    assert f"{answer.closest.ratio.value:.2f}" in text
    assert "1 run was measured again" in " ".join(more)


@pytest.mark.parametrize("told", [{}, {"known_by": "whole run", "named": (), "rows": False}])
def test_what_is_not_known_of_a_program_is_on_the_first_screen(tmp_path, told):
    frames = tabled(program(tmp_path, **told))
    _, answer, *brief = _screen(frames)
    assert "two processes on one node" in answer
    assert "Not known of `train`: whether its processes end with the same" in " ".join(brief)


@pytest.mark.parametrize("repeats", [2, 7])
def test_variants_are_said_by_their_names(tmp_path, repeats):
    experiment = FakeExperiment(tmp_path).add_dataset()
    for variant, (one, two) in {"slow": (5.0, 2.5), "fast": (1.0, 0.8)}.items():
        experiment.add("single", "1x1", one, repeats, variant=variant, rows=64)
        experiment.add("horovod-mpi", "1x2", two, repeats, variant=variant, rows=64)
    frames = tabled(experiment)
    [answer] = Report(frames).answers
    _, text, *_ = _screen(frames)
    named = name_in_words(frames)
    assert all(named[each] in text for each in (answer.label, answer.closest.label))
    assert "(`fast`)" in text


def test_names_like_our_words_stay_on_the_first_screen(tmp_path):
    experiment = FakeExperiment(tmp_path, dataset="1x2").add_dataset()
    for variant, (one, two) in {"matches": (5.0, 2.5), "ddp-gloo": (1.0, 0.8)}.items():
        experiment.add("single", "1x1", one, 7, variant=variant, rows=64)
        experiment.add("horovod-mpi", "1x2", two, 7, variant=variant, rows=64)
    question, text, *_ = _screen(tabled(experiment))
    assert question.endswith("on `1x2`?")
    assert "two processes on one node (`ddp-gloo`)" in text.lower()
