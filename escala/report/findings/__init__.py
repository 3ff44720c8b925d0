"""Findings: sentences on what an experiment showed, each from its tables.

A finding is a module with a function `findings(tables, name)`. It takes the tables of
`escala.report.tables` and the name of the experiment, and yields `Finding`s. Its constant `SECTION`
is their section, one of `SECTIONS`, and `POSITION` their place, in ascending order; modules without
one are helpers. Adding a finding is adding a module.

A finding is one sentence of at most 25 words and two numbers, where an estimate with its interval
and number of matches is one word and one number. Names and reasons from data are quoted by
`words.quoted`, and count as one word. Tables hold the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType

from escala.core.files import read_constants
from escala.report.findings.words import Finding, Tables

__all__ = ["FINDINGS", "SECTIONS", "Finding", "section_findings"]

#: Headings of the sections of findings, in their order.
SECTIONS = {
    "answer": "Answer",
    "why": "Why",
    "sure": "How sure this is",
    "cost": "At what cost",
    "next": "What to do next",
    "scores": "What the scores mean",
    "failures": "Runs without result",
    "data": "Machines and data",
}


def _discover() -> tuple[ModuleType, ...]:
    """Return the findings in their order."""
    declared = {path.stem: read_constants(path) for path in Path(__file__).parent.glob("*.py")}
    names = [name for name in sorted(declared) if "POSITION" in declared[name]]
    return tuple(
        import_module(f"escala.report.findings.{name}")
        for name in sorted(names, key=lambda name: declared[name]["POSITION"])
    )


FINDINGS = _discover()


def section_findings(section: str, tables: Tables, name: str) -> Iterator[Finding]:
    """Yield the findings of a section on the experiment of that name."""
    for module in FINDINGS:
        if section == module.SECTION:
            yield from module.findings(tables, name)
