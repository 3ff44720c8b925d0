"""Pages of made-up experiments, for tests of their text and for tests in a browser."""

from __future__ import annotations

from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path

import pandas as pd

from escala.report import tables
from escala.report.figures import common, figure
from escala.report.page import page
from tests.unit.fixtures_runs import FakeExperiment, three_configurations

#: Names and reasons that a page must show as they are, and never run.
HOSTILE = {
    "demo-1000": '<img src=x onerror="document.title=1">',
    "virus-cnn": "</style></script><script>document.title = 1</script>",
    "COVID": "\"' onmouseover=alert(1) {{ 7 * 7 }} `x` |",
    "SARS": "&lt;b&gt; <b>Ünïcode\u202e</b>",
    "rank 1 was ended by signal 9": "<a href='javascript:alert(1)'>\nlast words</a>]]> --> " * 30,
    "tuned": "http://example.org/<script src=//example.org/x.js>",
}
TITLE = "Two processes </title> & one"
#: Elements of HTML without an end.
_VOID = {"meta", "link", "input", "br", "hr", "img"}


def drawn(frames: dict[str, pd.DataFrame], folder: Path, names: Iterable[str]) -> dict[str, str]:
    """Return figures as SVG, by name."""
    found = {}
    with common.style():
        for name in names:
            common.save(figure(name).draw(frames), folder / f"{name}.svg")
            found[name] = (folder / f"{name}.svg").read_text()
    return found


def epoch_rows(frames: dict) -> pd.DataFrame:
    """Return the rows of `speedup` that compare the times of an epoch."""
    return frames["speedup"].query("basis == 'epoch'")


def tabled(experiment: FakeExperiment, **more) -> dict[str, pd.DataFrame]:
    """Return the tables of a made-up experiment."""
    return tables.tables(experiment.runs, experiment.dataset_files, **more)


def table_of(name: str, experiment: FakeExperiment, **more) -> pd.DataFrame:
    """Return one table of a made-up experiment; no other is built that it does not read."""
    return tabled(experiment, only=[name], **more)[name]


def three(folder: Path) -> dict[str, pd.DataFrame]:
    """Return the tables of three configurations, one run of which failed."""
    return tabled(three_configurations(folder))


def failed(folder: Path, reason: str = "no memory </section> left") -> dict[str, pd.DataFrame]:
    """Return the tables of two configurations whose only runs failed."""
    failures = {1: ("out-of-memory", reason)}
    experiment = FakeExperiment(folder).add_dataset()
    for strategy, layout in (("single", "1x1"), ("horovod-mpi", "1x2")):
        experiment.add(strategy, layout, 5.0, 1, failures)
    return tabled(experiment)


def hostile(frames: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """Return tables in which names and reasons are those of `HOSTILE`."""
    return {name: frame.replace(HOSTILE) for name, frame in frames.items()}


def written(frames: dict[str, pd.DataFrame], figures: dict[str, str]) -> str:
    """Return the page of an experiment, alongside which some of its tables lie."""
    files = [*(f"figures/{name}.svg" for name in figures), "tables/speedup.csv", "tables/runs.csv"]
    return page(frames, "demo", TITLE, figures, files)


class Parsed(HTMLParser):
    """The elements of a page, and what is wrong with their nesting.

    Attributes
    ----------
    elements : name and attributes of each, in order.
    texts : the text of each, joined with that of the elements in it, in order of their ends.
    errors : ends without a start, elements without an end, and attributes given twice.
    """

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[tuple[str, str]] = []
        self.errors: list[str] = []
        self._open: list[tuple[str, list[str]]] = []
        self.feed(text)
        self.close()
        self.errors += [f"{name} has no end" for name, _ in self._open]

    def handle_starttag(self, tag, attrs):
        self.handle_startendtag(tag, attrs)
        if tag not in _VOID:
            self._open.append((tag, []))

    def handle_startendtag(self, tag, attrs):
        if len(dict(attrs)) != len(attrs):
            self.errors.append(f"{tag} has an attribute twice")
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        if not self._open or self._open[-1][0] != tag:
            self.errors.append(f"an end of {tag} at {self.getpos()}")
            return
        name, parts = self._open.pop()
        self.texts.append((name, "".join(parts)))

    def handle_data(self, data):
        for _, parts in self._open:
            parts.append(data)

    def all(self, tag: str) -> list[dict[str, str]]:
        """Return the attributes of every element of a name."""
        return [attributes for name, attributes in self.elements if name == tag]

    def text_of(self, tag: str) -> list[str]:
        """Return the text of every element of a name."""
        return [text for name, text in self.texts if name == tag]
