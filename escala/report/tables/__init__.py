"""Build the result tables of an experiment from its runs.

Times pool every session in which a run was measured, as far as the measurements are comparable.
Ratios use pairs of one session. Scores count each run once, by its current measurement.
`schemas/tables/` describes the columns of each table, with their units. To add a table, add a
module here and a schema there.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pandas as pd
from jsonschema import Draft202012Validator

from escala.core.files import atomic
from escala.report.tables.base import SCHEMAS, Evidence, dtypes, frame, schema

__all__ = ["TABLES", "Evidence", "read", "schema", "tables", "validate", "write"]

TABLES = tuple(sorted(path.name.split(".")[0] for path in SCHEMAS.iterdir()))


def tables(*files: Any, **more: Any) -> dict[str, pd.DataFrame]:
    """Build every table of `TABLES` from the arguments of `Evidence`."""
    evidence = Evidence(*files, **more)
    rows = {name: import_module(f"escala.report.tables.{name}").rows for name in TABLES}
    return {name: frame(name, rows[name](evidence)) for name in TABLES}


def write(frames: Mapping[str, pd.DataFrame], folder: Path) -> None:
    """Check tables against their schemas and write each as CSV."""
    for name, table in frames.items():
        validate(name, table)
        with atomic(folder / f"{name}.csv") as temporary:
            table.to_csv(temporary, index=False)


def read(folder: Path) -> dict[str, pd.DataFrame]:
    """Read the tables in a folder, with the types that their schemas give."""
    return {
        name: pd.read_csv(
            # A class or a variant may be called NA or None; only an empty field is missing.
            folder / f"{name}.csv",
            dtype=dtypes(name),
            keep_default_na=False,
            na_values=[""],
        )
        for name in TABLES
    }


def validate(name: str, table: pd.DataFrame) -> None:
    """Check every value of a table once; a missing value counts as null.

    Raises
    ------
    jsonschema.ValidationError : a column does not agree with the schema.
    """
    of_rows = schema(name)
    of_columns = {
        column: {"type": "array", "items": of_values}
        for column, of_values in of_rows["properties"].items()
    }
    values = table.astype(object).where(table.notna(), None)
    Draft202012Validator(of_rows | {"properties": of_columns}).validate(
        {column: values[column].drop_duplicates().to_list() for column in values}
    )
