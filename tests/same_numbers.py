"""Compare the numbers of two reports on the same runs: `python -m tests.same_numbers BEFORE AFTER`.

Both are folders such as `results/demo`, made by two versions of Escala from the same files
`run.json`. A table differs if a row or a cell of a shared column does. A page or summary differs
if a number of its visible text is gone or new. The exit code is 1 if anything differs.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd

NUMBER = re.compile(r"(?<![\w.#-])[−-]?\d[\d  ]*(?:\.\d+)?(?:[eE][+-]?\d+)?")
#: What differs from one making of a report to the next: moments, versions, digests, paths.
PASSING = re.compile(r"\d{4}-\d\d-\d\d[T ]?[\d:.+Z]*|\b[0-9a-f]{8,}\b|\d+\.\d+\.\d+\S*|/\S+")


class _Text(HTMLParser):
    """The visible text of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.words, self.hidden = [], 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.hidden += tag in ("script", "style")

    def handle_endtag(self, tag: str) -> None:
        self.hidden -= tag in ("script", "style")

    def handle_data(self, data: str) -> None:
        if not self.hidden:
            self.words.append(data)


def numbers(file: Path) -> Counter[str]:
    """Return how often each number stands in the text of a Markdown or HTML file."""
    text = file.read_text(encoding="utf-8")
    text = " ".join(_Text(text).words) if file.suffix == ".html" else text
    return Counter(number.strip() for number in NUMBER.findall(PASSING.sub(" ", text)))


def table_differences(before: Path, after: Path) -> list[str]:
    """Return how two tables differ in the rows and the columns that both have."""
    old, new = (pd.read_csv(file, keep_default_na=False, dtype=str) for file in (before, after))
    if len(old) != len(new):
        return [f"{len(old)} rows before, {len(new)} after"]
    differences = []
    for name in old.columns.intersection(new.columns):
        numeric = [pd.to_numeric(frame[name], errors="coerce") for frame in (old, new)]
        same = (old[name] == new[name]) | np.isclose(*numeric, rtol=1e-9, atol=0)
        differences += [
            f"{name}, row {row}: {old[name][row]} before, {new[name][row]} after"
            for row in np.flatnonzero(~same)
        ]
    return differences


def main(before: Path, after: Path) -> int:
    """Print what differs and return the exit code."""
    differ = 0
    tables = {path.name for folder in (before, after) for path in folder.glob("tables/*.csv")}
    for name in sorted(tables):
        files = before / "tables" / name, after / "tables" / name
        if not all(file.is_file() for file in files):
            print(f"tables/{name}: only {'before' if files[0].is_file() else 'after'}")
            continue
        differences = table_differences(*files)
        differ += len(differences)
        print(f"tables/{name}: {'; '.join(differences[:5]) or 'equal'}")
    for name in ("summary.md", "index.html"):
        old, new = numbers(before / name), numbers(after / name)
        gone, added = old - new, new - old
        differ += gone.total() + added.total()
        print(f"{name}: {old.total()} numbers; gone {dict(gone)}; new {dict(added)}")
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
