"""How often a model is wrong about pieces of each length, and what a table of predictions says."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from escala.core.files import read_json, write_json
from escala.data import Kind
from escala.predict.classify import compute_together, familiar, model


class Measured(NamedTuple):
    """What a model said of test pieces of one length, in letters.

    Attributes
    ----------
    pieces, wrong : their number, and how many got another class than their own.
    familiar, wrong_familiar : the same, only for pieces that are not flagged as unlike the training
        rows.
    """

    letters: int
    pieces: int
    wrong: int
    familiar: int
    wrong_familiar: int

    @property
    def error(self) -> float:
        """The fraction of wrong ones among familiar pieces, NaN if there is none."""
        return self.wrong_familiar / self.familiar if self.familiar else math.nan


def measure(
    kind: Kind, run: Path, split: Path, familiarity: Path, false_alarms: float, output: Path
) -> list[Measured]:
    """Classify pieces of the test side, of several lengths, and write the numbers of wrong ones.

    Lengths end with the first one, of a model's row or longer, without a wrong piece. A model that
    names no classes has none. Arguments are as of `classify.predict`; `split` is the folder of the
    arrays that the model was trained on, and the kind's `fragments` cut the pieces.
    """
    classifier, measured = model(run), []
    rows = max(classifier.inputs[0].shape)
    likeness = familiar(kind, familiarity, false_alarms)
    if classifier.classes and not classifier.columns:
        description = classifier.description["data"]
        for letters, drawn in kind.load("fragments").fragments(split, description):
            queries, labels = zip(*drawn, strict=True)
            outputs = compute_together(classifier.probabilities, queries)
            wrong = [
                output.mean(axis=0).argmax() != label
                for (_, output), label in zip(outputs, labels, strict=True)
            ]
            known = [not likeness(query.evidence)["unlike_anything_seen"] for query in queries]
            wrong_known = sum(k and w for k, w in zip(known, wrong, strict=True))
            counts = len(wrong), int(sum(wrong)), sum(known), int(wrong_known)
            measured.append(Measured(letters, *counts))
            if letters >= rows and not wrong_known and known:
                break
    lengths = [entry._asdict() for entry in measured]
    write_json(output, {"false_alarms": false_alarms, "lengths": lengths})
    return measured


def read(path: Path) -> list[Measured]:
    """Return what `measure` wrote."""
    return [Measured(**entry) for entry in read_json(path)["lengths"]]


def enough(measured: list[Measured], limit: float) -> float:
    """Return from how many letters on the error is at most `limit`; infinite if it never is."""
    least = math.inf
    for entry in reversed(measured):
        if not entry.error <= limit:
            break
        least = entry.letters
    return least


def judge(measured: list[Measured], limit: float) -> Callable[[Mapping[str, Any]], dict]:
    """Return a function from an item's columns, with its `letters`, to its columns on its length.

    These are `error_at_length`, that of the longest measured length that the item reaches, or else
    of the shortest one; and `too_short`.
    """
    least = enough(measured, limit)

    def columns(item: Mapping[str, Any]) -> dict:
        reached = [entry for entry in measured if entry.letters <= item["letters"]]
        entry = reached[-1] if reached else measured[0]
        return {"error_at_length": entry.error, "too_short": item["letters"] < least}

    return columns if measured else lambda item: {}


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

        truth, answers = table["class"], table["predicted"]
        lines.append(classification_report(truth, answers, digits=4, zero_division=0))
    if "too_short" in table:
        least = enough(measured, limit)
        lines.append(
            f"At no measured length at most {limit:.1%} were wrong: every record is too short."
            if math.isinf(least)
            else f"Too short is a record of fewer than {least} letters: over {limit:.1%} are wrong."
        )
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
