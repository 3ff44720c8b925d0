"""Write one HTML page on an experiment: the answer first, then its evidence.

The page is one file that loads nothing, and can be read without JavaScript. Its content security
policy allows only the script and the style in it, by their digests. Jinja escapes all text. The
figures in it are as Matplotlib writes them.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from escala.analysis.tables import records
from escala.core.readable import in_percent, name_first, with_interval, with_noun
from escala.report.figures import DECLARED
from escala.report.findings import SECTIONS, Finding
from escala.report.findings.context import Report
from escala.report.findings.runs import failures
from escala.report.findings.words import Comparison, Names, Tables, span
from escala.report.summary import BRIEF, all_findings, explanation, first_screen, overview
from escala.report.tables.views import level, only_whole_runs
from escala.strategies.base import TRACE

#: The most characters of figures in a page. Further figures are links to their files.
FIGURE_SIZE = 250_000
#: Sections of figures that no finding names, by the category of the figure.
_SECTION_OF_CATEGORY = {
    "Data": "data",
    "Quality": "scores",
    "Examples": "scores",
    "Time": "sure",
    "Resources": "why",
}
#: Headings of the page in their order, and the sections that it always has.
_HEADINGS = {
    "configurations": "Configurations",
    "more": "More on the answer",
    **{name: SECTIONS[name] for name in BRIEF if name != "failures"},
    "runs": "Runs",
    "data": SECTIONS["data"],
}
#: The findings of a section with another name.
_FINDINGS_OF = {"more": "answer", "runs": "failures"}
_ALWAYS = {"configurations", "runs", "data"}
#: The space between a number and its unit, at which no line may break.
_BEFORE_UNIT = re.compile(r"(?<=\d) (?=%|(?:ms|s)\b)")
_FOLDER = Path(__file__).parent
#: The most files and variables of a program that are named. Further ones are counted.
_MOST_NAMES = 12
#: Columns of the table `runs`, with their headings, and the digits of numbers after the point.
COLUMNS = {
    "dataset": ("dataset", None),
    "workload": ("workload", None),
    "strategy": ("strategy", None),
    "layout": ("layout", None),
    "variant": ("variant", None),
    "network": ("network", None),
    "repeat": ("repeat", 0),
    "status": ("status", None),
    "train_seconds_per_epoch": ("training s per epoch", 3),
    "step_median_seconds": ("median step (s)", 4),
    "accuracy": ("accuracy", 3),
    "wall_seconds": ("whole run (s)", 1),
    "session": ("session", None),
}


class Drawing(NamedTuple):
    """A figure of the page, with its caption; `svg` is None if the page only links to it."""

    name: str
    caption: str
    svg: str | None


class Mark(NamedTuple):
    """A ratio on a scale.

    Attributes
    ----------
    of : what is compared.
    value : the ratio in words, with its interval.
    at, ends : where ratio and interval stand, in per cent of the scale's width.
    """

    of: str
    value: str
    at: float
    ends: list[float]


class Scale(NamedTuple):
    """Ratios on one scale; `rows` are by what each compares.

    Attributes
    ----------
    equal : where both take as much, in per cent of the width; `equal_value` is 1, or 0.
    """

    rows: dict[str, list[Mark]]
    equal: float
    equal_value: str


class Cell(NamedTuple):
    """The text of a value, and for a number the value by which rows are sorted."""

    text: str
    value: float | None = None


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
    tables : the tables of `escala.report.tables`.
    name, title : of the experiment.
    figures : the experiment's figures as SVG, by name.
    files : figures, tables and traces of runs to link to, relative to the page.
    question : as in `escala.report.summary`.
    """
    report = Report(tables, name)
    findings = all_findings(report)
    has_only_ladders = not report.against_main and not tables["ladder"].empty
    first = "ladder" if has_only_ladders else "seconds_per_epoch"
    screen = first_screen(report, findings, question)
    on_screen = {
        *(finding for answer in screen.answers for finding in answer.findings),
        *(finding for brief in screen.brief.values() for finding in brief),
    }
    inliner = Inliner()
    drawn = {drawing.name: drawing for drawing in _draw(figures, findings, inliner, first)}
    # A figure stands in the first section with a finding that names it. Without such a finding, it
    # stands in the section of its category.
    sections = {name: _SECTION_OF_CATEGORY[DECLARED[name].category] for name in drawn}
    for section in reversed(findings):
        sections |= {
            finding.figure: section for finding in findings[section] if finding.figure in drawn
        }
    style = (_FOLDER / "page.css").read_text(encoding="utf-8")
    style += inliner.rules + labels_of_runs(headings(tables).values())
    script = (_FOLDER / "page.js").read_text(encoding="utf-8")
    columns, configurations = overview(report)
    further = {}
    for section in _HEADINGS:
        of = _FINDINGS_OF.get(section, section)
        sentences = [one for one in findings.get(of, ()) if one not in on_screen]
        drawings = [drawn[n] for n in drawn if n != first and sections[n] == of]
        if section in _ALWAYS or sentences or drawings:
            further[section] = sentences, drawings
    return (
        templates()
        .get_template("page.html")
        .render(
            title=title,
            screen=screen,
            scales=[
                scale([one for finding in answer.findings for one in finding.compares])
                for answer in screen.answers
            ],
            level=in_percent(level(tables)),
            style=style,
            script=script,
            style_digest=digest(style),
            script_digest=digest(script),
            first=drawn.get(first),
            sections=SECTIONS | _HEADINGS,
            further=further,
            links=lambda finding: _links(finding, drawn, files),
            # Plain names come before those of the experiment's file.
            columns=["configuration", "name", *columns[2:]],
            configurations=[(words, name, *cells) for name, words, *cells in configurations],
            explanation=explanation(tables),
            headings=headings(tables),
            runs=list(rows(tables)),
            failures=list(failures(report)),
            provenance=list(provenance(tables, name)),
            traces=[file for file in files if file.endswith(f"/{TRACE}")],
            files=[file for file in files if not file.endswith(f"/{TRACE}")],
        )
    )


