"""Require of a workload what its dataset needs, and name its scores, for any engine."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from escala.core.errors import InputError

#: Sums over rows that every evaluation has.
SUMMED = ("loss", "correct")


def require(work: ModuleType, description: Mapping, scores: ModuleType | str | None) -> None:
    """Refuse a workload trained by steps without functions that its dataset needs.

    The defaults of `predict`, `correct` and `scores` serve targets that are one class for each row.
    `work` is the module `model` of the workload, `description` that of the dataset, and `scores`
    the module of this name, or its name; None if the workload has none.
    """
    shape, classes = tuple(description["targets"]["shape"]), description.get("classes")
    if classes and not shape:
        return
    needed = ["correct"] if classes or hasattr(work, "generate") else ["predict", "correct"]
    missing = [name for name in needed if not hasattr(work, name)]
    missing += [] if scores else ["scores.py"]
    if not missing:
        return
    if classes:
        found = f"a row of the targets has several classes, shape {shape}"
        remedy = "offer what is missing: correct gives the fraction of the row's classes that "
        remedy += "are right, shape (rows,), and scores.py has the function score(targets, "
        remedy += "predictions, description)"
    else:
        found = f"outputs are {shape} and there are no classes"
        remedy = "offer what is missing, as the docstring of escala.workloads describes; generate "
        remedy += "may replace predict"
    reason = f"{found}, and the workload has no {', '.join(missing)}"
    raise InputError(work.__file__, None, reason, remedy)


def named_sums(loss: Any, correct: Any, further: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is summed over rows by name: `SUMMED`, and the workload's `row_scores`.

    Raises
    ------
    ValueError : `row_scores` gives a score one of the names in `SUMMED`.
    """
    found = dict(zip(SUMMED, (loss, correct), strict=True))
    if taken := further.keys() & found.keys():
        raise ValueError(f"`row_scores` gives the score {min(taken)}, which is a reserved name")
    return found | further


def require_classes(work: ModuleType, description: Mapping) -> None:
    """Refuse a dataset whose rows do not have one class each, for a workload trained by a fit."""
    shape, classes = tuple(description["targets"]["shape"]), description.get("classes")
    if classes and not shape:
        return
    targets = f"several classes in a row, shape {shape}" if classes else "no classes"
    reason = f"the dataset has {targets}, and a fit needs one class for each row"
    raise InputError(work.__file__, None, reason, "use a workload that is trained by steps")
