"""Arguments of the scripts that write the summary and the page, and their use of the store."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from escala import cli
from escala.cache import code
from escala.core.files import atomic

if TYPE_CHECKING:
    import pandas as pd


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser of the arguments that every document has."""
    arguments = argparse.ArgumentParser(description=description)
    arguments.add_argument("--experiment", required=True, help="name of the experiment")
    arguments.add_argument("--title", required=True)
    arguments.add_argument("--question", default="time", help="that of the experiment")
    arguments.add_argument("--tables", required=True, type=Path, help="folder of the tables")
    arguments.add_argument(
        "--files", nargs="*", default=[], type=Path, help="figures and tables to link to"
    )
    arguments.add_argument("--output", required=True, type=Path)
    return arguments


def links(arguments: argparse.Namespace) -> list[str]:
    """Return the addresses of the files to link to, relative to the document."""
    folder = arguments.output.parent
    return [path.relative_to(folder).as_posix() for path in arguments.files]


def serve_or_write(
    step: str,
    arguments: argparse.Namespace,
    text: Callable[[dict[str, pd.DataFrame]], str],
    *,
    inputs: Mapping[str, Path] | None = None,
) -> None:
    """Take a document from the store, or write it.

    Parameters
    ----------
    step : the name of the document.
    text : gives its text from the tables of `escala.report.tables`, and imports what it needs.
    inputs : files that it reads besides the tables, by name.
    """

    def make() -> None:
        from escala.report import tables

        with atomic(arguments.output) as temporary:
            temporary.write_text(text(tables.read(arguments.tables)), encoding="utf-8")

    cli.serve_or_make(
        step,
        code=code.project(),
        inputs={"tables": arguments.tables, **(inputs or {})},
        parameters={
            "experiment": arguments.experiment,
            "title": arguments.title,
            "question": arguments.question,
            "links": links(arguments),
        },
        outputs={step: arguments.output},
        make=make,
    )
