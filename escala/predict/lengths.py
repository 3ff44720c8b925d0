"""How often a model is wrong about test pieces of each length, and which records are too short."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from escala.core.files import read_json, write_json
from escala.data import Kind
from escala.predict.classify import familiar, model, predicted


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
    classifier, found = model(run), []
    rows = max(classifier.inputs[0].shape)
    likeness = familiar(kind, familiarity, false_alarms)
    if classifier.classes and not classifier.columns:
        description = classifier.description["data"]
        for letters, drawn in kind.load("fragments").fragments(split, description):
            queries, labels = zip(*drawn, strict=True)
            outputs = predicted(classifier.probabilities, queries)
            wrong = [
                each.mean(axis=0).argmax() != label
                for (_, each), label in zip(outputs, labels, strict=True)
            ]
            known = [not likeness(each.evidence)["unlike_anything_seen"] for each in queries]
            wrong_known = sum(k and w for k, w in zip(known, wrong, strict=True))
            counts = len(wrong), int(sum(wrong)), sum(known), int(wrong_known)
            found.append(Measured(letters, *counts))
            if letters >= rows and not wrong_known and known:
                break
    lengths = [entry._asdict() for entry in found]
    write_json(output, {"false_alarms": false_alarms, "lengths": lengths})
    return found


def read(path: Path) -> list[Measured]:
    """Return what `measure` wrote."""
    return [Measured(**entry) for entry in read_json(path)["lengths"]]


def enough(measured: list[Measured], limit: float) -> float:
    """Return from how many letters on the error is at most `limit`; infinite if it never is."""
    found = math.inf
    for entry in reversed(measured):
        if not entry.error <= limit:
            break
        found = entry.letters
    return found


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