@cache
def templates(*further: Path) -> Environment:
    """Return the templates of the page and of further folders. They escape all text."""
    environment = Environment(
        loader=FileSystemLoader([_FOLDER, *further]), autoescape=True, undefined=StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["spaced"] = partial(_BEFORE_UNIT.sub, "\xa0")
    return environment


def scale(compared: Iterable[Comparison]) -> Scale | None:
    """Place the known ratios on a scale, logarithmic unless they are differences; None without."""
    known = [one for one in compared if not math.isnan(one.ratio.value)]
    if not known:
        return None
    equal = known[0].equal
    place = math.log if equal else float
    points = [
        [place(end) for end in one.ratio[:3] if math.isfinite(end) and (end > 0 or not equal)]
        for one in known
    ]
    ends = [place(equal), *chain.from_iterable(points)]
    room = 0.3 * (max(ends) - min(ends)) or 1.0
    least, most = min(*ends, place(equal) - room), max(*ends, place(equal) + room)

    def at(point: float) -> float:
        return round(2 + 96 * (point - least) / (most - least), 2)

    rows: dict[str, list[Mark]] = {}
    for one, (middle, *interval) in zip(known, points, strict=True):
        value = Names({}).ratio(one.ratio)
        if not equal:
            value = with_interval(*one.ratio[:3], "+.3f")
        ends_of_line = list(map(at, interval)) if len(interval) == 2 else []
        mark = Mark(one.of, value, at(middle), ends_of_line)
        rows.setdefault(one.between, []).append(mark)
    return Scale(rows, at(place(equal)), f"{equal:g}")


def labels_of_runs(headings: Iterable[str]) -> str:
    """Return the CSS rules that show the heading of each value of a run in a narrow window."""
    rules = (
        f'\n  #runs-table td:nth-child({place})::before {{ content: "{heading} "; }}'
        for place, heading in enumerate(headings, start=1)
    )
    return f"@media screen and (max-width: 40rem) {{{''.join(rules)}\n}}\n"


def digest(text: str) -> str:
    """Return the digest by which a content security policy allows a script or a style."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _draw(
    figures: Mapping[str, str],
    findings: Mapping[str, Collection[Finding]],
    inliner: Inliner,
    first: str,
) -> Iterator[Drawing]:
    """Yield the first figure, then figures that findings name, then others. Inline what fits."""
    in_order = [finding for of_section in findings.values() for finding in of_section]
    size = 0
    for name in dict.fromkeys([first, *(finding.figure for finding in in_order), *figures]):
        if name not in figures:
            continue
        caption = DECLARED[name].caption.replace("``", "`")
        title, _, _ = caption.partition(". ")
        texts = [finding.text for finding in in_order if finding.figure == name]
        words = " ".join(texts or [caption]).replace("`", "")
        svg = inliner.inline(figures[name], f"figure-{name}", f"{title.rstrip('.')}.", words)
        fits = size + len(svg) <= FIGURE_SIZE
        size += len(svg) * fits
        yield Drawing(name, caption, svg if fits else None)


def _links(
    finding: Finding, drawn: Mapping[str, Drawing], files: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield the words and the address of each link from a finding to its evidence."""
    if finding.figure in drawn:
        yield "figure", f"#figure-{finding.figure}"
    table = f"tables/{finding.table}.csv"
    if table in files:
        yield "table", table


def headings(tables: Tables) -> dict[str, str]:
    """Return the heading of each column."""
    whole = {"train_seconds_per_epoch": "s per run"} if only_whole_runs(tables) else {}
    return {key: heading for key, (heading, _) in COLUMNS.items()} | whole


def rows(tables: Tables) -> Iterator[list[Cell]]:
    """Yield the cells of each measurement, in the order of `COLUMNS`."""
    for row in records(tables["runs"]):
        yield [_cell(row[key], digits) for key, (_, digits) in COLUMNS.items()]


def _cell(value: Any, digits: int | None) -> Cell:
    """Return the cell of a value. `digits` are those after the point of a number, None for text."""
    if value is None:
        return Cell("–")
    return Cell(str(value)) if digits is None else Cell(f"{value:.{digits}f}", float(value))


def provenance(tables: Tables, name: str) -> Iterator[tuple[str, str]]:
    """Yield names and values: experiment, runs, sessions, hosts, systems, splits and code."""
    runs = tables["runs"]
    yield "experiment", name
    yield "measurements", with_noun(len(runs), "measurement")
    yield "sessions", ", ".join(sorted(runs["session"].unique()))
    yield "started", " to ".join(sorted({runs["started"].min(), runs["started"].max()}))
    hosts = set(";".join(runs["hosts"].dropna()).split(";")) - {""}
    yield "hosts", ", ".join(sorted(hosts)) or "unavailable"
    yield "kernel", ", ".join(sorted(runs["kernel"].dropna().unique()))
    for dataset, group in runs.groupby("dataset", sort=False):
        seeds = ", ".join(map(str, sorted(group["split_seed"].unique())))
        tested = group["test_rows"].dropna()
        rows = f", {span(tested)} test rows" if len(tested) else ""
        source = group["provenance"].iloc[0]
        yield f"dataset {dataset}", f"{source}, split seed {seeds}{rows}"
    for workload, group in runs.groupby("workload", sort=False):
        for command in group["command"].dropna().unique():
            yield f"program {workload}", command
        for what in ("files", "variables"):
            for names in group[f"program_{what}"].dropna().unique():
                yield f"{what} of {workload}", name_first(names.split(";"), _MOST_NAMES)
    yield "digests of the code", ", ".join(sorted(runs["source_sha256"].dropna().unique()))


_SVG = "{http://www.w3.org/2000/svg}"
_LINK = "{http://www.w3.org/1999/xlink}href"
#: Elements that are removed: they draw nothing, and a style would apply to the whole page.
_NOT_DRAWN = {f"{_SVG}metadata", f"{_SVG}style"}
#: The least and the largest width of a drawing on the page, as multiples of its size.
_SMALLEST, _LARGEST = 0.8, 1.25
_LENGTH, _PIXELS_PER_POINT, _PIXELS_PER_REM = re.compile(r"([\d.]+)pt"), 4 / 3, 16
#: References to identifiers: anywhere, and only in styles and attributes.
_USED, _REFERENCE = re.compile(r"""(?:url\(|href=")#([^)"]+)"""), re.compile(r"url\(#([^)]*)\)")
#: Lengths in points, with more decimals than can be seen.
_PRECISE = re.compile(r"-?\d+\.\d{3,}(?:e[+-]?\d+)?")


class Inliner:
    """Turns SVG files into elements of one page, and collects their styles.

    The page's security policy allows no style attributes. So each style becomes a class, and equal
    styles of all drawings share a class. Each identifier with a reference becomes short and unique
    on the page. Numbers are rounded to a hundredth of a point.
    """

    def __init__(self) -> None:
        self._classes: dict[str, str] = {}
        self._identifiers: dict[tuple[str, str], str] = {}

    @property
    def rules(self) -> str:
        """The CSS rules of the classes so far."""
        return "".join(f".{name}{{{style}}}" for style, name in self._classes.items())

    def inline(self, svg: str, name: str, title: str, description: str) -> str:
        """Return a drawing as an element of HTML, and remember its styles.

        Parameters
        ----------
        svg : a whole file.
        name : begins the identifiers of title and description; letters, digits, `.`, `_` and `-`.
        title, description : texts that a screen reader speaks in place of the drawing.

        Raises
        ------
        xml.etree.ElementTree.ParseError : `svg` is not XML.
        """
        root, used = ET.fromstring(svg), set(_USED.findall(svg))

        def identifier(in_file: str) -> str:
            number = len(self._identifiers)
            return self._identifiers.setdefault((name, in_file), f"i{number}")

        def rename_references(value: str) -> str:
            return _REFERENCE.sub(lambda match: f"url(#{identifier(match[1])})", value)

        def round_number(match: re.Match) -> str:
            # Adding zero removes the sign of a negative zero.
            return f"{round(float(match[0]), 2) + 0.0:.2f}".rstrip("0").rstrip(".")

        for element in root.iter():
            for child in [child for child in element if child.tag in _NOT_DRAWN]:
                element.remove(child)
        # On the page, the width of a drawing follows that of the window.
        root.attrib.pop("height", None)
        if length := _LENGTH.fullmatch(root.attrib.pop("width", "")):
            rem = float(length[1]) * _PIXELS_PER_POINT / _PIXELS_PER_REM
            root.set(
                "style", f"min-width:{_SMALLEST * rem:.4g}rem; max-width:{_LARGEST * rem:.4g}rem"
            )
        for element in root.iter():
            element.tag = element.tag.removeprefix(_SVG)
            element.text, element.tail = (
                text if text and text.strip() else None for text in (element.text, element.tail)
            )
            attributes, element.attrib = element.attrib, {}
            for key, value in attributes.items():
                if key == _LINK:
                    is_inside = value.startswith("#")
                    element.set("href", f"#{identifier(value[1:])}" if is_inside else value)
                elif key == "style":
                    style = rename_references(value)
                    rule = self._classes.setdefault(style, f"d{len(self._classes)}")
                    element.set("class", f"{element.get('class', '')} {rule}".strip())
                elif key == "class":
                    element.set("class", f"{value} {element.get('class', '')}".strip())
                elif key == "id":
                    if value in used:
                        element.set("id", identifier(value))
                else:
                    value = " ".join(rename_references(value).split())
                    # Factors of a scale need all of their digits.
                    if "scale" not in value and "matrix" not in value:
                        value = _PRECISE.sub(round_number, value)
                    element.set(key, value)
        root.set("role", "img")
        labels = {"title": title, "desc": description}
        root.set("aria-labelledby", " ".join(f"{name}-{part}" for part in labels))
        for place, (part, text) in enumerate(labels.items()):
            label = ET.Element(part, id=f"{name}-{part}")
            label.text = text
            root.insert(place, label)
        return ET.tostring(root, encoding="unicode")
