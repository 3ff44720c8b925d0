"""Findings: sentences on what an experiment showed, each from its tables.

A finding is a module with a function `sentence(tables, name)`. It takes the tables of
`escala.report.tables` and the name of the experiment, and returns Markdown, or an empty text where
there is nothing to say. Its constant `POSITION` is its place in the summary, in ascending order;
modules without one are helpers. Adding a finding is adding a module.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

from escala.core.declared import constants

__all__ = ["FINDINGS"]


def _discover() -> tuple[ModuleType, ...]:
    """Return the findings in the order in which the summary gives them."""
    declared = {path.stem: constants(path) for path in Path(__file__).parent.glob("*.py")}
    names = [name for name in sorted(declared) if "POSITION" in declared[name]]
    return tuple(
        import_module(f"{__name__}.{name}")
        for name in sorted(names, key=lambda name: declared[name]["POSITION"])
    )


FINDINGS = _discover()
