"""Make the arrays of a split from a table, scaled by its training rows; read rows to predict."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from sklearn.preprocessing import StandardScaler
from tqdm import tqdm

from escala.core.errors import InputError
from escala.core.files import read_json
from escala.data.base import Query
from escala.data.splits import Blocks, Side, stratify, take_blocks, write_split
from escala.data.tabular import table

KIND = "tabular"
#: Rows in memory at a time.
BLOCK_ROWS = 65_536
_HEADER_REMEDY = "if this row is the first line and names the columns, set header: yes"


def prepare(
    name: str, preparation: Mapping[str, Any], seed: int, inputs: Mapping[str, Path], output: Path
) -> dict:
    """Split a table, scale its features by the training rows, and write the arrays.

    Memory holds a block of rows, and a few numbers for each row. `output` receives
    `{side}_features.npy`, float32 (rows, features), and `{side}_labels.npy`, int64 (rows,).
    """
    source = inputs["source"]
    described = read_json(source / "table.json")
    names, classes, label = described["features"], described["classes"], described["label"]
    features = np.load(source / "features.npy", mmap_mode="r", allow_pickle=False)
    labels = np.load(source / "labels.npy", allow_pickle=False)
    lines = np.load(source / "lines.npy") if (source / "lines.npy").exists() else None
    missing, key = preparation["missing"], f"datasets.{name}.missing"
    usable = usable_rows(features, labels, missing, names, label, lines, key)
    if len(usable) < len(labels):
        left_out, without_class = len(labels) - len(usable), int((labels < 0).sum())
        print(
            f"{name}: {left_out} of {len(labels)} rows with a missing value are left out"
            + (f", {without_class} of them without a class" if without_class else "")
        )
    lost = np.flatnonzero(np.bincount(labels[usable], minlength=len(classes)) == 0)
    if len(lost):
        reason = f"leaves no row of the class {classes[lost[0]]}: each has a missing value"
        remedy = "complete some of them, set missing: mean, or remove the class from the file"
        raise InputError(key, missing, reason, remedy)
    divided = stratify(labels[usable], preparation["split"], classes, seed, _HEADER_REMEDY)
    sides = {side: usable[rows] for side, rows in divided.items()}
    constant, standardise = preparation["constant_features"], preparation["standardise"]
    scaling = learn(features, sides["train"], names, constant, standardise)

    def scale(rows: np.ndarray) -> Iterator[np.ndarray]:
        return map(scaling.apply, take_blocks(features, rows, BLOCK_ROWS))

    width, dtype = len(scaling.kept), np.dtype(np.float32)
    return write_split(
        output,
        {
            side: Side({"features": Blocks((len(rows), width), dtype, scale(rows))}, labels[rows])
            for side, rows in sides.items()
        },
        kind=KIND,
        name=name,
        seed=seed,
        provenance=preparation["provenance"],
        classes=classes,
        features=names,
        label=label,
        missing=missing,
        scaling=scaling.description(),
        split=preparation["split"],
    )


def usable_rows(
    features: np.ndarray,
    labels: np.ndarray,
    missing: Literal["refuse", "drop", "mean"],
    names: Sequence[str],
    label: str,
    lines: np.ndarray | None,
    key: str,
) -> np.ndarray:
    """Return the numbers of the rows to use, int64.

    A missing value is NaN, and a missing class is a label below 0. A missing value is refused if
    `missing` is `refuse`. A missing class is refused unless `missing` is `drop`. For messages,
    `names` and `label` are the columns of the features and the class, `lines` are the lines of the
    file at which the rows begin, and `key` is the key of the setting `missing`.
    """
    rows = np.arange(len(features))
    unlabelled = incomplete = labels < 0
    if missing != "mean":
        blocks = [np.isnan(block).any(axis=1) for block in take_blocks(features, rows, BLOCK_ROWS)]
        incomplete = unlabelled | np.concatenate(blocks)
    if missing != "drop" and incomplete.any():
        row = int(incomplete.argmax())
        at = f"row {row + 1}" if lines is None else f"line {lines[row]}"
        if unlabelled[row]:
            place, what = label, "the class is missing"
            remedy = "write the class, as another word if its name is NA, none or the like; or set "
            remedy += "missing: drop to leave such rows out"
        else:
            column = int(np.isnan(features[row]).argmax())
            place, what = names[column], "a value is missing"
            remedy = "set missing: drop to leave such rows out, or missing: mean to fill them"
            remedy += f"; {_HEADER_REMEDY}" if at == "line 1" else ""
        raise InputError(key, f"{at}, {place}", what, remedy)
    if incomplete.all():
        reason = "leaves no row: each has a missing value"
        raise InputError(key, "drop", reason, "set missing: mean")
    return rows[~incomplete]


@dataclass(frozen=True)
class Scaling:
    """The scaling of each feature.

    A missing value becomes the feature's mean. With `standardise` the mean is then subtracted, and
    the difference is divided by `scale`. `mean` and `scale` are float64 (features,), over the
    training rows. `kept`, int64, has the numbers of the features that a model reads.
    """

    mean: np.ndarray
    scale: np.ndarray
    kept: np.ndarray
    standardise: bool

    @classmethod
    def from_description(cls, content: Mapping[str, Any]) -> Scaling:
        """Return the scaling from a result of `description`."""
        mean, scale = (np.array(content[key], np.float64) for key in ("mean", "scale"))
        return cls(mean, scale, np.array(content["kept"], np.int64), content["standardise"])

    def description(self) -> dict:
        """Return the scaling in types of JSON, without rounding."""
        arrays = {key: getattr(self, key).tolist() for key in ("mean", "scale", "kept")}
        return arrays | {"standardise": self.standardise}

    def apply(self, features: np.ndarray) -> np.ndarray:
        """Return the scaled features of some rows, float32 (rows, kept features)."""
        filled = np.where(np.isnan(features), self.mean, features)
        if self.standardise:
            filled = (filled - self.mean) / self.scale
        return filled[:, self.kept].astype(np.float32)


def learn(
    features: np.ndarray,
    rows: np.ndarray,
    names: list[str],
    constant: Literal["refuse", "drop", "keep"],
    standardise: bool,
) -> Scaling:
    """Return the scaling of a table by its training rows, which are read in blocks.

    `features` are float64 (all rows, features), NaN where a value is missing. `rows` are the
    numbers of the training rows. A feature without any value in the training rows is refused. A
    feature with a single value is treated according to `constant`.
    """
    scaler = StandardScaler()
    lowest, highest = np.full(len(names), np.inf), np.full(len(names), -np.inf)
    for block in take_blocks(features, rows, BLOCK_ROWS):
        scaler.partial_fit(block)
        lowest = np.fmin(lowest, np.fmin.reduce(block))
        highest = np.fmax(highest, np.fmax.reduce(block))
    if (lowest > highest).any():
        name = names[int((lowest > highest).argmax())]
        raise InputError("features", name, "has no value in the training rows", "remove the column")
    varies = lowest < highest
    if not varies.all() and constant == "refuse":
        name, reason = names[int((~varies).argmax())], "has the same value in all training rows"
        remedy = f"set drop: [{name}] in source, or constant_features: drop or keep"
        raise InputError("constant_features", name, reason, remedy)
    kept = np.flatnonzero(varies) if constant == "drop" else np.arange(len(names))
    if not len(kept):
        reason = "leaves no feature: all are constant"
        raise InputError("constant_features", "drop", reason, "give features that vary")
    return Scaling(scaler.mean_, np.where(varies, scaler.scale_, 1.0), kept, standardise)


def queries(path: Path, description: Mapping[str, Any]) -> Iterator[Query]:
    """Yield the rows of a CSV or TSV file with the features of the training table.

    `table.columns_like` says how the features and the class are recognised. The columns of a query
    are the number of the row, `row`, from 1, and `class` if the file has the class. Then the
    predictions can be scored. A value may be missing only if the training set had `missing: mean`.
    """
    names = description["features"]
    known = {table.class_name(name): name for name in description["classes"]}
    scaling = Scaling.from_description(description["scaling"])
    columns = table.columns_like(path, names, description.get("label"))
    number = 0
    for block in tqdm(table.blocks(path, columns), desc=path.name, disable=None):
        for row, label, line in zip(*block, strict=True):
            number += 1
            missing = np.flatnonzero(np.isnan(row))
            if missing.size and description["missing"] != "mean":
                place = f"line {line}, {names[missing[0]]}"
                remedy = "complete it, or leave the row out"
                raise InputError(path, place, "a value is missing", remedy)
            labelled = columns.class_place is not None
            if labelled and label not in known:
                place = f"line {line}, column {columns.class_place + 1}"
                reason = f"{label or 'a missing class'} is not a class that the model knows"
                remedy = f"use {', '.join(known.values())}, or leave the column out"
                raise InputError(path, place, reason, remedy)
            cells = {"row": number} | ({"class": known[label]} if labelled else {})
            yield Query(cells, (scaling.apply(row[None]),))
