"""A user's CSV file, scaled as the table that a model was trained on."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from escala.core.errors import InputError
from escala.data.base import Query
from escala.data.tabular.arrays import Scaling
from escala.data.tabular.table import blocks, class_name, columns_like


def queries(path: Path, description: Mapping[str, Any]) -> Iterator[Query]:
    """Yield the rows of a CSV file with the features of the training table, in their order.

    A header is recognised by its names. Behind the features may stand the class. The columns of a
    row are its number `row`, from 1, and `class` where the file has that column: then the
    predictions can be scored. A value may be missing where the training table had missing ones.
    """
    names = description["features"]
    known = {class_name(name): name for name in description["classes"]}
    scaling = Scaling.from_description(description["scaling"])
    columns = columns_like(path, names)
    number = 0
    for block in tqdm(blocks(path, columns), desc=path.name, disable=None):
        for row, label, line in zip(*block, strict=True):
            number += 1
            missing = np.flatnonzero(np.isnan(row))
            if missing.size and description["missing"] != "mean":
                place = f"line {line}, column {missing[0] + 1}, {names[missing[0]]}"
                remedy = "complete it, or leave the row out"
                raise InputError(path, place, "a value is missing", remedy)
            if columns.labelled and label not in known:
                place = f"line {line}, column {len(names) + 1}"
                reason = f"{label or 'a missing class'} is not a class that the model knows"
                remedy = f"use {', '.join(known.values())}, or leave the column out"
                raise InputError(path, place, reason, remedy)
            given = {"class": known[label]} if columns.labelled else {}
            yield Query({"row": number, **given}, (scaling.apply(row[None]),))
