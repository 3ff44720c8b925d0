"""Write one HTML page on an experiment: the answer first, then its evidence.

The page is one file that loads nothing, and can be read without JavaScript. Its content security
policy allows only the scripts and the style in it, by their digests. Jinja escapes all text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from escala.report.figures import DECLARED
from escala.report.findings import SECTIONS, Finding, of_section
from escala.report.findings.gaps import failures
from escala.report.findings.verdicts import answering, compared
from escala.report.findings.words import Tables, listed, quoted
from escala.report.overview import explanation, overview
from escala.report.page.provenance import provenance
from escala.report.page.runs import columns, rows
from escala.report.page.svg import Drawings
from escala.report.page.times import chart
from escala.report.tables.views import all_programs
from escala.report.vega import script
from escala.strategies.base import TRACE

#: Bytes of figures in a page. Those beyond are links to their files.
FIGURE_BYTES = 900_000
#: Sections of which the first screen has one sentence.
BRIEF = ("why", "sure", "cost", "next")
#: References that the question names; of more it only tells that there are several.
_MOST_NAMED = 2
#: Sections of figures that no finding names, by the category of the figure.
_SECTION_OF_CATEGORY = {
    "Data": "data",
    "Quality": "scores",
    "Examples": "scores",
    "Time": "sure",
    "Resources": "why",
    "Timelines": "why",
}
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|(?:ms|s)\b)")
_FOLDER = Path(__file__).parent


class Drawing(NamedTuple):
    """A figure of the page, with its caption; `svg` is None if the page only links to it."""

    name: str
    caption: Markup
    svg: Markup | None


def page(
    tables: Tables,
    name: str,
    title: str,
    figures: Mapping[str, str],
    captions: Mapping[str, str],
    files: Collection[str] = (),
    chart_script: Callable[[], str] = script,
) -> str:
    """Write the page.

    Parameters
    ----------
    tables : those of `escala.report.tables`.
    name, title : of the experiment.
    figures : the experiment's figures as SVG, by name.
    captions : a caption in reStructuredText for each of them.
    files : figures, tables and traces of runs to link to, relative to the page.
    chart_script : returns the script that adds values to the chart; called if there is a chart.
    """
    found = {section: list(of_section(section, tables, name)) for section in SECTIONS}
    drawings = Drawings()
    # Of an experiment of ladders, the figure that shows the answer is that of the ladders.
    times = None if compared(tables).empty and not tables["ladder"].empty else chart(tables)
    times_svg = times and drawings.inline(
        times.svg, "figure-times", "Training time.", times.caption
    )
    drawn = dict(_drawn(figures, captions, found, drawings))
    style = _text("page.css") + drawings.rules
    scripts = [*([chart_script()] if times else []), _text("page.js")]
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["marked"] = marked
    headings, configurations = overview(tables)
    return environment.get_template("page.html").render(
        title=title,
        question=question(tables),
        style=Markup(style),
        scripts=list(map(Markup, scripts)),
        style_digest=_digest(style),
        script_digests=list(map(_digest, scripts)),
        times=times,
        times_svg=Markup(times_svg or ""),
        specification=Markup(_data(times.specification) if times else ""),
        sections=SECTIONS,
        findings=found,
        brief=brief(tables, found),
        drawings=_by_section(drawn, found),
        links=lambda finding: _links(finding, drawn, files),
        headings=headings,
        configurations=configurations,
        explanation=explanation(tables),
        columns=columns(tables),
        runs=list(rows(tables)),
        failures=list(failures(tables)),
        provenance=list(provenance(tables, name)),
        traces=[file for file in files if file.endswith(f"/{TRACE}")],
        files=[file for file in files if not file.endswith(f"/{TRACE}")],
    )


def question(tables: Tables) -> str:
    """Ask what the experiment answers."""
    rows = compared(tables)
    if rows.empty and not tables["ladder"].empty:
        workloads, datasets = (
            listed(tables["ladder"][column].unique()) for column in ("workload", "dataset")
        )
        return f"How much of the time of training {workloads} on {datasets} does each change save?"
    if rows.empty:
        return "Does training in parallel take less time?"
    workloads, datasets = (listed(rows[column].unique()) for column in ("workload", "dataset"))
    # A program reads what it reads.
    on = "" if all_programs(tables) else f" on {datasets}"
    labels = rows["reference_label"].unique()
    references = listed(labels) if len(labels) <= _MOST_NAMED else "the main references"
    return (
        f"Does training {workloads}{on} in parallel take less time than {references}, "
        "and by how much?"
    )


def brief(tables: Tables, found: Mapping[str, Sequence[Finding]]) -> dict[str, Finding]:
    """Return one finding of each section of `BRIEF`, by the section.

    It is the first that names the configuration that answers; if none names it, the first. What to
    do next begins with what to train with, which may be another configuration.
    """
    labels = [quoted(row.label) for row in answering(tables)][:1]
    own = {
        section: [each for label in labels for each in found[section] if label in each.text]
        for section in BRIEF
        if section != "next"
    }
    return {
        section: [*own.get(section, []), *found[section]][0] for section in BRIEF if found[section]
    }


def marked(text: str) -> Markup:
    """Escape a text, mark what stands between backticks as code, and keep units with numbers."""
    parts = text.split("`")
    parts[::2] = (_BEFORE_UNIT.sub("\xa0", part) for part in parts[::2])
    return Markup().join(
        Markup("<code>{}</code>").format(part) if place % 2 else escape(part)
        for place, part in enumerate(parts)
    )


def _text(name: str) -> str:
    return (_FOLDER / name).read_text()


def _data(value: dict) -> str:
    """Return JSON that cannot end the script element around it."""
    return json.dumps(value, allow_nan=False).replace("<", "\\u003c")


def _digest(text: str) -> str:
    """Return the digest by which a content security policy allows a script or a style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _drawn(
    figures: Mapping[str, str],
    captions: Mapping[str, str],
    found: Mapping[str, Collection[Finding]],
    drawings: Drawings,
) -> Iterator[tuple[str, Drawing]]:
    """Yield the figures by name, those that findings name first, and inline the first of them."""
    named = [finding.figure for findings in found.values() for finding in findings]
    size = 0
    for name in dict.fromkeys([*(name for name in named if name in figures), *figures]):
        caption = plain(captions[name])
        needed, svg = len(figures[name].encode()), None
        if size + needed <= FIGURE_BYTES:
            size += needed
            shows = [finding.text for findings in found.values() for finding in findings
                     if finding.figure == name]  # fmt: skip
            title, _, _ = caption.partition(". ")
            svg = Markup(
                drawings.inline(
                    figures[name],
                    f"figure-{name}",
                    title.removesuffix(".") + ".",
                    " ".join(shows or [caption]).replace("`", ""),
                )
            )
        yield name, Drawing(name, marked(caption), svg)


def plain(text: str) -> str:
    """Return a caption on one line, its emphasis removed and its literals between backticks."""
    line = " ".join(text.split()).replace("``", "`")
    return re.sub(r"\*([^*]+)\*", r"\1", line)


def _by_section(
    drawn: Mapping[str, Drawing], found: Mapping[str, Collection[Finding]]
) -> dict[str, list[Drawing]]:
    """Return the figures of each section: the first that names it, else that of its category."""
    section_of = {name: _SECTION_OF_CATEGORY[DECLARED[name].category] for name in drawn}
    for section, findings in reversed(found.items()):
        section_of |= {each.figure: section for each in findings if each.figure in drawn}
    return {
        section: [each for name, each in drawn.items() if section_of[name] == section]
        for section in found
    }


def _links(
    finding: Finding, drawn: Mapping[str, Drawing], files: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield the words and the address of each link from a finding to its evidence."""
    if finding.figure in drawn:
        yield "figure", f"#figure-{finding.figure}"
    table = f"tables/{finding.table}.csv"
    if table in files:
        yield "table", table
