"""The figures of a report, a module each. To add one, add a module with a function `draw`.

A module declares its figure by constants, which are read without an import (`escala.core.files`):

- `CATEGORY`: the heading of the figure in the report, one of `CATEGORIES`;
- `CAPTION`: the text below it on the page and in the report, with literals between two backticks;
- `NEEDS`: what an experiment must have for this figure, one of `OCCASIONS`. A figure without
  `NEEDS` is always drawn. `comparisons` compare a configuration with a reference; changes of a
  ladder do not count. `sizes` are layouts of several nodes or a scaling study. `parts` are runs
  that divide a step. The name of a probe stands for runs of this probe;
- `FILE`: the name of the file alongside `run.json` that a figure of one run shows. A report has
  such a figure for the first timing run of each dataset and workload;
- `KIND`, with `FILE`: the kind of dataset whose test rows the figure shows.

Modules without a category are helpers. `draw(tables)` draws a figure from the tables of an
experiment. With `FILE`, `draw(run, files)` draws it from one run: `run` is the content of
`run.json`, and `files` are `RunFiles`.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from escala.core.files import read_constants
from escala.probes import PROBES

#: Headings of the report, in the order in which figures are listed.
CATEGORIES = ("Data", "Quality", "Examples", "Time", "Resources")
#: The values of `NEEDS`: what only some experiments have.
OCCASIONS = (
    "classes", "comparisons", "sizes", "ladders", "parts", *PROBES
)  # fmt: skip


class Figure(NamedTuple):
    """The declaration of a figure."""

    category: str
    caption: str
    needs: str | None
    kind: str | None
    file: str | None


class RunFiles(NamedTuple):
    """Paths that a figure of one run reads, besides `run.json`.

    Attributes
    ----------
    file : the file that `FILE` names, or None if the run left none.
    split : folder of the split that the run was tested on, for figures with a `KIND`.
    pictures : folder of the photographs of the split's rows: the result of the kind's
        `photographs`.
    """

    file: Path | None
    split: Path | None = None
    pictures: Path | None = None


def _read_declarations() -> dict[str, Figure]:
    """Return all figures by name, in the order of listing."""
    modules = {path.stem: read_constants(path) for path in Path(__file__).parent.glob("*.py")}
    figures = {
        name: Figure(
            constant["CATEGORY"],
            constant["CAPTION"],
            *(constant.get(key) for key in ("NEEDS", "KIND", "FILE")),
        )
        for name, constant in modules.items()
        if "CATEGORY" in constant
    }
    return dict(
        sorted(figures.items(), key=lambda item: (CATEGORIES.index(item[1].category), item[0]))
    )


DECLARED = _read_declarations()
#: Names of figures: drawn for every experiment, for some experiments, and from one run.
ALWAYS_DRAWN = tuple(name for name, figure in DECLARED.items() if not (figure.file or figure.needs))
SOME_FIGURES = tuple(name for name, figure in DECLARED.items() if figure.needs and not figure.file)
ONE_RUN = tuple(name for name, figure in DECLARED.items() if figure.file)


def figure(name: str) -> ModuleType:
    """Import and return the module of a figure."""
    return import_module(f"escala.report.figures.{name}")
