"""A source to one table: `features.npy`, `labels.npy`, and `table.json` with their names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from escala.core.files import write_json
from escala.data.tabular import table
from escala.data.writer import written


def acquire(acquisition: Mapping[str, Any], inputs: Sequence[Path], folder: Path) -> None:
    """Read a table into `folder`, some rows at a time.

    Parameters
    ----------
    acquisition : the settings of the source, without its path.
    inputs : the CSV file, if the source is one.
    folder : receives `features.npy`, float64 (rows, features), NaN where a value is missing;
        `labels.npy`, int64 (rows,); and `table.json` with the names of `features` and `classes`.

    Raises
    ------
    InputError : the file is no table of numbers with a class, or has fewer than two classes.
    """
    if acquisition["type"] == "csv":
        columns = table.columns(inputs[0], acquisition["header"])
        names, blocks, origin = columns.features, table.blocks(inputs[0], columns), inputs[0]
    else:
        features, labels, names = table.sample(acquisition["name"])
        blocks, origin = [(features, labels)], acquisition["name"]
    numbers: dict[str, int] = {}
    parts = []
    with written(folder / "features.npy", (len(names),), np.float64) as writer:
        for features, labels in blocks:
            writer.append(features)
            parts.append([numbers.setdefault(label, len(numbers)) for label in labels])
    classes = table.ordered(numbers, origin)
    # Numbers were given as classes came; they become those of their order.
    final = np.empty(len(classes), np.int64)
    final[[numbers[name] for name in classes]] = np.arange(len(classes))
    np.save(folder / "labels.npy", final[np.concatenate(parts)], allow_pickle=False)
    write_json(folder / "table.json", {"features": list(names), "classes": classes})
