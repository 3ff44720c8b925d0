"""A user's CSV file, scaled as the table that a model was trained on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from escala.core.errors import InputError
from escala.data.queries import Query
from escala.data.tabular import table
from escala.data.tabular.scaling import Scaling


def queries(path: Path, description: Mapping[str, Any]) -> Iterator[Query]:
    """Yield the rows of a CSV file.

    The columns of a row are its number `row`, from 1, and `class` where the file has that column:
    then the predictions can be scored.

    Parameters
    ----------
    path : plain or gzipped, with the features of the training table in their order; a header is
        recognised by its names. Behind them may stand the class.

    Raises
    ------
    InputError : the file is no table of these features, a value is missing where the training table
        had none, or a class is not among those trained on.
    """
    names, classes = description["features"], description["classes"]
    scaling = Scaling.of_description(description["scaling"])
    columns = table.columns_like(path, names)
    number = 0
    for features, labels in tqdm(table.blocks(path, columns), desc=path.name, disable=None):
        for row, label in zip(features, labels, strict=True):
            number += 1
            missing = np.flatnonzero(np.isnan(row))
            if missing.size and description["missing"] != "mean":
                raise InputError(
                    path,
                    f"row {number}, {names[missing[0]]}",
                    "a value is missing",
                    "complete it, or leave the row out",
                )
            if columns.labelled and label not in classes:
                raise InputError(
                    path,
                    f"{label}, row {number}",
                    "is no class that the model knows",
                    f"use {', '.join(classes)}, or leave the column out",
                )
            known = {"class": label} if columns.labelled else {}
            yield Query({"row": number, **known}, (scaling.apply(row[None]),))
