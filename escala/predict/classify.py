"""Write a table of predictions for a user's data, and the familiarity of each item.

The errors on pieces of each length are measured here too. They flag items that are too short.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from escala.core.errors import InputError
from escala.core.files import atomic, read_json, write_json
from escala.data import Kind
from escala.data.base import Query
from escala.predict.model import Classifier, load

#: Least number of pieces in a call of the model, except in the last one.
PIECES = 1024
#: Number of rows that are collected as dicts before they become a table. A dict takes ten times the
#: memory of a row in a table.
_ROWS = 2**15


def predict(
    kind: Kind,
    path: Path,
    run: Path,
    familiarity: Path | None,
    false_alarms: float,
    output: Path,
    by_length: Callable[[Mapping[str, Any]], dict] | None = None,
) -> pd.DataFrame:
    """Predict every item of a path and write the table, a TSV.

    Parameters
    ----------
    kind : of the dataset that the model was trained on; its `queries` read the file.
    run : folder of the trained run.
    familiarity : file that the kind's `learn` wrote for the split of that run, if it has one.
    false_alarms : fraction of held-out rows that may be flagged, from 0 to below 1.
    by_length : gives the columns on an item's length, see `escala.predict.classify.judge`.

    Returns
    -------
    A row per item: the columns of its `Query`; `predicted`, and `probability_CLASS` for each class.
    A model without classes gives the number `predicted`, or numbers from `predicted_1` on. A
    workload with a function `columns` replaces these columns by its own. With a familiarity there
    are `familiar_fraction` (of its evidence; NaN without evidence), `threshold`, `false_alarm_rate`
    (measured on held-out rows), `unlike_anything_seen`, and `likeness`, which is `familiar`, `near`
    or `far`.
    """
    classifier = model(run)
    data = classifier.description["data"]
    compute = classifier.probabilities
    output_columns: Callable[..., dict] = partial(mean_columns, classes=classifier.classes)
    if classifier.columns:
        compute = classifier.predictions
        output_columns = partial(classifier.columns, description=data)
    evidence_columns = familiar(kind, familiarity, false_alarms) if familiarity else lambda _: {}
    length_columns = by_length or (lambda columns: {})
    rows, tables = [], []
    for query, outputs in compute_together(compute, kind.load("arrays").queries(path, data)):
        rows.append(
            {
                **query.columns,
                **output_columns(outputs),
                **evidence_columns(query.evidence),
                **length_columns(query.columns),
            }
        )
        if len(rows) == _ROWS:
            tables.append(pd.DataFrame(rows))
            rows = []
    table = pd.concat([*tables, pd.DataFrame(rows)], ignore_index=True)
    with atomic(output) as temporary:
        # The name of a file need not be UTF-8.
        table.to_csv(
            temporary, sep="\t", index=False, float_format="%.6g", errors="backslashreplace"
        )
    return table


def compute_together(
    compute: Callable[..., np.ndarray], queries: Iterable[Query]
) -> Iterator[tuple[Query, np.ndarray]]:
    """Yield every item with what `compute` returns for its pieces, (pieces, …).

    A call takes milliseconds even for one piece, so one call gets the pieces of many items.
    """
    together, pieces = [], 0
    # The None after the last item makes the last call.
    for query in chain(queries, [None]):
        if query is not None:
            together.append(query)
            pieces += len(query.inputs[0])
        if together and (query is None or pieces >= PIECES):
            inputs = map(np.concatenate, zip(*(item.inputs for item in together), strict=True))
            ends = np.cumsum([len(item.inputs[0]) for item in together])
            yield from zip(together, np.split(compute(*inputs), ends[:-1]), strict=True)
            together, pieces = [], 0


def mean_columns(outputs: np.ndarray, classes: list[str]) -> dict:
    """Return an item's columns on its class, or the predictions of a model without classes.

    Each column is a mean of `outputs` over the item's pieces. `outputs` are probabilities of shape
    (pieces, classes), or numbers of shape (pieces, …).
    """
    means = np.ravel(outputs.mean(axis=0, dtype=np.float64))
    if classes:
        names = [f"probability_{name}" for name in classes]
        return {"predicted": classes[int(means.argmax())]} | dict(zip(names, means, strict=True))
    names = [f"predicted_{place}" for place in range(1, len(means) + 1)]
    return dict(zip(names if len(means) > 1 else ["predicted"], means, strict=True))


def familiar(kind: Kind, path: Path, false_alarms: float) -> Callable[[Any], dict]:
    """Return a function from an item's evidence to its columns on familiarity."""
    known = kind.load("familiarity").Familiarity.load(path)
    threshold = known.threshold(false_alarms)

    def columns(evidence: Any) -> dict:
        fraction = known.fraction(evidence)
        return {
            "familiar_fraction": fraction,
            "threshold": threshold,
            "false_alarm_rate": known.false_alarm_rate(threshold),
            # An item without evidence is flagged too.
            "unlike_anything_seen": not fraction >= threshold,
            "likeness": known.likeness(fraction, threshold),
        }

    return columns


