"""What a table of predictions says, in a few lines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from escala.predict.lengths import Measured, enough


def summary(path: Path, measured: list[Measured], limit: float) -> str:
    """Return the counts of a table as text; its last line names the file.

    Parameters
    ----------
    path : of the table, as `escala.predict.classify.predict` wrote it.
    measured, limit : as of `escala.predict.lengths`.
    """
    table = pd.read_csv(path, sep="\t", dtype=str, keep_default_na=False)
    return "\n".join(_lines(table, path, measured, limit))


def _lines(
    table: pd.DataFrame, path: Path, measured: list[Measured], limit: float
) -> Iterator[str]:
    predicted = table.filter(regex="^predicted")
    numbers = predicted.apply(pd.to_numeric, errors="coerce")
    classes = any(name.startswith("probability_") for name in table)
    if classes or numbers.isna().any(axis=None):
        yield predicted.value_counts().to_string()
    else:
        yield numbers.describe().to_string()
    if "class" in table:
        from escala.predict.scores import report

        yield report(table)
    if "too_short" in table:
        yield from _by_length(table, measured, limit)
    flags = {
        "shorter than the model's rows": _count(table, "shorter_than_rows", "True"),
        "too short": _count(table, "too_short", "True"),
        "near": _count(table, "likeness", "near"),
        "far from what it was trained on": _count(table, "likeness", "far"),
    }
    counts = [f"{count} {flag}" for flag, count in flags.items() if count is not None]
    yield f"{len(table)} records{': ' * bool(counts)}{', '.join(counts)}: {path}"


def _by_length(table: pd.DataFrame, measured: list[Measured], limit: float) -> Iterator[str]:
    """Yield the share of wrong test pieces at each length that records have, and what follows."""
    letters = table["letters"].astype(int)
    bounds = [0, *(entry.letters for entry in measured[1:]), math.inf]
    for entry, low, high in zip(measured, bounds, bounds[1:], strict=False):
        if count := int(letters.between(low, high, inclusive="left").sum()):
            yield (
                f"of familiar test pieces of {entry.letters} letters, {entry.error:.1%} were "
                f"wrong: {count} records of {low} letters or more"
            )
    least = enough(measured, limit)
    if math.isinf(least):
        yield f"At no measured length at most {limit:.1%} were wrong: every record is too short."
    else:
        yield f"Too short is a record of fewer than {least} letters: over {limit:.1%} are wrong."


def _count(table: pd.DataFrame, column: str, value: str) -> int | None:
    return int((table[column] == value).sum()) if column in table else None
