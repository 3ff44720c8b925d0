"""Read the result tables of an experiment, with the types that their schemas give."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import read_yaml

SCHEMAS = Path(__file__).resolve().parents[2] / "schemas" / "tables"
_PANDAS = {"string": "string", "integer": "Int64", "number": "float64", "boolean": "boolean"}


@cache
def schema(name: str) -> dict:
    """Return the JSON schema of a table's rows; its properties have the order of the columns."""
    return read_yaml(SCHEMAS / f"{name}.schema.yaml")


def dtypes(name: str) -> dict[str, str]:
    """Return pandas' type of every column; all types can hold missing values."""
    return {
        key: _PANDAS[np.atleast_1d(column["type"])[0]]
        for key, column in schema(name)["properties"].items()
    }


def read_table(folder: Path, name: str) -> pd.DataFrame:
    """Return a table of a folder of tables.

    Raises
    ------
    InputError : it lacks a column of its schema.
    """
    file = folder / f"{name}.csv"
    # A class or a variant may be called NA or None; only an empty field is missing.
    table = pd.read_csv(file, dtype=dtypes(name), keep_default_na=False, na_values=[""])
    if missing := sorted(dtypes(name).keys() - table.columns):
        raise InputError(
            file, missing, "columns are missing", f"make it again: {call('run report')}"
        )
    return table


def records(table: pd.DataFrame) -> list[dict]:
    """Return the rows of a table; a missing value is None."""
    return table.astype(object).where(table.notna(), None).to_dict("records")
