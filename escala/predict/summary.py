"""What a table of predictions says, in a few lines."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from escala.predict.lengths import Measured, enough


def summary(path: Path, measured: list[Measured], limit: float) -> str:
    """Return the counts of a table that `classify.predict` wrote; its last line names the file.

    `measured` and `limit` are as of `escala.predict.lengths`. Where the classes are known, there
    are precision, recall and F1 of each, in turn the positive one, by scikit-learn's definitions.
    """
    table = pd.read_csv(path, sep="\t", dtype=str, keep_default_na=False)
    predicted = table.filter(regex="^predicted")
    numbers = predicted.apply(pd.to_numeric, errors="coerce")
    classes = any(name.startswith("probability_") for name in table)
    counted = classes or numbers.isna().any(axis=None)
    lines = [(predicted.value_counts() if counted else numbers.describe()).to_string()]
    if "class" in table:
        from sklearn.metrics import classification_report

        truth, found = table["class"], table["predicted"]
        lines.append(classification_report(truth, found, digits=4, zero_division=0))
    if "too_short" in table:
        lines += _by_length(table["letters"].astype(int), measured, limit)
    flags = (
        ("shorter_than_rows", "True", "shorter than the model's rows"),
        ("too_short", "True", "too short"),
        ("likeness", "near", "near"),
        ("likeness", "far", "far from what it was trained on"),
    )
    counts = [
        f"{(table[column] == value).sum()} {flag}"
        for column, value, flag in flags
        if column in table
    ]
    lines.append(f"{len(table)} records{': ' * bool(counts)}{', '.join(counts)}: {path}")
    return "\n".join(lines)


def _by_length(letters: pd.Series, measured: list[Measured], limit: float) -> Iterator[str]:
    """Yield the fraction of wrong test pieces at each length of records, and what follows."""
    bounds = [0, *(entry.letters for entry in measured[1:]), math.inf]
    for entry, low, high in zip(measured, bounds, bounds[1:], strict=False):
        if count := int(letters.between(low, high, inclusive="left").sum()):
            lengths = f"{low} to {high - 1} letters" if low else f"fewer than {high} letters"
            if math.isinf(high):
                lengths = f"{low} letters or more"
            yield (
                f"of familiar test pieces of {entry.letters} letters, {entry.error:.1%} were "
                f"wrong: {count} records of {lengths}"
            )
    least = enough(measured, limit)
    if math.isinf(least):
        yield f"At no measured length at most {limit:.1%} were wrong: every record is too short."
    else:
        yield f"Too short is a record of fewer than {least} letters: over {limit:.1%} are wrong."
