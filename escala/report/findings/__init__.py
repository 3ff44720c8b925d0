"""Findings: sentences on what an experiment showed, each from its tables.

A finding is a module with a function `sentence(tables, name)`. It takes the tables of
`escala.report.tables` and the name of the experiment, and returns Markdown, or an empty text where
there is nothing to say.
"""

from __future__ import annotations

from escala.report.findings import (
    answers,
    elsewhere,
    gaps,
    ladders,
    leakage,
    quality,
    setting,
    steps,
)

#: In the order in which the summary gives them.
FINDINGS = (answers, setting, elsewhere, steps, ladders, quality, leakage, gaps)
