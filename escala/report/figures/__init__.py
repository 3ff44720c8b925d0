"""Find the figures. To add a figure, add a module with a function `draw` that returns it.

A module declares itself by constants, which are read without an import (`escala.core.declared`):

- `CATEGORY`: its heading in the report, one of `CATEGORIES`;
- `NEEDS`: a condition on the experiment, one of `OCCASIONS`; without it, the figure is always
  drawn. `comparisons` are those of a configuration with a reference; pairs of ladders are none.
  The name of a probe stands for runs of this probe, and `resources by nodes` for runs of
  the probe `resources` on several numbers of nodes;
- `BESIDE`: the name of the file beside `run.json` that a figure of one run shows;
- `MEASUREMENT`, with `BESIDE`: the runs that have this file, `repeat` for timing runs or the name
  of a probe. A report has the figure for the first timing run of each dataset and workload, or for
  every run of the probe;
- `KIND`, with `BESIDE`: the kind of the datasets whose test rows it shows. Without it, the figure
  needs no rows.

Modules without a category are helpers. A figure is drawn by `draw(tables)` from the tables of an
experiment, or with `BESIDE` by `draw(run, shown)` from one run: `run` is the content of its
`run.json`, and `shown` is an `OfRun`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from escala.core.declared import constants
from escala.probes import PROBES

#: Headings of the report, in the order in which figures are listed.
CATEGORIES = ("Data", "Quality", "Examples", "Time", "Resources", "Timelines")
#: The value of `MEASUREMENT` for timing runs.
REPEAT = "repeat"
#: Conditions that not every experiment meets.
OCCASIONS = ("classes", "comparisons", "several nodes", "resources by nodes", "ladders", *PROBES)


class Figure(NamedTuple):
    """The declaration of a figure."""

    category: str
    needs: str | None
    kind: str | None
    beside: str | None
    measurement: str | None


class OfRun(NamedTuple):
    """Paths that a figure of one run reads, besides `run.json`.

    Attributes
    ----------
    file : the file that `BESIDE` names, or None if the run left none.
    split : folder of the split that the run was tested on, for figures with a `KIND`.
    pictures : folder of the photographs of its rows, as `pictures` in the module `examples` of the
        kind returns it.
    """

    file: Path | None
    split: Path | None = None
    pictures: Path | None = None


def _declared() -> dict[str, Figure]:
    """Return all figures by name, in the order to list them."""
    modules = {path.stem: constants(path) for path in Path(__file__).parent.glob("*.py")}
    figures = {
        name: Figure(
            found["CATEGORY"],
            *(found.get(each) for each in ("NEEDS", "KIND", "BESIDE", "MEASUREMENT")),
        )
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
        if not each.beside and (each.needs is None) == always
    )
    for always in (True, False)
)
#: Drawn from one run.
ONE_RUN = tuple(name for name, each in DECLARED.items() if each.beside)


def figure(name: str) -> ModuleType:
    """Return the module of a figure."""
    return import_module(f"escala.report.figures.{name}")
