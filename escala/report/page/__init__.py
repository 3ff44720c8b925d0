"""Write one HTML page on an experiment: the answer first, then its evidence.

The page is one file that loads nothing, and can be read without JavaScript. Its content security
policy allows only the script and the style in it, by their digests. Jinja escapes all text.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache, partial
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from escala.report.figures import DECLARED
from escala.report.findings import SECTIONS, Finding
from escala.report.findings.context import Report
from escala.report.findings.runs import failures
from escala.report.findings.words import Tables
from escala.report.first_screen import all_findings, first_screen
from escala.report.page.runs import headings, provenance, rows
from escala.report.page.svg import Drawings
from escala.report.summary import explanation, overview
from escala.strategies.base import TRACE

#: Characters of figures in a page. Those beyond are links to their files.
FIGURE_SIZE = 250_000
#: Sections of figures that no finding names, by the category of the figure.
_SECTION_OF_CATEGORY = {
    "Data": "data",
    "Quality": "scores",
    "Examples": "scores",
    "Time": "sure",
    "Resources": "why",
}
#: Units stay with their numbers.
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|(?:ms|s)\b)")
_FOLDER = Path(__file__).parent


class Drawing(NamedTuple):
    """A figure of the page, with its caption; `svg` is None if the page only links to it."""

    name: str
    caption: str
    svg: str | None


def page(
    tables: Tables,
    name: str,
    title: str,
    figures: Mapping[str, str],
    files: Collection[str] = (),
    question: str = "time",
) -> str:
    """Write the page.

    Parameters
    ----------
    tables : those of `escala.report.tables`.
    name, title : of the experiment.
    figures : the experiment's figures as SVG, by name.
    files : figures, tables and traces of runs to link to, relative to the page.
    question : as in `escala.report.first_screen`.
    """
    report = Report(tables, name)
    found = all_findings(report)
    # Of an experiment of ladders, the figure that shows the answer is that of the ladders.
    only_ladders = not report.against_main and not tables["ladder"].empty
    first = "ladder" if only_ladders else "seconds_per_epoch"
    screen = first_screen(report, found, question)
    drawings = Drawings()
    drawn = dict(_drawn(figures, found, drawings, first))
    style, script = (
        (_FOLDER / "page.css").read_text(encoding="utf-8"),
        (_FOLDER / "page.js").read_text(encoding="utf-8"),
    )
    style += drawings.rules + labels_of_runs(headings(tables).values())
    columns, configurations = overview(report)
    template = templates().get_template("page.html")
    return template.render(
        title=title,
        screen=screen,
        lines=[finding for answer in screen.answers for finding in answer.findings],
        style=style,
        script=script,
        style_digest=digest(style),
        script_digest=digest(script),
        first=drawn.get(first),
        sections=SECTIONS,
        findings=found,
        drawings={
            section: [
                drawing
                for name, drawing in drawn.items()
                if name != first and _section_of(name, found) == section
            ]
            for section in found
        },
        links=lambda finding: _links(finding, drawn, files),
        columns=columns,
        configurations=configurations,
        explanation=explanation(tables),
        headings=headings(tables),
        runs=list(rows(tables)),
        failures=list(failures(report)),
        provenance=list(provenance(tables, name)),
        traces=[file for file in files if file.endswith(f"/{TRACE}")],
        files=[file for file in files if not file.endswith(f"/{TRACE}")],
    )


@cache
def templates(*further: Path) -> Environment:
    """Return the templates of the page and of further folders, which escape all text."""
    environment = Environment(
        loader=FileSystemLoader([_FOLDER, *further]), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["spaced"] = partial(_BEFORE_UNIT.sub, "\xa0")
    return environment


def labels_of_runs(headings: Iterable[str]) -> str:
    """Return the rules by which a narrow window shows the heading of each value of a run."""
    rules = (
        f'\n  #runs-table td:nth-child({place})::before {{ content: "{heading} "; }}'
        for place, heading in enumerate(headings, start=1)
    )
    return f"@media screen and (max-width: 40rem) {{{''.join(rules)}\n}}\n"


def digest(text: str) -> str:
    """Return the digest by which a content security policy allows a script or a style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _drawn(
    figures: Mapping[str, str],
    found: Mapping[str, Collection[Finding]],
    drawings: Drawings,
    first: str,
) -> Iterator[tuple[str, Drawing]]:
    """Yield figures by name: the first one, those that findings name, others; inline what fits."""
    findings = [finding for each in found.values() for finding in each]
    named = [first, *(finding.figure for finding in findings)]
    size = 0
    for name in dict.fromkeys([*(name for name in named if name in figures), *figures]):
        caption = DECLARED[name].caption.replace("``", "`")
        title, _, _ = caption.partition(". ")
        shows = [finding.text for finding in findings if finding.figure == name]
        words = " ".join(shows or [caption]).replace("`", "")
        svg = drawings.inline(figures[name], f"figure-{name}", f"{title.rstrip('.')}.", words)
        fits = size + len(svg) <= FIGURE_SIZE
        size += len(svg) * fits
        yield name, Drawing(name, caption, svg if fits else None)


def _section_of(name: str, found: Mapping[str, Collection[Finding]]) -> str:
    """Return the section of a figure: the first that names it, else that of its category."""
    naming = (key for key, findings in found.items() if name in {each.figure for each in findings})
    return next(naming, _SECTION_OF_CATEGORY[DECLARED[name].category])


def _links(
    finding: Finding, drawn: Mapping[str, Drawing], files: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield the words and the address of each link from a finding to its evidence."""
    if finding.figure in drawn:
        yield "figure", f"#figure-{finding.figure}"
    table = f"tables/{finding.table}.csv"
    if table in files:
        yield "table", table
