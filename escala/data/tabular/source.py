"""Make one table from a source: `features.npy`, `labels.npy`, and `table.json` with the names."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from escala.core.errors import InputError
from escala.core.files import write_json
from escala.data.splits import open_array
from escala.data.tabular import table

#: The label of a row whose class is missing.
UNKNOWN = -1


def acquire(acquisition: Mapping[str, Any], inputs: Sequence[Path], folder: Path) -> None:
    """Read the CSV or TSV file in `inputs`, or a sample, into `folder`, some rows at a time.

    `folder` receives `features.npy`, float64 (rows, features), NaN where a value is missing;
    `labels.npy`, int64 (rows,), `UNKNOWN` where the class is missing; and `table.json` with the
    names of `features` and `classes`, and of the column of the class, `label`. A file adds
    `lines.npy`, int64 (rows,), the line of each row.
    """
    if acquisition["type"] == "csv":
        header, drop = acquisition["header"], acquisition.get("drop", ())
        columns = table.columns(inputs[0], header, acquisition.get("label"), drop)
        names, blocks, origin = columns.features, table.blocks(inputs[0], columns), inputs[0]
        label = columns.label
    else:
        features, labels, names = table.sample(acquisition["name"])
        blocks, origin = [table.Block(features, labels, np.empty(0))], acquisition["name"]
        label = "class"
    # The number of each class, in order of appearance.
    numbers: dict[str, int] = {"": UNKNOWN}
    parts, lines = [], []
    with open_array(folder / "features.npy", (len(names),), np.float64) as writer:
        for block in blocks:
            writer.append(block.features)
            parts.append([numbers.setdefault(label, len(numbers) - 1) for label in block.labels])
            lines.append(block.lines)
    features = np.load(folder / "features.npy", mmap_mode="r", allow_pickle=False)
    _refuse_row_numbers(features, names, origin)
    class_numbers = np.concatenate(parts)
    del numbers[""]
    classes = table.order_classes(numbers, origin)
    counts = Counter(class_numbers.tolist())
    table.require_classes({name: counts[number] for name, number in numbers.items()}, origin)
    # Classes were numbered in order of appearance. Their labels are their places in `classes`. The
    # last entry of the table belongs to `UNKNOWN`, -1.
    label_of_number = np.full(len(classes) + 1, UNKNOWN)
    label_of_number[[numbers[name] for name in classes]] = np.arange(len(classes))
    np.save(folder / "labels.npy", label_of_number[class_numbers], allow_pickle=False)
    if acquisition["type"] == "csv":
        np.save(folder / "lines.npy", np.concatenate(lines), allow_pickle=False)
    described = {"features": list(names), "classes": classes, "label": label}
    write_json(folder / "table.json", described)


def _refuse_row_numbers(features: np.ndarray, names: Sequence[str], origin: object) -> None:
    """Refuse a feature that numbers 10 or more rows, from 0 or 1.

    A row number gives the place of a row in the file, and says nothing about a new row. `features`
    is float64 (rows, features), and may be mapped from a file.
    """
    for name, column in zip(names, features.T, strict=True):
        if table.numbers_rows(column):
            reason = "numbers the rows, and is not a feature"
            remedy = (
                f"leave it out (drop: [{name}]); if it was measured, write the rows in another "
            )
            raise InputError(origin, name, reason, f"{remedy}order")
