"""A table to the arrays that a model trains on and is tested with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from escala.core.errors import InputError
from escala.core.files import read_json
from escala.data.splits import Side, stratified, write_split
from escala.data.tabular.scaling import learn, row_blocks
from escala.data.writer import written

KIND = "tabular"
_IF_ONE = "if this row is the first line and names the columns, set header: yes"


def prepare(
    name: str, preparation: Mapping[str, Any], seed: int, inputs: Mapping[str, Path], output: Path
) -> dict:
    """Split a table, scale its features by the training rows, and write the arrays.

    Memory holds a block of rows, and a few numbers for each row.

    Parameters
    ----------
    name : of the dataset.
    preparation : as `escala.data.tabular.settings.preparation` gives it.
    seed : of the split.
    inputs : `source`, the folder that `escala.data.tabular.source.acquire` filled.
    output : folder that receives `{side}_features.npy`, float32 (rows, features);
        `{side}_labels.npy`, int64 (rows,); and `dataset.json`.

    Returns
    -------
    The description that `dataset.json` holds.

    Raises
    ------
    InputError : values are missing, features are constant, or a class has too few rows.
    """
    source = inputs["source"]
    described = read_json(source / "table.json")
    names, classes = described["features"], described["classes"]
    features = np.load(source / "features.npy", mmap_mode="r", allow_pickle=False)
    labels = np.load(source / "labels.npy", allow_pickle=False)
    usable = usable_rows(features, preparation["missing"], names)
    divided = stratified(labels[usable], preparation["split"], classes, seed, _IF_ONE)
    sides = {side: usable[rows] for side, rows in divided.items()}
    scaling = learn(
        features,
        sides["train"],
        names,
        preparation["constant_features"],
        preparation["standardise"],
    )
    with TemporaryDirectory(dir=output, prefix=".") as folder:
        arrays = {}
        for side, rows in sides.items():
            path = Path(folder) / f"{side}.npy"
            with written(path, (len(scaling.kept),), np.float32) as writer:
                for block in row_blocks(features, rows):
                    writer.append(scaling.apply(block))
            scaled = np.load(path, mmap_mode="r", allow_pickle=False)
            arrays[side] = Side({"features": scaled}, labels[rows])
        return write_split(
            output,
            arrays,
            kind=KIND,
            name=name,
            seed=seed,
            provenance=preparation["provenance"],
            classes=classes,
            features=names,
            missing=preparation["missing"],
            scaling=scaling.description(),
            split=preparation["split"],
        )


def usable_rows(
    features: np.ndarray, missing: Literal["refuse", "drop", "mean"], names: Sequence[str]
) -> np.ndarray:
    """Return the numbers of the rows to use, int64.

    Parameters
    ----------
    features : float64 (rows, features), NaN where a value is missing.
    names : of the features.

    Raises
    ------
    InputError : a value is missing and `missing` is `refuse`, or no row is left.
    """
    rows = np.arange(len(features))
    if missing == "mean":
        return rows
    incomplete = np.concatenate(
        [np.isnan(block).any(axis=1) for block in row_blocks(features, rows)]
    )
    if missing == "refuse" and incomplete.any():
        row = int(incomplete.argmax())
        column = int(np.isnan(features[row]).argmax())
        raise InputError(
            "missing",
            f"row {row + 1}, column {column + 1}, {names[column]}",
            "a value is missing",
            "set missing: drop to leave such rows out, or missing: mean to fill them",
        )
    if incomplete.all():
        raise InputError(
            "missing", "drop", "leaves no row: each has a missing value", "set missing: mean"
        )
    return rows[~incomplete]