def model(run: Path) -> Classifier:
    """Return the model of a run. Refuse a run that did not end ok, or that kept no model."""
    status = read_json(run / "run.json")["status"]
    if status != "ok":
        reason, remedy = "the run has no trained model", "predict with a run that ended ok"
        raise InputError(run / "run.json", status, reason, remedy)
    return load(run)


class ErrorAtLength(NamedTuple):
    """How often a model is wrong about test pieces of one length, in letters.

    Attributes
    ----------
    pieces, wrong : number of pieces, and of those that got another class than their true one.
    familiar, wrong_familiar : the same, without pieces that are flagged as unlike the training
        rows.
    """

    letters: int
    pieces: int
    wrong: int
    familiar: int
    wrong_familiar: int

    @property
    def error(self) -> float:
        """The wrong fraction of the familiar pieces; NaN if there are none."""
        return self.wrong_familiar / self.familiar if self.familiar else math.nan


def measure(
    kind: Kind, run: Path, split: Path, familiarity: Path, false_alarms: float, output: Path
) -> list[ErrorAtLength]:
    """Classify test pieces of several lengths, shorter ones first, and write how many are wrong.

    The measurement ends at a length of at least a model's row without a wrong familiar piece. The
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
                probabilities.mean(axis=0).argmax() != label
                for (_, probabilities), label in zip(outputs, labels, strict=True)
            ]
            is_familiar = [
                not columns_on(query.evidence)["unlike_anything_seen"] for query in queries
            ]
            wrong_familiar = int(np.logical_and(wrong, is_familiar).sum())
            measured.append(
                ErrorAtLength(
                    letters, len(wrong), int(sum(wrong)), sum(is_familiar), wrong_familiar
                )
            )
            if letters >= row_letters and not wrong_familiar:
                break
    lengths = [at_length._asdict() for at_length in measured]
    write_json(output, {"false_alarms": false_alarms, "lengths": lengths})
    return measured


def read(path: Path) -> list[ErrorAtLength]:
    """Return the list that `measure` wrote."""
    return [ErrorAtLength(**at_length) for at_length in read_json(path)["lengths"]]


def least_letters(measured: list[ErrorAtLength], limit: float) -> float:
    """Return the length, in letters, from which on the error is at most `limit`, or infinity."""
    least = math.inf
    for at_length in reversed(measured):
        if not at_length.error <= limit:
            break
        least = at_length.letters
    return least


def judge(measured: list[ErrorAtLength], limit: float) -> Callable[[Mapping[str, Any]], dict]:
    """Return a function from the columns of an item, with `letters`, to columns on its length.

    `error_at_length` is the error at the longest measured length that the item reaches, or at the
    shortest one if it reaches none. `too_short` tells whether the item's error may exceed `limit`.
    """
    least = least_letters(measured, limit)

    def columns(item: Mapping[str, Any]) -> dict:
        reached = [at_length for at_length in measured if at_length.letters <= item["letters"]]
        error = (reached[-1] if reached else measured[0]).error
        return {"error_at_length": error, "too_short": item["letters"] < least}

    return columns if measured else lambda item: {}


def summary(path: Path, measured: list[ErrorAtLength], limit: float) -> str:
    """Return the counts of a table that `classify.predict` wrote; its last line names the file.

    Where the table has true classes, precision, recall and F1 of each class come before.

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
            f"At no measured length at most {limit:.1%} were wrong: every record is too short."
            if math.isinf(least)
            else f"Too short is a record of fewer than {least} letters: over {limit:.1%} are wrong."
        )
    # Column, the value that is counted, and its words.
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
