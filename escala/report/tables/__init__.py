"""Build the result tables of an experiment from its runs.

Times pool every session in which a run was measured, as far as the measurements are comparable.
Ratios use paired runs of one session. Scores count each run once, by its current measurement.

A function `NAME(evidence, tables)` in a module of this package makes the table NAME. It yields a
dict for each row, from `base.Evidence` and from other tables. The schema NAME in `schemas/tables/`
describes the columns and units.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import cache
from importlib import import_module
from inspect import isfunction, signature
from pathlib import Path
from typing import Any

import pandas as pd
from jsonschema import Draft202012Validator

from escala.analysis.tables import SCHEMAS, csv, read_table, schema
from escala.core.errors import InputError
from escala.core.files import atomic
from escala.report.tables.base import Evidence, frame

__all__ = ["TABLES", "Evidence", "csv", "read", "schema", "tables", "validate", "write"]

TABLES = tuple(sorted(path.name.split(".")[0] for path in SCHEMAS.iterdir()))


@cache
def _builders() -> dict[str, Callable]:
    """Return the function of each table."""
    modules = [
        import_module(f"escala.report.tables.{path.stem}")
        for path in sorted(Path(__file__).parent.glob("[!_]*.py"))
    ]
    builders = {
        name: function
        for module in modules
        for name, function in vars(module).items()
        if isfunction(function) and function.__module__ == module.__name__
        if name in TABLES or [*signature(function).parameters] == ["evidence", "tables"]
    }
    for name in builders.keys() ^ set(TABLES):
        if name in TABLES:
            reason = f"no module of escala/report/tables has a function {name}(evidence, tables)"
        else:
            reason = f"is missing, and the function {name}(evidence, tables) makes a table"
        raise InputError(SCHEMAS / f"{name}.schema.yaml", None, reason, "write it, or rename it")
    return builders


class _Tables(dict):
    """Tables by their name. A table is built when it is first read, also by another table."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence

    def __missing__(self, name: str) -> pd.DataFrame:
        self[name] = frame(name, _builders()[name](self._evidence, self))
        return self[name]


def tables(*files: Any, only: Collection[str] = TABLES, **more: Any) -> dict[str, pd.DataFrame]:
    """Build all tables, or some `only`, from the arguments of `Evidence`."""
    built = _Tables(Evidence(*files, **more))
    return {name: built[name] for name in only}


def write(frames: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Check tables against their schemas and write each as CSV."""
    for name, table in frames.items():
        validate(name, table)
        with atomic(folder / f"{name}.csv") as temporary:
            temporary.write_text(csv(table), encoding="utf-8")


def read(folder: Path) -> dict[str, pd.DataFrame]:
    """Read the tables in a folder, with the types that their schemas give."""
    return {name: read_table(folder, name) for name in TABLES}


def validate(name: str, table: pd.DataFrame) -> None:
    """Check every distinct value of a table; a missing value counts as null.

    Raises
    ------
    jsonschema.ValidationError : a column does not agree with the schema.
    """
    rows = schema(name)
    columns = {
        column: {"type": "array", "items": value} for column, value in rows["properties"].items()
    }
    values = table.astype(object).where(table.notna(), None)
    Draft202012Validator(rows | {"properties": columns}).validate(
        {column: values[column].drop_duplicates().to_list() for column in values}
    )
