"""Find the figures. To add a figure, add a module with a function `draw` that returns it.

A module declares itself by constants, which are read without an import (`escala.core.declared`):

- `CATEGORY`: its heading in the report, one of `CATEGORIES`;
- `NEEDS`: a condition on the experiment, one of `OCCASIONS`; without it, the figure is always
  drawn. The name of a probe stands for runs of this probe;
- `KIND`, in the category `EXAMPLES` only: the kind of the datasets whose test rows it shows.

Modules without a category are helpers. Figures are drawn from the tables of an experiment,
`draw(tables)`. Others are drawn from one run, whose `run.json` is `run`: those of timelines by
`draw(run, events)`, and those of examples by `draw(run, predictions, split, pictures)`.
`predictions` are those for all test rows, or None if the run has none, `split` is the folder of its
split, and `pictures` what `pictures` in the module `examples` of the kind returns.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from escala.core.declared import constants
from escala.probes import PROBES

TIMELINES, EXAMPLES = "Timelines", "Examples"
#: Headings of the report, in the order in which figures are listed.
CATEGORIES = ("Data", "Quality", EXAMPLES, "Time", "Resources", TIMELINES)
#: Conditions that not every experiment meets.
OCCASIONS = ("classes", "several nodes", "ladders", *PROBES)


class Figure(NamedTuple):
    """The declaration of a figure."""

    category: str
    needs: str | None
    kind: str | None


def _declared() -> dict[str, Figure]:
    """Return all figures by name, in the order to list them."""
    modules = {path.stem: constants(path) for path in Path(__file__).parent.glob("*.py")}
    figures = {
        name: Figure(found["CATEGORY"], found.get("NEEDS"), found.get("KIND"))
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
        if each.category not in (TIMELINES, EXAMPLES) and (each.needs is None) == always
    )
    for always in (True, False)
)
#: Drawn from one timeline run, and from one run with its test rows.
TIMELINE_FIGURES, EXAMPLE_FIGURES = (
    tuple(name for name, each in DECLARED.items() if each.category == category)
    for category in (TIMELINES, EXAMPLES)
)


def figure(name: str) -> ModuleType:
    """Return the module of a figure."""
    return import_module(f"escala.report.figures.{name}")
