"""Write a table of predictions for a user's data, and the familiarity of each item."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from escala.core.errors import InputError
from escala.core.files import atomic, read_json
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
    familiarity : file that the kind's `learn` wrote for the split of that run; None if the kind has
        no `learn`.
    false_alarms : fraction of held-out rows that may be flagged as unfamiliar, from 0 to below 1.
    by_length : gives the columns on an item's length, see `escala.predict.lengths.judge`.

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
    of_outputs: Callable[..., dict] = partial(mean_columns, classes=classifier.classes)
    if classifier.columns:
        compute, of_outputs = classifier.predictions, partial(classifier.columns, description=data)
    of_evidence = familiar(kind, familiarity, false_alarms) if familiarity else lambda evidence: {}
    of_length = by_length or (lambda columns: {})
    rows, tables = [], []
    for query, outputs in compute_together(compute, kind.load("arrays").queries(path, data)):
        rows.append(
            {
                **query.columns,
                **of_outputs(outputs),
                **of_evidence(query.evidence),
                **of_length(query.columns),
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
