"""The rules of findings: one short sentence each, with its evidence."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import pandas as pd

from escala.report.figures import DECLARED
from escala.report.findings import Finding, section_findings
from escala.report.findings.context import Report
from escala.report.tables import TABLES

WORDS, NUMBERS = 25, 2
#: An interval, a range, or the two values of a ratio, with the number of paired runs. It belongs
#: to the estimate before it.
INTERVAL = re.compile(
    r"[\d.]+ and [\d.]+ s|"
    r"(range |quotient )?[-+]?(\d[\d.]*|unknown)(–| to )[-+]?(\d[\d.]*|unknown)"
    r"(, \d+ paired runs|, widened)?"
)
NUMBER = re.compile(r"\d[\d.]*(–\d[\d.]*)?")


def problems(text: str) -> Iterator[str]:
    """Yield the rules that a sentence breaks. What it quotes as code is one word, and no number."""
    plain = re.sub(r"`[^`]*`", "name", text)
    if "`" in plain or "\n" in text:
        yield "an open quotation"
    if not re.fullmatch(r"\S[^\n]*\.", plain) or re.search(r"[.!?] [A-Z]", plain):
        yield "not one sentence"
    if plain[0].islower() and text[0] != "`":
        yield "no capital"
    without = re.sub(r" \(([^()]*)\)", lambda m: "" if INTERVAL.fullmatch(m[1]) else m[0], plain)
    if (words := len(without.split())) > WORDS:
        yield f"{words} words"
    if (numbers := len(NUMBER.findall(without))) > NUMBERS:
        yield f"{numbers} numbers"


def check(findings: Iterable[Finding]) -> None:
    """Assert that findings follow the rules and name evidence that exists."""
    for finding in findings:
        assert not list(problems(finding.text)), finding.text
        assert finding.table in TABLES
        assert finding.figure is None or finding.figure in DECLARED
        assert "nan" not in finding.text.lower().split() and "<NA>" not in finding.text


def told(frames: dict[str, pd.DataFrame], section: str) -> list[str]:
    """Return the sentences of a section, which follow the rules."""
    found = list(section_findings(section, Report(frames, "demo")))
    check(found)
    return [each.text for each in found]
