"""The first screen of the page and the head of the summary: question, answers, and their reasons.

Its findings are in words: without the names of configurations, and without terms of Escala.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from escala.report.findings import QUESTIONS, SECTIONS, Finding, section_findings, write
from escala.report.findings.context import Report
from escala.report.findings.words import list_names, quote
from escala.report.tables.views import all_programs

#: Sections of which the first screen has some sentences.
BRIEF = ("why", "sure", "cost", "next", "scores")


class Answer(NamedTuple):
    """The answer to one task.

    Attributes
    ----------
    details : findings on what it gains, and what qualifies it.
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
    answers : that to the question of the experiment, and one for each task.
    brief : some sentences of each section of `BRIEF` that has any, by the section. These are, for
        each answer, the first finding that names it; or the first of the section, if none names an
        answer; and the findings that are `first`.
    """

    question: str
    answers: tuple[Answer, ...]
    brief: dict[str, str]


def all_findings(report: Report) -> dict[str, list[Finding]]:
    """Return the findings of each section."""
    return {section: section_findings(section, report) for section in SECTIONS}


def first_screen(
    report: Report, findings: Mapping[str, Sequence[Finding]], question: str = "time"
) -> FirstScreen:
    """Return the question, the answers, and what they rest on.

    Parameters
    ----------
    findings : the result of `all_findings`.
    question : that of the experiment, `time` or one of `QUESTIONS`.
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
        # Of scores the first screen tells only what makes the times say little.
        if section != "scores":
            for answer in report.answers:
                naming = [one for one in findings[section] if quote(answer.label) in one.text]
                chosen += naming[:1]
            chosen = chosen or list(findings[section][:1])
        # What is not known of the answers is part of how sure they are.
        candidates = [*findings[section], *(findings["answer"] if section == "sure" else ())]
        chosen += [finding for finding in candidates if finding.first and not finding.task]
        if chosen:
            brief[section] = " ".join(finding.spoken for finding in dict.fromkeys(chosen))
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
    # What a program reads is not known.
    on = "" if all_programs(report.tables) else f" on {datasets}"
    if not report.answers:
        return f"What does training {workloads}{on} in parallel take?"
    there = {answer.there for answer in report.answers}
    resources = there.pop().in_words if len(there) == 1 else "what is there"
    return f"What is the best use of {resources} for training {workloads}{on}?"
