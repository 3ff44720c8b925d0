"""A trained model on disk, the rows of one prediction, and required functions of a workload."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from escala.core.errors import InputError
from escala.core.files import sha256_file, write_json

FORMAT = 3
#: Files of a model: its description and its trained arrays. No file can hold code.
DESCRIPTION, WEIGHTS = FILES = ("model.json", "model.npz")
#: The most rows that a network predicts at once, and the most bytes of the outputs for these rows.
PREDICTION_ROWS, PREDICTION_BYTES = 256, 2**28
#: Names of the sums over rows that every evaluation computes.
SUMMED = ("loss", "correct")


def write_description(
    folder: Path,
    workload: str,
    knobs: Mapping[str, Any],
    settings: dict,
    data: dict,
    weights_sha256: str,
    engine: str | None = None,
) -> None:
    """Write `model.json` alongside the weights; the model can be built again from both.

    Parameters
    ----------
    folder : the folder of `model.npz`.
    knobs : the knobs of the variant that the workload may read.
    data : the `dataset.json` of the training split.
    weights_sha256 : the digest of the weights in `run.json`.
    engine : the engine that trained the model; None for a fit.
    """
    content = {
        "format": FORMAT,
        "workload": workload,
        "engine": engine,
        "knobs": dict(knobs),
        "settings": settings,
        "sha256": sha256_file(folder / WEIGHTS),
        "weights_sha256": weights_sha256,
        "data": data,
    }
    write_json(folder / DESCRIPTION, content)


def row_blocks(rows: slice, size: int) -> Iterator[slice]:
    """Yield consecutive parts of rows: parts of `size` rows, then the rest."""
    for start in range(rows.start, rows.stop, size):
        yield slice(start, min(start + size, rows.stop))


def rows_at_once(shape: Sequence[int | None]) -> int:
    """Return how many rows a network predicts at once, so that its outputs fit into memory.

    `shape` is the shape of the network's output for one row. An unknown size counts as 1.
    """
    numbers = math.prod(size or 1 for size in shape)
    return max(1, min(PREDICTION_ROWS, PREDICTION_BYTES // (4 * numbers)))


def as_model_input(inputs: Sequence[Any]) -> Any:
    """Return inputs as the argument of a Keras model: a single tensor, or a list."""
    return inputs[0] if len(inputs) == 1 else list(inputs)


def require_functions(
    module: ModuleType, description: Mapping, scores: ModuleType | str | None
) -> None:
    """Refuse a workload trained by steps if it lacks functions that its dataset needs.

    The defaults of `predict`, `correct` and `scores` are for targets of one class for each row.

    Parameters
    ----------
    module : the workload's module `model`.
    description : the `dataset.json` of its dataset.
    scores : its module `scores`, or the name of this module; None without such a module.
    """
    shape, classes = tuple(description["targets"]["shape"]), description.get("classes")
    if classes and not shape:
        return
    needed = ["correct"] if classes or hasattr(module, "generate") else ["predict", "correct"]
    missing = [name for name in needed if not hasattr(module, name)]
    missing += [] if scores else ["scores.py"]
    if not missing:
        return
    if classes:
        targets = f"a row of the targets has several classes, shape {shape}"
        remedy = (
            "offer what is missing: correct gives the fraction of the row's classes that are "
            "right, shape (rows,), and scores.py has the function score(targets, predictions, "
            "description)"
        )
    else:
        targets = f"outputs are {shape} and there are no classes"
        remedy = (
            "offer what is missing, as the docstring of escala.workloads describes; generate may "
            "replace predict"
        )
    reason = f"{targets}, and the workload has no {', '.join(missing)}"
    raise InputError(module.__file__, None, reason, remedy)


def require_classes(module: ModuleType, description: Mapping) -> None:
    """Refuse a dataset without exactly one class for each row; a fit needs one class."""
    shape, classes = tuple(description["targets"]["shape"]), description.get("classes")
    if classes and not shape:
        return
    targets = f"several classes in a row, shape {shape}" if classes else "no classes"
    reason = f"the dataset has {targets}, and a fit needs one class for each row"
    raise InputError(module.__file__, None, reason, "use a workload that is trained by steps")
