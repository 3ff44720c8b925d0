"""Write result tables as CSV, and read them with the types of their schemas."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd

from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import read_yaml

SCHEMAS = Path(__file__).resolve().parents[2] / "schemas" / "tables"
#: Begin of a text that a spreadsheet takes for a formula, or would take for one without its quotes.
_FORMULA = re.compile(r"'*[=+\-@\t\r]")
_FORMULA_QUOTED = re.compile(rf"^'(?={_FORMULA.pattern})")
_PANDAS = {"string": "string", "integer": "Int64", "number": "float64", "boolean": "boolean"}


@cache
def schema(name: str) -> dict:
    """Return the JSON schema of a table's rows, with its properties in the order of the columns.

    A file in `schemas/tables` has short forms, which are expanded here:

    - a column without a type is a text if it has an `enum`, otherwise a number or empty;
    - `column: TEXT` is a column with a number or empty, and the text is its description;
    - `one, other: {$ref: TABLE.schema.yaml}` are columns that another table describes;
    - a column with `interval: PREFIX` is followed by the ends of its interval, `PREFIX_low…` and
      `PREFIX_high…`, of the level of `speedup.csv` or of its `level`. The key `end_of` of both
      ends names the column.
    """
    table = read_yaml(SCHEMAS / f"{name}.schema.yaml")
    columns: dict[str, dict] = {}
    for key, column in table["properties"].items():
        if isinstance(column, str):
            column = {"description": column}
        if "$ref" in column:
            other_table = schema(column["$ref"].partition(".")[0])["properties"]
            columns |= {shared: other_table[shared] for shared in key.split(", ")}
            continue
        number = {"type": ["number", "null"]}
        text = {"type": ["string", "null"] if None in column.get("enum", ()) else "string"}
        columns[key] = (text if "enum" in column else number) | column
        if prefix := columns[key].pop("interval", None):
            level = columns[key].pop("level", None)
            interval = "interval" if level is None else f"{level} % interval"
            for end, word in (("low", "lower"), ("high", "upper")):
                end_column = {"description": f"The {word} end of its {interval}.", "end_of": key}
                columns[f"{prefix}_{end}{key.removeprefix(prefix)}"] = end_column | number
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"{name}.csv",
        "type": "object",
        "additionalProperties": False,
        **table,
        "properties": columns,
    }


@cache
def dtypes(name: str) -> dict[str, str]:
    """Return pandas' type of every column. All types allow missing values."""
    return {
        key: _PANDAS[np.atleast_1d(column["type"])[0]]
        for key, column in schema(name)["properties"].items()
    }


def csv(table: pd.DataFrame) -> str:
    """Return a table as CSV. No text in it is a formula for a spreadsheet.

    A text that looks like a formula gets a quote before it, as OWASP advises against CSV injection.
    `read_table` removes the quote. Numbers do not change.
    """
    texts = table.select_dtypes("string")
    return table.assign(**{name: texts[name].map(no_formula, "ignore") for name in texts}).to_csv(
        index=False
    )


def no_formula(text: str) -> str:
    """Return a text with a quote before it if a spreadsheet would take it for a formula."""
    if not _FORMULA.match(text):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def read_table(folder: Path, name: str) -> pd.DataFrame:
    """Return a table of a folder of tables.

    Raises
    ------
    InputError : the table lacks a column of its schema.
    """
    file = folder / f"{name}.csv"
    # A class or a variant may be called NA or None; only an empty field is missing.
    table = pd.read_csv(file, dtype=dtypes(name), keep_default_na=False, na_values=[""])
    if missing := sorted(dtypes(name).keys() - table.columns):
        raise InputError(
            file, missing, "columns are missing", f"make it again: {call('run report')}"
        )
    texts = table.select_dtypes("string")
    return table.assign(
        **{key: texts[key].str.replace(_FORMULA_QUOTED, "", regex=True) for key in texts}
    )


def records(table: pd.DataFrame) -> list[dict]:
    """Return the rows of a table; a missing value is None."""
    return table.astype(object).where(table.notna(), None).to_dict("records")
