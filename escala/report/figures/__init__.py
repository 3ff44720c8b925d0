"""Figures: each module has a function `draw` that returns one. Adding one is adding a module.

A module declares by constants, which are read without importing it (`escala.core.declared`):

- `CATEGORY`: under which heading of the report it stands, one of `CATEGORIES`;
- `NEEDS`: what an experiment must have for it, one of `OCCASIONS`; absent, it is always drawn. The
  name of a probe stands for runs of this probe.

Modules without a category are helpers. Figures are drawn from the tables of an experiment,
`draw(tables)`; those of timelines from one run, `draw(run, events)`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from escala.core.declared import constants
from escala.probes import PROBES

TIMELINES = "Timelines"
#: Headings of the report, in the order in which figures are listed.
CATEGORIES = ("Data", "Quality", "Time", "Resources", TIMELINES)
#: What not every experiment has.
OCCASIONS = ("several nodes", "ladders", *PROBES)


class Figure(NamedTuple):
    """The declaration of a figure."""

    category: str
    needs: str | None


def _declared() -> dict[str, Figure]:
    """Return all figures by name, in the order to list them."""
    modules = {path.stem: constants(path) for path in Path(__file__).parent.glob("*.py")}
    figures = {
        name: Figure(found["CATEGORY"], found.get("NEEDS"))
        for name, found in modules.items()
        if "CATEGORY" in found
    }
    return dict(
        sorted(figures.items(), key=lambda item: (CATEGORIES.index(item[1].category), item[0]))
    )


DECLARED = _declared()
#: Drawn from the tables of every experiment, and from those of some.
FIGURES, SOME_FIGURES = (
    tuple(
        name
        for name, each in DECLARED.items()
        if each.category != TIMELINES and (each.needs is None) == always
    )
    for always in (True, False)
)
#: Drawn from one timeline run.
TIMELINE_FIGURES = tuple(n for n, each in DECLARED.items() if each.category == TIMELINES)


def figure(name: str) -> ModuleType:
    """Return the module of a figure."""
    return import_module(f"escala.report.figures.{name}")
