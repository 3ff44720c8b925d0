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
    lines = np.load(source / "lines.npy") if (source / "lines.npy").exists() else None
    usable = usable_rows(
        features, labels, preparation["missing"], names, lines, f"datasets.{name}.missing"
    )
    if len(usable) < len(labels):
        left_out, without_class = len(labels) - len(usable), int((labels < 0).sum())
        print(
            f"{name}: {left_out} of {len(labels)} rows with a missing value are left out"
            + (f", {without_class} of them without a class" if without_class else "")
        )
    lost = np.flatnonzero(np.bincount(labels[usable], minlength=len(classes)) == 0)
    if len(lost):
        raise InputError(
            f"datasets.{name}.missing",
            preparation["missing"],
            f"leaves no row of the class {classes[lost[0]]}: each has a missing value",
            "complete some of them, set missing: mean, or remove the class from the file",
        )
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
    features: np.ndarray,
    labels: np.ndarray,
    missing: Literal["refuse", "drop", "mean"],
    names: Sequence[str],
    lines: np.ndarray | None = None,
    key: str = "missing",
) -> np.ndarray:
    """Return the numbers of the rows to use, int64.

    Parameters
    ----------
    features : float64 (rows, features), NaN where a value is missing.
    labels : int64 (rows,), below 0 where the class is missing.
    names : of the features.
    lines : of the file at which the rows begin, for messages.
    key : of the setting `missing`, for messages.

    Raises
    ------
    InputError : a value is missing and `missing` is `refuse`, a class is missing and `missing` is
        not `drop`, or no row is left.
    """
    rows = np.arange(len(features))
    unlabelled = incomplete = labels < 0
    if missing != "mean":
        blocks = [np.isnan(block).any(axis=1) for block in row_blocks(features, rows)]
        incomplete = unlabelled | np.concatenate(blocks)
    if missing != "drop" and incomplete.any():
        row = int(incomplete.argmax())
        at = f"row {row + 1}" if lines is None else f"line {lines[row]}"
        if unlabelled[row]:
            place, what = f"column {len(names) + 1}", "the class is missing"
            remedy = (
                "write it, in another word if NA, none or the like names a class; or set missing: "
                "drop to leave such rows out"
            )
        else:
            column = int(np.isnan(features[row]).argmax())
            place, what = f"column {column + 1}, {names[column]}", "a value is missing"
            remedy = "set missing: drop to leave such rows out, or missing: mean to fill them"
            remedy += f"; {_IF_ONE}" if at == "line 1" else ""
        raise InputError(key, f"{at}, {place}", what, remedy)
    if incomplete.all():
        raise InputError(
            key, "drop", "leaves no row: each has a missing value", "set missing: mean"
        )
    return rows[~incomplete]
