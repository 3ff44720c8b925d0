"""The first screen of the page and the head of the summary: question, answer, and why to trust it.

It reads without the names of configurations and without our terms (`escala.report.spoken`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from escala.report.findings import SECTIONS, Finding, section_findings
from escala.report.findings.verdicts import answering, compared
from escala.report.findings.words import Tables, listed, quoted
from escala.report.spoken import name_in_words, say, words
from escala.report.tables.views import all_programs

#: Sections of which the first screen has some sentences.
BRIEF = ("why", "sure", "cost", "next")
#: References that the question names; of more it only tells that there are several.
_MOST_NAMED = 2


class FirstScreen(NamedTuple):
    """The first screen, as plain text with code between backticks.

    Attributes
    ----------
    answer : the first finding in words.
    brief : some sentences of each section of `BRIEF` that has any, by the section.
    """

    question: str
    answer: str
    brief: dict[str, str]


def all_findings(tables: Tables, name: str) -> dict[str, list[Finding]]:
    """Return the findings of each section."""
    return {section: list(section_findings(section, tables, name)) for section in SECTIONS}


def first_screen(tables: Tables, found: Mapping[str, Sequence[Finding]]) -> FirstScreen:
    """Return the question, the answer, and what it rests on.

    Parameters
    ----------
    found : the result of `all_findings`.
    """
    named = words(tables)
    # The answer has told what tells it from others.
    brief_names = named | _without_brackets(tables, named)
    return FirstScreen(
        say(question(tables), named),
        say(found["answer"][0].text, named),
        {
            section: " ".join(say(finding.text, brief_names) for finding in findings)
            for section, findings in brief(tables, found).items()
        },
    )


def _without_brackets(tables: Tables, named: Mapping[str, str]) -> dict[str, str]:
    """Return shorter words for what answers and its reference, if these tell one from the other."""
    found = {}
    for row in answering(tables)[:1]:
        for name in (row.label, row.reference_label):
            text, _, _ = name_in_words(name, named).partition(" (")
            found[quoted(name)[1:-1]] = text
    return found if len({*found.values()}) == len(found) else {}


def question(tables: Tables) -> str:
    """Return the question that the experiment answers."""
    rows = compared(tables)
    only_ladders = rows.empty and not tables["ladder"].empty
    asked = tables["ladder"] if only_ladders else rows
    if asked.empty:
        return "Does training in parallel take less time?"
    workloads, datasets = (listed(asked[column].unique()) for column in ("workload", "dataset"))
    if only_ladders:
        return f"How much of the time of training {workloads} on {datasets} does each change save?"
    # A program reads what it reads.
    on = "" if all_programs(tables) else f" on {datasets}"
    labels = rows["reference_label"].unique()
    references = listed(labels) if len(labels) <= _MOST_NAMED else "the main references"
    return (
        f"Does training {workloads}{on} in parallel take less time than {references}, "
        "and by how much?"
    )


def brief(tables: Tables, found: Mapping[str, Sequence[Finding]]) -> dict[str, list[Finding]]:
    """Return some findings of each section of `BRIEF` that has any, by the section.

    The first is that which names the configuration that answers; if none names it, the first of
    the section. What to do next begins with what to train with, which may be another
    configuration. How sure the answer is takes all that a first screen tells in any case.
    """
    answers = [quoted(row.label) for row in answering(tables)]
    labels, others = answers[:1], answers[1:]
    chosen = {}
    for section in BRIEF:
        findings = found[section]
        named = [each for label in labels for each in findings if label in each.text]
        own = [*([] if section == "next" else named), *findings][:1]
        further = [
            each
            for each in [*found.get("answer", []), *findings] * (section == "sure")
            if each.first and not any(label in each.text for label in others)
        ]
        chosen[section] = list(dict.fromkeys([*own, *further]))
    return {section: findings for section, findings in chosen.items() if findings}
