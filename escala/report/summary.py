"""Write the summary of an experiment from its tables: the answer first, then the evidence.

Its table of configurations is also on the page, and so is its head, the *first screen*: question,
answers, and their reasons. The findings of the first screen are in words: without the names of
configurations, and without terms of Escala.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from escala.analysis.comparable import CONFIGURATION
from escala.core.readable import in_percent, with_interval
from escala.experiment.runs import MAIN
from escala.report.findings import QUESTIONS, SECTIONS, Finding, section_findings, write
from escala.report.findings.context import Report
from escala.report.findings.runs import failures
from escala.report.findings.words import Names, Tables, list_names, name_in_words, quote
from escala.report.tables.views import (
    all_programs,
    fit_workloads,
    level,
    names_of_rows,
    only_whole_runs,
    whole_runs,
)

#: Sections from which the first screen takes some sentences.
BRIEF = ("failures", "sure", "scores", "why", "next", "cost")


class Answer(NamedTuple):
    """The answer to one task.

    Attributes
    ----------
    details : findings on the gain of the best use, and on what limits the answer.
    """

    finding: Finding
    details: tuple[Finding, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        """The answer and its details."""
        return [self.finding, *self.details]


class FirstScreen(NamedTuple):
    """The first screen, as plain text with code between backticks.

    Attributes
    ----------
    answers : the answer to the question of the experiment, then an answer to each task.
    brief : some findings of each section of `BRIEF`, by section: for each answer the first finding
        that names it, or the section's first finding if none names an answer; then the findings
        with `first`. Of scores and failures, only the latter.
    """

    question: str
    answers: tuple[Answer, ...]
    brief: dict[str, list[Finding]]


def all_findings(report: Report) -> dict[str, list[Finding]]:
    """Return the findings of each section."""
    return {section: section_findings(section, report) for section in SECTIONS}


def first_screen(
    report: Report, findings: Mapping[str, Sequence[Finding]], question: str = "time"
) -> FirstScreen:
    """Return the question, the answers, and the evidence for the answers.

    Parameters
    ----------
    findings : the result of `all_findings`.
    question : the question of the experiment: `time` or one of `QUESTIONS`.
    """
    of_tasks = [finding for finding in findings["answer"] if finding.task]
    answers = [
        Answer(line, tuple(f for f in of_tasks if f.first and f.task == line.task))
        for line in _first_of_tasks(of_tasks)
    ]
    title = question_of(report)
    if question in QUESTIONS:
        other_title, answer_of = QUESTIONS[question]
        spoken = report.in_words(with_tasks=question == "scores")
        if answering := _first_of_tasks(write(answer_of, report, spoken)):
            title, answers = other_title, [*map(Answer, answering), *answers]
    brief = {}
    for section in BRIEF:
        chosen = []
        if section not in ("scores", "failures"):
            for answer in report.answers:
                naming = [one for one in findings[section] if quote(answer.label) in one.text]
                chosen += naming[:1]
            chosen = chosen or list(findings[section][:1])
        # Unknown facts about an answer belong to the section on how sure the answer is.
        candidates = [*findings[section], *(findings["answer"] if section == "sure" else ())]
        chosen += [finding for finding in candidates if finding.first and not finding.task]
        if chosen:
            brief[section] = list(dict.fromkeys(chosen))
    return FirstScreen(title, tuple(answers or map(Answer, findings["answer"][:1])), brief)


def _first_of_tasks(findings: Iterable[Finding]) -> list[Finding]:
    """Return the first finding on each task."""
    first: dict[str, Finding] = {}
    for finding in findings:
        first.setdefault(finding.task, finding)
    return list(first.values())


def question_of(report: Report) -> str:
    """Return the question that an experiment answers if it asks no other."""
    comparisons, ladder = [*report.against_main.values()], report.tables["ladder"]
    rows = comparisons or [*ladder.itertuples()]
    if not rows:
        return "Does training in parallel take less time?"
    workloads, datasets = (
        list_names([*dict.fromkeys(getattr(row, column) for row in rows)])
        for column in ("workload", "dataset")
    )
    if not comparisons:
        return f"How much of the time of training {workloads} on {datasets} does each change save?"
    # It is not known which data a program reads.
    on = "" if all_programs(report.tables) else f" on {datasets}"
    if not report.answers:
        return f"What does training {workloads}{on} in parallel take?"
    there = {answer.available for answer in report.answers}
    resources = there.pop().in_words if len(there) == 1 else "what is there"
    return f"What is the best use of {resources} for training {workloads}{on}?"


def summary(
    tables: Tables, name: str, title: str, files: Collection[str] = (), question: str = "time"
) -> str:
    """Write the summary in Markdown.

    Parameters
    ----------
    tables : the tables of `escala.report.tables`.
    name, title : of the experiment.
    files : figures and tables to link to, relative to the summary.
    question : as in `escala.report.summary`.
    """
    report = Report(tables, name)
    headings, rows = overview(report)
    lines_of_table = [headings, ["---"] * len(headings), *rows]
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines_of_table)
    by_section = all_findings(report)
    screen = first_screen(report, by_section, question)
    answering = [finding for answer in screen.answers for finding in answer.findings]
    parts = [f"# {title}"]
    for answer in screen.answers:
        parts.append(f"**{answer.finding.spoken}**{_evidence(answer.finding, files)}")
        if answer.details:
            details = (f"- {one.spoken}{_evidence(one, files)}" for one in answer.details)
            parts.append("\n".join(details))
    if screen.brief:
        brief = (
            f"- {SECTIONS[section]}: {' '.join(finding.spoken for finding in findings)}"
            for section, findings in screen.brief.items()
        )
        parts.append("\n".join(brief))
    for section, heading in {**SECTIONS, "answer": "More on the answer"}.items():
        findings = [finding for finding in by_section[section] if finding not in answering]
        lines = [f"- {finding.text}{_evidence(finding, files)}" for finding in findings]
        if section == "failures":
            lines += [
                f"- {quote(label)} rep {repeats} ({status})" + f": {quote(reason)}" * bool(reason)
                for label, repeats, status, reason in failures(report)
            ]
        if lines:
            parts += [f"## {heading}", "\n".join(lines)]
    parts += ["## Configurations", table, explanation(tables)]
    links = [f"- [{file.rpartition('/')[2]}]({file})" for file in files]
    if links:
        parts += ["## Figures and tables", "\n".join(links)]
    return "\n\n".join(parts) + "\n"


def read_sentences(summary: Path) -> list[str]:
    """Return the lines of a summary that give the answer, without their links."""
    text = re.sub(
        r" \(\[[^\]]*\]\([^)]*\)(, \[[^\]]*\]\([^)]*\))*\)", "", summary.read_text(encoding="utf-8")
    )
    lines = text.partition("\n## ")[0].splitlines()
    return [line.replace("**", "") for line in lines if line and not line.startswith("# ")]


def _evidence(finding: Finding, files: Collection[str]) -> str:
    """Return links to the table and the figure of a finding, if they are among the files."""
    paths = {"table": f"tables/{finding.table}.csv", "figure": f"figures/{finding.figure}.svg"}
    links = [f"[{name}]({file})" for name, file in paths.items() if file in files]
    return f" ({', '.join(links)})" if links else ""


def explanation(tables: Tables) -> str:
    """Explain the columns of `overview`."""
    timed = "the training steps of an epoch"
    if whole_runs(tables):
        timed += f"; for {list_names(sorted(whole_runs(tables)))}, of a whole run"
    if only_whole_runs(tables):
        timed = "a whole run"
    return (
        f"Training time is the time of {timed}. The best use is the configuration of the least "
        "time. Each other configuration has a verdict on the ratio of its time to the time of the "
        "best use, in direct paired runs. At most 5 % of best uses are named falsely. In brackets "
        f"are {in_percent(level(tables))} intervals, or ranges where runs are too few for one. "
        "Intervals of ratios are widened by how sessions differ. Speed-up is the time of the main "
        "reference divided by the time of the configuration. Efficiency is the speed-up divided by "
        "the cores used for each core of the reference. Time to accuracy is training time; > means "
        "not reached."
        + " A fit has no epochs: the time of the whole fit is in brackets, and is never compared."
        * bool(fit_workloads(tables))
        + " The scaling is weak: ratios are of the time for the same number of rows."
        * bool((tables["speedup"]["work"] != 1).any())
    )


def overview(report: Report) -> tuple[list[str], list[list[str]]]:
    """Return the headings and the rows of the table of configurations.

    A row has times, ratios and scores of a configuration with intervals, and the verdict on the
    configuration against the best use.
    """
    tables, configurations = report.tables, report.table("configurations")
    speedup = tables["speedup"].query("basis == 'epoch'").set_index(list(CONFIGURATION), drop=False)
    to_main, verdicts = speedup[speedup["reference"] == MAIN], report.verdicts()
    current = tables["runs"][tables["runs"]["current"]]
    settings = current.drop_duplicates(list(CONFIGURATION)).set_index(list(CONFIGURATION))
    in_words = Names(name_in_words(tables))
    # Configurations with scores that their workload defines have no accuracy.
    with_other_scores = set(names_of_rows(tables["scores"]))
    fitted = fit_workloads(tables)
    targets = (configurations["time_to_target_kind"] != "unavailable").any()
    headings = [
        "configuration", "in words", "verdict", "time to the best use", "speed-up", "efficiency",
        "s per run" if only_whole_runs(tables) else "training s per epoch",
        "accuracy", *["s to accuracy"] * bool(targets), "runs ok", "global batch", "learning rate",
    ]  # fmt: skip
    rows = []
    for names, row in zip(
        names_of_rows(configurations), configurations.to_dict("records"), strict=True
    ):
        is_fit = row["workload"] in fitted
        verdict, ratio = verdicts.get(names, ("–" if is_fit else "not compared", None))
        if pd.notna(row["other_model"]):
            verdict = "another model"
        speedup_and_efficiency = ["–", "–"] if is_fit else ["1", "1"]
        if names in to_main.index and not is_fit:
            speedup_and_efficiency = [
                _cell(to_main.loc[names], column) for column in ("speedup", "efficiency")
            ]
        seconds = _cell(row, "train", "_seconds_per_epoch")
        seconds += " estimated" * (row["kind"] == "estimated")
        to_accuracy = row["time_to_target_kind"]
        if to_accuracy != "unavailable":
            bound = "> " * (to_accuracy == "censored")
            to_accuracy = f"{bound}{row['time_to_target_seconds']:.1f}"
            to_accuracy += f" (to {row['target_accuracy']:.2f})"
        if is_fit:
            time, to_accuracy = row["train_seconds_per_epoch"], "–"
            seconds = "unavailable" if pd.isna(time) else f"– (fit: {time:.2f} s)"
        batch_and_rate = settings.loc[names, ["global_batch", "learning_rate"]]
        rows.append(
            [
                row["label"],
                in_words(row["label"]).replace("`", ""),
                verdict,
                "1" if ratio is None and names in verdicts else Names().ratio(ratio),
                *speedup_and_efficiency,
                seconds,
                "–" if names in with_other_scores else _cell(row, "accuracy", digits=3),
                *[to_accuracy] * bool(targets),
                f"{row['runs_ok']} of {row['runs_ok'] + row['runs_failed']}",
                *("–" if is_fit or pd.isna(value) else f"{value:g}" for value in batch_and_rate),
            ]
        )
    return headings, rows


def _cell(row, name: str, unit: str = "", digits: int = 2) -> str:
    """Return a value with its interval."""
    value, low, high = (row[f"{name}{end}{unit}"] for end in ("", "_low", "_high"))
    return with_interval(value, low, high, f".{digits}f")
