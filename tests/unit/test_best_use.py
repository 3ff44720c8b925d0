"""Experiments of known best use: which configuration, which verdict, and nothing against it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from fixtures_runs import FakeExperiment, as_program, changed
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pages import tabled
from sentences import check
from test_scaling import as_weak

from escala.analysis.best_use import (
    MORE_DOES_NOT_PAY,
    PAYS,
    TIED,
    UNAVAILABLE,
    BestUse,
)
from escala.analysis.comparable import CONFIGURATION
from escala.analysis.verdicts import FASTER, NO_VERDICT
from escala.core.files import read_json
from escala.experiment.runs import DEFAULT_REFERENCES
from escala.report import progress
from escala.report.findings.answer import TIMES
from escala.report.findings.context import Report
from escala.report.findings.words import Finding, quote
from escala.report.summary import all_findings, first_screen, overview
from escala.report.tables import validate

pytestmark = pytest.mark.usefixtures("few_resamples")

#: Of the times of two runs of one configuration, as a fraction, in the order of the repeats.
NOISE = (0.0, 0.01, -0.01, 0.005, -0.005, 0.008, -0.008, 0.003)
Found = dict[str, list[Finding]]


class Use(NamedTuple):
    """A configuration, and its seconds per epoch; `change` is made to each of its runs."""

    strategy: str
    layout: str
    seconds: float
    variant: str = "tuned"
    cores: int = 1
    rows: int = 64
    change: Callable[[dict], object] = lambda run: None
    failed: bool = False
    dataset: str = "demo-1000"


class Case(NamedTuple):
    """An experiment, and of each of its tasks the verdict and the best use."""

    uses: Sequence[Use]
    expected: Sequence[tuple[str, str]]
    #: What the first screen names besides the best use of each task.
    rivals: Sequence[str]
    repeats: int = 7
    change: Callable[[dict], object] = lambda run: None
    #: Configurations that train another model.
    others: Sequence[str] = ()


def threads(seconds: float, **more) -> Use:
    return Use("single", "1x1", seconds, "threads", cores=2, **more)


def two(seconds: float, strategy: str = "horovod-mpi", **more) -> Use:
    return Use(strategy, "1x2", seconds, **more)


def knobs(**knobs) -> Callable[[dict], object]:
    return lambda run: run["knobs"].update(knobs)


def training(**settings) -> Callable[[dict], object]:
    return lambda run: run["training"].update(settings)


def accuracies(*values: float) -> Callable[[dict], object]:
    def change(run: dict) -> None:
        for epoch, value in zip(run["epochs"], values, strict=True):
            epoch["validation_accuracy"] = value

    return change


def whole_runs(run: dict) -> None:
    as_program(run, "whole run", (), rows=False)


def disturbed(repeats: int) -> Callable[[dict], object]:
    """Return a change that leaves the first repeats disturbed by other work."""

    def change(run: dict) -> None:
        is_disturbed = run["repeat"] <= repeats
        reason = "0.97 core of other processes" if is_disturbed else None
        nodes = [{"taken_cores": 0.97 if is_disturbed else 0.0}]
        run["disturbance"] = {
            "disturbed": is_disturbed, "reason": reason, "kernel": None, "earlier": [],
            "nodes": nodes,
        }  # fmt: skip

    return change


def over(network: str) -> Callable[[dict], object]:
    return lambda run: run.update(network=network)


ONE = Use("single", "1x1", 5.0)
NO_TARGET = training(target_accuracy=None)
#: By their best use, in words.
CASES = {
    "processes": Case([ONE, threads(4.0), two(2.5)], [(PAYS, "1x2 tuned")], ["threads"]),
    "tied with threads": Case(
        [ONE, threads(2.55), two(2.5)], [(TIED, "1x2 tuned")], ["1x1 threads"]
    ),
    "tied with less": Case([ONE, two(4.8)], [(TIED, "1x2")], ["1x1"]),
    "more does not pay": Case(
        [ONE, threads(6.5), two(7.0)], [(MORE_DOES_NOT_PAY, "1x1 tuned")], ["threads"]
    ),
    "a step more does not pay": Case(
        [ONE, two(2.5), Use("horovod-mpi", "1x4", 2.45)], [(TIED, "1x4")], ["1x2"]
    ),
    "two tasks": Case(
        [
            *(each._replace(dataset=name) for name, seconds in (("large", 2.5), ("small", 7.0))
              for each in (ONE, two(seconds))),
        ],
        [(PAYS, "1x2 large"), (MORE_DOES_NOT_PAY, "1x1 small")],
        ["1x1 large", "1x2 small"],
    ),
    "no exchange": Case(
        [ONE, Use("ddp-gloo", "1x2", 7.0),
         Use("ddp-gloo", "1x2", 2.0, "bare", change=knobs(trained_module="bare"))],
        [(MORE_DOES_NOT_PAY, "single 1x1")], ["ddp-gloo 1x2 tuned"], others=["bare"],
    ),
    "weighted ranks": Case(
        [ONE, two(3.0), two(1.0, variant="ranks", change=knobs(weighting="ranks"))],
        [(PAYS, "1x2 tuned")], ["1x1"], others=["ranks"],
    ),
    "asynchronous": Case(
        [ONE, two(6.5), two(2.0, "parameter-server")],
        [(MORE_DOES_NOT_PAY, "single")], ["horovod-mpi"], others=["parameter-server"],
    ),
    "another batch": Case(
        [ONE, two(3.0), two(1.0, variant="large", rows=128)],
        [(PAYS, "1x2 tuned")], ["1x1"], change=NO_TARGET, others=["large"],
    ),
    # An epoch takes less time, and the accuracy takes three epochs in place of one.
    "another batch to an accuracy": Case(
        [ONE._replace(change=accuracies(0.96, 0.97, 0.97)),
         two(3.0, rows=128, change=accuracies(0.5, 0.9, 0.96))],
        [(MORE_DOES_NOT_PAY, "1x1")], ["1x2"],
    ),
    # Its time to the accuracy is not known: it is longer than the run.
    "an accuracy that is not reached": Case(
        [ONE._replace(change=accuracies(0.96, 0.97, 0.97)),
         two(3.0, rows=128, change=accuracies(0.5, 0.9, 0.94))],
        [(MORE_DOES_NOT_PAY, "1x1")], ["1x2"],
    ),
    # Less time an epoch, and 6 s to the accuracy in place of 5 s.
    "steps and an accuracy": Case(
        [ONE._replace(change=accuracies(0.5, 0.96, 0.97)),
         threads(2.5, change=accuracies(0.5, 0.96, 0.97)),
         two(2.0, rows=128, change=accuracies(0.5, 0.9, 0.96))],
        [(PAYS, "1x1 threads")], ["1x2", "1x1 tuned"],
    ),
    # Two that train the same model, which is not that of the reference.
    "rows of each rank": Case(
        [ONE, two(3.0, rows=128), two(3.6, "horovod-gloo", rows=128)], [], ["1x2"],
        change=NO_TARGET, others=["horovod-mpi", "horovod-gloo"],
    ),
    "weak scaling": Case([ONE, two(5.5)], [], ["1x2"], change=as_weak),
    "one repeat": Case([ONE, two(2.5)], [(NO_VERDICT, "1x2")], ["1x1"], repeats=1),
    # Signed ranks need seven paired runs for the level of five alternatives.
    "six repeats of several": Case(
        [ONE, threads(4.0), two(2.5), two(3.0, "horovod-gloo"), two(3.1, "mirrored"),
         two(3.2, "multiworker-mirrored")],
        [(PAYS, "horovod-mpi")], ["horovod-gloo"], repeats=6,
    ),
    "two networks": Case(
        [ONE, *(Use("horovod-mpi", "2x1", seconds, change=over(name))
                for name, seconds in (("quick", 2.5), ("slow", 7.0)))],
        [(PAYS, "2x1 quick"), (MORE_DOES_NOT_PAY, "1x1")], ["1x1", "slow"],
    ),
    "one failed": Case(
        [ONE, two(1.0, "horovod-gloo", failed=True), two(3.0)], [(PAYS, "horovod-mpi")],
        ["single", "horovod-gloo"],
    ),
    "all others failed": Case([ONE, two(3.0, failed=True)], [(UNAVAILABLE, "1x1")], ["1x2"]),
    "stays disturbed": Case(
        [ONE, two(2.5, change=disturbed(3))], [(NO_VERDICT, "1x2")], ["1x1"]
    ),
    "whole runs": Case([ONE, two(3.0)], [(PAYS, "1x2")], ["1x1"], change=whole_runs),
}  # fmt: skip


def simulated(
    folder: Path, uses: Sequence[Use], repeats: int = 7, change: Callable[[dict], object] = id
) -> FakeExperiment:
    """Return an experiment whose configurations take so many seconds, with a little noise."""
    experiment = FakeExperiment(folder).add_dataset()
    for number, use in enumerate(uses):
        failed = dict.fromkeys(range(1, repeats + 1), ("failed", "no memory")) if use.failed else {}
        if experiment.dataset != use.dataset:
            experiment.dataset = use.dataset
            experiment.add_dataset()
        more = {"variant": use.variant, "rows": use.rows, "cores": use.cores}
        network = f"n{number}"
        experiment.add(
            use.strategy, use.layout, use.seconds, repeats, failed, workload="virus-cnn",
            **more | ({"variant": network} if use.change.__qualname__.startswith("over") else {}),
        )  # fmt: skip
        for path in experiment.runs[-repeats:]:
            run = read_json(path)
            run["variant"] = use.variant
            run["training"]["rows_per_rank"] = use.rows // run["ranks"]["asked"]
            noise = NOISE[(run["repeat"] * (1 + number)) % len(NOISE)]
            for epoch in run["epochs"]:
                epoch["train_seconds"] = use.seconds * (1 + noise)
                epoch["epoch_wall_seconds"] = epoch["train_seconds"] + 0.7
            if run["epochs"]:
                spent = sum(epoch["epoch_wall_seconds"] for epoch in run["epochs"])
                run["seconds"]["train"] = spent - 0.7 * len(run["epochs"])
                run["wall_seconds"] = spent + 6.0
            use.change(run)
            change(run)
            changed([path], **run)
    return experiment


def chosen(answer: BestUse) -> str:
    """Return the names of a best use, as an experiment and as labels have them."""
    dataset, _, strategy, layout, variant, network = answer.names
    return f"{strategy} {layout} {variant} {network} {dataset}"


def is_named(words: str, text: str) -> bool:
    return set(words.split()) <= set(text.split())


#: Cases that differ from another one in why a configuration trains another model, or in numbers.
SWEPT = (
    "a step more does not pay", "weighted ranks", "asynchronous", "another batch",
    "an accuracy that is not reached", "rows of each rank", "six repeats of several",
    "two networks",
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.sweep] if name in SWEPT else []) for name in CASES],
)
def test_the_best_use_is_the_known_one(tmp_path, name):
    case = CASES[name]
    report = Report(tabled(simulated(tmp_path, case.uses, case.repeats, case.change)), "demo")
    validate("best_use", report.tables["best_use"])
    every = report.answers
    assert [answer.verdict for answer in every] == [verdict for verdict, _ in case.expected]
    for answer, (_, best) in zip(every, case.expected, strict=True):
        assert is_named(best, chosen(answer)), chosen(answer)
    found = consistent(report)
    told = " ".join(each.text for each in found["answer"])
    # Two processes take 0.96 of the time: the next session may differ by more.
    assert ("In this session alone" in told) == (name == "tied with less"), told
    named = re.findall(r"`([^`]*)`", told)
    for rival in case.rivals:
        assert any(is_named(rival, words) for words in named), (rival, named)
    for words in case.others:
        _assert_never_chosen(report, found, words)


def _assert_never_chosen(report: Report, found: Found, words: str) -> None:
    table = report.table("configurations")
    [row] = [row for _, row in table.iterrows() if is_named(words, row["label"])]
    names = tuple(row[list(CONFIGURATION)])
    assert all(names not in {each.names, *(one.names for one in each.alternatives)}
               for each in report.answers)  # fmt: skip
    steps = [each.text for each in found["next"]]
    assert not any(quote(row["label"]) in text for text in steps if "rain with" in text)
    headings, rows = overview(report)
    [cells] = [cells for cells in rows if cells[0] == row["label"]]
    assert cells[headings.index("verdict")] == "another model"


@pytest.mark.parametrize("emulated", [True, False])
def test_emulated_nodes_that_share_cores_are_not_there(emulated, tmp_path):
    def share(run: dict) -> None:
        run["ranks"] |= {"emulated": emulated, "oversubscribed": True}

    two_nodes, four = (
        Use("horovod-mpi", layout, seconds, change=change)
        for layout, seconds, change in (("2x1", 2.5, lambda run: None), ("4x1", 1.5, share))
    )
    report = Report(tabled(simulated(tmp_path, [ONE, two_nodes, four])), "demo")
    [answer] = report.answers
    screen = first_screen(report, all_findings(report))
    told = " ".join(
        [screen.question, *(each.finding.spoken for each in screen.answers)]
        + [finding.spoken for brief in screen.brief.values() for finding in brief]
    )
    assert answer.names[3] == ("2x1" if emulated else "4x1")
    assert ("four" in told) is not emulated, told


#: What a sentence says of two configurations: which takes what part of the time of which.
COMPARED = re.compile(
    r"`([^`]+)`(?: on [\w ]+?)?(?: does not pay:| is not distinguishable:| has no verdict:| takes)?"
    r" (\d+\.\d\d) (?:of|times) the [\w ]*time[\w ]* of `([^`]+)`"
)


def consistent(report: Report) -> Found:
    """Return the findings of an experiment, all of which name the same best uses and verdicts."""
    found, every = all_findings(report), report.answers
    check(each for findings in found.values() for each in findings)
    screen = first_screen(report, found)
    headings, rows = overview(report)
    cells = {row[0]: dict(zip(headings, row, strict=True)) for row in rows}
    provisional = list(progress.provisional(every))
    assert len(screen.answers) == max(len(every), 1)
    best_use = report.table("best_use").fillna({"task": ""})
    for answer, shown in zip(every, screen.answers, strict=False):
        rival, line = answer.closest, shown.finding.text
        assert quote(answer.label) in line and quote(rival.label) in line
        same = best_use[best_use["label"] == answer.label]
        row = same[same["task"] == answer.task].loc[rival.row.name]
        ends = [row[f"ratio{end}"] for end in ("", "_low", "_high")]
        if answer.verdict != UNAVAILABLE:
            known = [each for each in ends if not np.isnan(each)]
            told = [f"{each:.2f}" for each in (known[:1] if rival.ratio.matches == 1 else known)]
            without = re.sub("`[^`]*`", "", line)
            assert re.findall(r"\d+\.\d+", without) == told
        processes = [use for use in answer.alternatives if use.ranks > 1 and use.ratio.value > 0]
        if answer.ranks == 1 and processes:
            quickest = max(processes, key=lambda use: use.ratio.value)
            told = [each.text for each in shown.findings if quote(quickest.label) in each.text]
            values = quickest.ratio.value, 1 / quickest.ratio.value
            assert any(f"{value:.2f}" in text for text in told for value in values)
        mine = cells[answer.label]["verdict"]
        decided = answer.verdict in (PAYS, MORE_DOES_NOT_PAY)
        assert mine.startswith("best use") == (decided or answer.verdict == TIED)
        if len(every) == 1:
            assert (mine == "best use, tied") == (answer.verdict == TIED)
            for each in answer.alternatives:
                assert (cells[each.label]["verdict"] == "slower") == (each.verdict == FASTER)
        _assert_advice(answer, [each.text for each in found["next"]], every)
        of_mine = [text for text in provisional if text.split(": ")[-1].startswith(answer.label)]
        if rival.ratio.matches > 1 and not np.isnan(ends[1:]).any():
            of = f"takes {ends[1]:.2f}–{ends[2]:.2f} of the {TIMES[rival.ratio_of]} of"
            assert any(f"{of} {rival.label}" in text for text in of_mine)
        if decided:
            _assert_not_refuted(answer, found)
    return found


def _assert_advice(answer: BestUse, steps: Sequence[str], every: Sequence[BestUse]) -> None:
    """Assert that it is advised to train with the best use, or with one tied with it."""
    train = [text for text in steps if text.startswith("Train with")]
    decided = [each for each in every if each.verdict in (PAYS, MORE_DOES_NOT_PAY, TIED)]
    assert len(train) == len({(each.label, each.thriftiest) for each in decided})
    if answer in decided:
        allowed = {answer.label, *(each.label for each in answer.tied)}
        [mine] = [text for text in train if set(re.findall("`([^`]*)`", text)) <= allowed][:1]
        if answer.verdict != TIED:
            assert quote(answer.label) in mine


def _assert_not_refuted(answer: BestUse, found: Found) -> None:
    for finding in (each for findings in found.values() for each in findings):
        for one, ratio, other in COMPARED.findall(finding.text):
            if one == answer.label:
                assert float(ratio) <= 1, finding.text
            if other == answer.label and answer.task in ("", finding.task.split(" ", 2)[-1]):
                assert float(ratio) >= 1, finding.text
        assert not re.search(rf"{re.escape(quote(answer.label))} takes more time", finding.text)


@settings(
    max_examples=3, deadline=None, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.too_slow],
)  # fmt: skip
@given(
    st.lists(st.floats(1.0, 9.0), min_size=4, max_size=4),
    st.sampled_from([1, 2, 5, 6, 7]),
    st.sets(st.integers(0, 3), max_size=1),
    st.booleans(),
)
def test_all_that_is_said_names_the_same_configuration(
    tmp_path_factory, seconds, repeats, failed, bare
):
    one, in_threads, mpi, gloo = seconds
    uses = [
        ONE._replace(seconds=one), threads(in_threads), two(mpi),
        two(gloo, "ddp-gloo", change=knobs(trained_module="bare") if bare else training()),
    ]  # fmt: skip
    uses = [use._replace(failed=n in failed) for n, use in enumerate(uses)]
    folder = tmp_path_factory.mktemp("drawn")
    experiment = simulated(folder, uses, repeats)
    report = Report(tabled(experiment), "demo")
    found = consistent(report)
    if bare:
        _assert_never_chosen(report, found, "ddp-gloo")
    [answer] = report.answers
    told = progress.answer(experiment.runs, DEFAULT_REFERENCES)
    assert told == list(progress.provisional([answer]))
    least = min(answer.alternatives, key=lambda each: np.nan_to_num(each.ratio.value, nan=9))
    assert answer.closest.verdict == UNAVAILABLE or least.ratio.value <= answer.closest.ratio.value
