"""The first screen of the page and the head of the summary: question, answers, and their reasons.

It reads without the names of configurations and without our terms (`escala.report.spoken`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from escala.analysis.best_use import BestUse
from escala.report.findings import FINDINGS, SECTIONS, Finding, section_findings
from escala.report.findings.best_use import against_main, answers
from escala.report.findings.words import Tables, listed, quoted
from escala.report.spoken import name_in_words, say, varying_tasks, words
from escala.report.tables.views import all_programs, trained_by_steps

#: Sections of which the first screen has some sentences.
BRIEF = ("why", "sure", "cost", "next", "scores")


class Answer(NamedTuple):
    """The answer to one task, as plain text with code between backticks.

    Attributes
    ----------
    finding : the finding behind `text`.
    details : sentences that belong to it: what it gains, and of what.
    """

    text: str
    finding: Finding
    details: tuple[Answer, ...] = ()

    @property
    def findings(self) -> list[Finding]:
        """All that it tells."""
        return [self.finding, *(each.finding for each in self.details)]


class FirstScreen(NamedTuple):
    """The first screen, as plain text with code between backticks.

    Attributes
    ----------
    answers : that to the question of the experiment, and one for each task.
    brief : some sentences of each section of `BRIEF` that has any, by the section.
    """

    question: str
    answers: tuple[Answer, ...]
    brief: dict[str, str]


def all_findings(tables: Tables, name: str) -> dict[str, list[Finding]]:
    """Return the findings of each section."""
    return {section: list(section_findings(section, tables, name)) for section in SECTIONS}


def first_screen(
    tables: Tables, found: Mapping[str, Sequence[Finding]], name: str = "", question: str = "time"
) -> FirstScreen:
    """Return the question, the answers, and what they rest on.

    Parameters
    ----------
    found : the result of `all_findings`.
    name : of the experiment.
    question : that of the experiment, `time` or a `QUESTION` of a module of findings.
    """
    named, every = words(tables), answers(tables)
    # The answer has told what tells it from others.
    brief_names = named | (_without_brackets(every[0], named) if len(every) == 1 else {})
    short = words(tables, with_tasks=False)
    tasks_of = {answer.key: _task(answer, tables) for answer in every} if len(every) > 1 else {}
    asked = _first_of_tasks(
        finding for module in FINDINGS if getattr(module, "QUESTION", None) == question
        for finding in module.findings(tables, name)
    )  # fmt: skip
    uses = _first_of_tasks(finding for finding in found["answer"] if finding.task)
    details = [finding for finding in found["answer"] if finding.first and finding.task]

    def answered(line: Finding, more: Sequence[Finding] = ()) -> Answer:
        text = say(line.text, short if line.task else named)
        return Answer(
            _of_task(tasks_of.get(line.task, ""), text),
            line,
            tuple(Answer(say(each.text, short), each) for each in more),
        )

    lines = [
        *map(answered, asked),
        *(answered(use, [each for each in details if each.task == use.task]) for use in uses),
    ]
    return FirstScreen(
        say(question_of(tables, every, question if asked else "time"), named),
        tuple(lines or map(answered, found["answer"][:1])),
        {
            section: " ".join(say(finding.text, brief_names) for finding in findings)
            for section, findings in _brief(every, found).items()
        },
    )


def _first_of_tasks(findings: Iterable[Finding]) -> list[Finding]:
    first: dict[str, Finding] = {}
    for finding in findings:
        first.setdefault(finding.task, finding)
    return list(first.values())


def _task(answer: BestUse, tables: Tables) -> str:
    """Name what tells the task of an answer from others."""
    parts = [quoted(getattr(answer, key)) for key in varying_tasks(trained_by_steps(tables))]
    return ", ".join([*parts, *([answer.task] if answer.task else [])])


def _of_task(task: str, text: str) -> str:
    return f"{task[0].upper()}{task[1:]}: {text[0].lower()}{text[1:]}" if task else text


def _without_brackets(answer: BestUse, named: Mapping[str, str]) -> dict[str, str]:
    """Return shorter words for what an answer names, if these tell one from the other."""
    found = {}
    for each in (answer, *answer.alternatives):
        text, _, _ = name_in_words(each.label, named).partition(" (")
        found[quoted(each.label)[1:-1]] = text
    return found if len({*found.values()}) == len(found) else {}


def question_of(tables: Tables, every: Sequence[BestUse], question: str = "time") -> str:
    """Return the question that the experiment answers."""
    for module in FINDINGS:
        if getattr(module, "QUESTION", None) == question:
            return module.ASKS
    rows = against_main(tables)
    only_ladders = rows.empty and not tables["ladder"].empty
    asked = tables["ladder"] if only_ladders else rows
    if asked.empty:
        return "Does training in parallel take less time?"
    workloads, datasets = (listed(asked[column].unique()) for column in ("workload", "dataset"))
    if only_ladders:
        return f"How much of the time of training {workloads} on {datasets} does each change save?"
    # A program reads what it reads.
    on = "" if all_programs(tables) else f" on {datasets}"
    if not every:
        return f"What does training {workloads}{on} in parallel take?"
    there = {answer.there for answer in every}
    resources = there.pop().in_words if len(there) == 1 else "what is there"
    return f"What is the best use of {resources} for training {workloads}{on}?"


def _brief(
    every: Sequence[BestUse], found: Mapping[str, Sequence[Finding]]
) -> dict[str, list[Finding]]:
    """Return some findings of each section of `BRIEF` that has any, by the section.

    Of each answer it is the first that names it; if none names one, the first of the section. How
    sure the answers are takes all that a first screen tells in any case.
    """
    chosen = {}
    for section in BRIEF:
        findings = found[section]
        naming = [
            next((each for each in findings if quoted(answer.label) in each.text), None)
            for answer in every
        ]
        # What is not known of the answers is part of how sure they are.
        told = [*findings, *found["answer"] * (section == "sure")]
        further = [each for each in told if each.first and not each.task]
        first = [each for each in naming if each] or findings[:1]
        if section == "scores":
            # Only what makes the times say little.
            first = []
        chosen[section] = list(dict.fromkeys([*first, *further]))
    return {section: findings for section, findings in chosen.items() if findings}
