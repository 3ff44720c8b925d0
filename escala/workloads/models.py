"""What a workload's module offers, and its trained model: on disk, and how many rows it takes."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from escala.core.errors import InputError
from escala.core.files import sha256_file, write_json

FORMAT = 3
#: Files of a model: its description and its trained arrays. Neither can hold code.
DESCRIPTION, WEIGHTS = FILES = ("model.json", "model.npz")
#: A network is called with so many rows at once, or with fewer if their outputs need more bytes.
PREDICTION_ROWS, PREDICTION_BYTES = 256, 2**28


def describe(
    folder: Path,
    workload: str,
    knobs: Mapping[str, Any],
    settings: dict,
    data: dict,
    weights_sha256: str,
    engine: str | None = None,
) -> None:
    """Write `model.json` alongside a model's weights: all that is needed to build the model again.

    `folder` holds `model.npz`. `knobs` are those of the variant that the workload may read, `data`
    is the `dataset.json` of the training split, and `weights_sha256` the digest of the weights in
    `run.json`. `engine` has trained a network.
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
    """Yield consecutive parts of rows, of `size` rows each and the rest."""
    for start in range(rows.start, rows.stop, size):
        yield slice(start, min(start + size, rows.stop))


def rows_at_once(form: Sequence[int | None]) -> int:
    """Return how many rows a network predicts at once, so that its outputs fit into memory.

    `form` is the shape of its output for one row. A size that is not known counts as 1.
    """
    numbers = math.prod(size or 1 for size in form)
    return max(1, min(PREDICTION_ROWS, PREDICTION_BYTES // (4 * numbers)))


def given(inputs: Sequence[Any]) -> Any:
    """Return inputs in the form that a Keras model is called with: a single one, or a list."""
    return inputs[0] if len(inputs) == 1 else list(inputs)


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


def losses_of_rows(
    work: ModuleType,
    settings: Mapping,
    row_losses: Callable | None = None,
    fits: Callable[[Any, Any], bool] = operator.eq,
) -> Callable:
    """Return a function of targets and outputs that returns the loss of every row, shape (rows,).

    A mean over the rows, or a loss for each place in a row, would be broadcast over the weights of
    the rows, so that training would minimise another quantity.

    Parameters
    ----------
    work : the module of the workload's model. If its `row_losses` returns another shape, a
        ValueError names its file and line.
    row_losses : that of `work`, as a framework takes it; by default as it is.
    fits : whether a shape is that of the rows.
    """
    row_losses = row_losses or work.row_losses

    def checked(targets: Any, outputs: Any) -> Any:
        losses = row_losses(targets, outputs, settings)
        if not fits(losses.shape, targets.shape[:1]):
            code = work.row_losses.__code__
            raise ValueError(
                f"row_losses gives the shape {tuple(losses.shape)} in place of (rows,), a loss for "
                f'each row: File "{code.co_filename}", line {code.co_firstlineno}'
            )
        return losses

    return checked


def predicting(
    work: ModuleType,
    model: Any,
    settings: Mapping,
    most_probable: Callable,
    function: Callable = getattr,
) -> Callable:
    """Return the function from the inputs and outputs of some rows to their predictions.

    Parameters
    ----------
    most_probable : of outputs the numbers of the most probable classes, int64: the default.
    function : returns a function of a module by its name, or a default, as a framework takes it.
    """
    if hasattr(work, "generate"):
        generate = function(work, "generate")
        return lambda inputs, outputs: generate(model, inputs, settings)
    predict = function(work, "predict", most_probable)
    return lambda inputs, outputs: predict(outputs)
