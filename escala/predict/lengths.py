"""Measure how often a model is wrong about pieces of each length, and flag records by it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from escala.core.files import read_json, write_json
from escala.data import Kind
from escala.predict.classify import compute_together, familiar, model


class LengthError(NamedTuple):
    """How often a model is wrong about test pieces of one length, in letters.

    Attributes
    ----------
    pieces, wrong : number of all pieces, and number of pieces whose predicted class is wrong.
    familiar, wrong_familiar : both numbers without the pieces that are flagged as unlike the
        training rows.
    """

    letters: int
    pieces: int
    wrong: int
    familiar: int
    wrong_familiar: int

    @property
    def error(self) -> float:
        """The fraction of the familiar pieces that are wrong; NaN without familiar pieces."""
        return self.wrong_familiar / self.familiar if self.familiar else math.nan


def measure(
    kind: Kind, run: Path, split: Path, familiarity: Path, false_alarms: float, output: Path
) -> list[LengthError]:
    """Classify test pieces of several lengths, and write how many pieces are wrong.

    The lengths increase until one is at least a model's row and has no wrong familiar piece. The
    list is empty for a model without classes. Arguments are as in `classify.predict`; `split` is
    the folder of the arrays that the model was trained on. The kind's `fragments` cut the pieces.
    """
    classifier, measured = model(run), []
    row_letters = max(classifier.inputs[0].shape)
    columns_on = familiar(kind, familiarity, false_alarms)
    if classifier.classes and not classifier.columns:
        description = classifier.description["data"]
        for letters, pieces in kind.load("fragments").fragments(split, description):
            queries, labels = zip(*pieces, strict=True)
            outputs = compute_together(classifier.probabilities, queries)
            wrong = [
                output.mean(axis=0).argmax() != label
                for (_, output), label in zip(outputs, labels, strict=True)
            ]
            is_familiar = [
                not columns_on(query.evidence)["unlike_anything_seen"] for query in queries
            ]
            wrong_familiar = int(np.logical_and(wrong, is_familiar).sum())
            measured.append(
                LengthError(letters, len(wrong), int(sum(wrong)), sum(is_familiar), wrong_familiar)
            )
            if letters >= row_letters and not wrong_familiar:
                break
    lengths = [at_length._asdict() for at_length in measured]
    write_json(output, {"false_alarms": false_alarms, "lengths": lengths})
    return measured


def read(path: Path) -> list[LengthError]:
    """Return the list that `measure` wrote."""
    return [LengthError(**at_length) for at_length in read_json(path)["lengths"]]


def least_letters(measured: list[LengthError], limit: float) -> float:
    """Return the length, in letters, from which on no error exceeds `limit`; else infinity."""
    least = math.inf
    for at_length in reversed(measured):
        if not at_length.error <= limit:
            break
        least = at_length.letters
    return least


def judge(measured: list[LengthError], limit: float) -> Callable[[Mapping[str, Any]], dict]:
    """Return a function that takes an item's columns and returns further columns on its length.

    The function reads the column `letters`. `error_at_length` is the error at the longest measured
    length that the item reaches. An item below all measured lengths gets the error at the shortest
    one. `too_short` tells whether the item's error may exceed `limit`.
    """
    least = least_letters(measured, limit)

    def columns(item: Mapping[str, Any]) -> dict:
        reached = [at_length for at_length in measured if at_length.letters <= item["letters"]]
        error = (reached[-1] if reached else measured[0]).error
        return {"error_at_length": error, "too_short": item["letters"] < least}

    return columns if measured else lambda item: {}


def summary(path: Path, measured: list[LengthError], limit: float) -> str:
    """Return the counts of a table that `classify.predict` wrote. The last line names the file.

    If the table has true classes, precision, recall and F1 of each class come before the last line.

    Parameters
    ----------
    measured : errors by length; empty if none were measured.
    limit : the largest error of a record that is not too short, from 0 to 1.
    """
    table = pd.read_csv(path, sep="\t", dtype=str, keep_default_na=False)
    predicted = table.filter(regex="^predicted")
    numbers = predicted.apply(pd.to_numeric, errors="coerce")
    classes = any(name.startswith("probability_") for name in table)
    counted = classes or numbers.isna().any(axis=None)
    lines = [(predicted.value_counts() if counted else numbers.describe()).to_string()]
    if "class" in table:
        from sklearn.metrics import classification_report

        truth, answers = table["class"], table["predicted"]
        lines.append(classification_report(truth, answers, digits=4, zero_division=0))
    if "too_short" in table:
        least = least_letters(measured, limit)
        lines.append(
            f"More than {limit:.1%} are wrong at the longest length: every record is too short."
            if math.isinf(least)
            else f"A record of fewer than {least} letters is too short: over {limit:.1%} are wrong."
        )
    # A column, the value that is counted in it, and the words for this value.
    flags = (
        ("shorter_than_rows", "True", "shorter than the model's rows"),
        ("too_short", "True", "too short"),
        ("likeness", "near", "near"),
        ("likeness", "far", "far from what it was trained on"),
    )
    counts = [
        f"{(table[column] == value).sum()} {words}"
        for column, value, words in flags
        if column in table
    ]
    lines.append(f"{len(table)} records{': ' * bool(counts)}{', '.join(counts)}: {path}")
    return "\n".join(lines)
