"""Findings: sentences on what an experiment showed, each from its tables.

`FINDINGS` has the functions of each section, in their order on the page. Each function takes a
`context.Report` and yields `Finding`s, which are clauses. `write` makes sentences of the clauses.

A sentence has at most 25 words and two numbers. An estimate with its interval and its number of
paired runs counts as one word and one number. `Report.names` names configurations, by label or in
words. `words.quote` quotes names and reasons from data, and a quote counts as one word. Tables have
all other values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from escala.report.findings import answer, cost, runs, scores, sure, why
from escala.report.findings.context import Report
from escala.report.findings.words import Finding, sentence

__all__ = ["FINDINGS", "QUESTIONS", "SECTIONS", "Finding", "Report", "section_findings", "write"]

#: Headings of the sections of findings, in their order.
SECTIONS = {
    "answer": "Answer",
    "why": "Why",
    "sure": "How sure this is",
    "cost": "At what cost",
    "next": "What to do next",
    "scores": "Does it learn",
    "failures": "Runs without result",
    "data": "Machines and data",
}
FINDINGS = {
    "answer": (
        answer.best_uses,
        answer.without_best_use,
        answer.other_models,
        answer.describe_programs,
        answer.engines,
    ),
    "why": (
        why.steps,
        why.operations,
        why.ladders,
        why.changes,
        why.waits_for_input,
        why.memory,
        why.outside_steps,
        why.links,
    ),
    "sure": (
        sure.disturbances,
        sure.notes,
        sure.evidence,
        sure.limits,
        sure.ladders,
        sure.spread,
        sure.clocks,
        sure.looks,
        sure.noise,
        sure.drift,
        sure.predictions,
        sure.laws,
    ),
    "cost": (cost.core_time, cost.energy),
    "next": (cost.advice,),
    "scores": (
        scores.learns,
        scores.accuracies,
        scores.worst_classes,
        scores.differences,
        scores.workload_scores,
        scores.classes_without_scores,
        scores.baselines,
        scores.largest_of_epochs,
        scores.leakage,
    ),
    "failures": (runs.gaps,),
    "data": (runs.machines_and_data,),
}
#: The questions of an experiment besides the best use, each with the function that answers it.
QUESTIONS = {
    "energy": ("Which configuration takes the least energy?", cost.energy),
    "engines": ("Which engine takes the least time?", answer.engines),
    "links": ("What does a slower link cost?", why.links),
    "scores": (
        "How good are the models, and does it depend on how they are trained?",
        scores.accuracies,
    ),
}


def section_findings(section: str, report: Report) -> list[Finding]:
    """Return the findings of a section, each also in words."""
    spoken = report.in_words(with_tasks=section != "answer" or not report.answers)
    return [
        finding for findings in FINDINGS[section] for finding in write(findings, report, spoken)
    ]


def write(
    findings: Callable[[Report], Iterator[Finding]], report: Report, spoken: Report
) -> Iterator[Finding]:
    """Yield findings as sentences, each with labels of configurations and in words.

    The first sentence on a task begins with the task, unless the words for configurations tell it.
    """
    for finding, other in zip(findings(report), findings(spoken), strict=True):
        heading = "" if finding.first else spoken.headings.get(finding.task, "")
        texts = {"text": sentence(finding.text), "spoken": sentence(other.text, heading)}
        yield replace(finding, **texts, compares=other.compares)
