"""Codes to the arrays a model trains on and is tested with."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from escala.files import atomic, sha256_file, write_json
from escala.prepare.balance import balance
from escala.prepare.split import stratified_split
from escala.prepare.windows import add_windows

FORMAT = 1


def write_arrays(name: str, preparation: dict, seed: int, source: Path, output: Path) -> dict:
    """Split and balance a dataset and write `train`, `test`, their labels and `dataset.json`.

    Parameters
    ----------
    name : of the dataset.
    preparation : its `provenance`, `classes`, `length`, `deduplicate`, `test_fraction` and
        `oversample`.
    seed : of the split.
    source : folder with `codes.npy` and `records.tsv`.
    output : folder to write.

    Returns
    -------
    The description that `dataset.json` holds.

    Raises
    ------
    InputError : a class is too small for the split or for SMOTEN.
    """
    codes = np.load(source / "codes.npy", mmap_mode="r", allow_pickle=False)
    # A class may be called NA, or 1.
    as_written = {"dtype": {"class": str, "genome": str}, "keep_default_na": False}
    records = pd.read_csv(source / "records.tsv", sep="\t", **as_written)
    report = pd.read_csv(source / "classes.csv", **as_written).set_index("class")
    labels, genomes = records["label"].to_numpy(np.int64), records["genome"].to_numpy(str)
    classes, oversample = preparation["classes"], preparation["oversample"]
    fraction, length = preparation["test_fraction"], preparation["length"]
    # What `codes` holds beyond the length is there for windows that begin later.
    starts = codes[:, :length]

    def enlarge(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if oversample["method"] == "none":
            return starts[rows], labels[rows]
        if oversample["method"] == "windows":
            return add_windows(
                codes[rows],
                labels[rows],
                classes,
                length=length,
                rows=oversample.get("rows"),
                seed=oversample["seed"],
            )
        return balance(
            starts[rows],
            labels[rows],
            genomes[rows],
            classes,
            features=oversample["features"],
            rows=oversample.get("rows"),
            neighbours=oversample["neighbours"],
            seed=oversample["seed"],
        )

    leaky = oversample["method"] != "none" and oversample["order"] == "before-split"
    if leaky:
        everything, all_labels = enlarge(np.arange(len(labels)))
        train_rows, test_rows = stratified_split(all_labels, classes, fraction, seed)
        train, train_labels = everything[train_rows], all_labels[train_rows]
        test, test_labels = everything[test_rows], all_labels[test_rows]
        before = train_labels
    else:
        train_rows, test_rows = stratified_split(labels, classes, fraction, seed)
        train, train_labels = enlarge(train_rows)
        test, test_labels = starts[test_rows], labels[test_rows]
        before = labels[train_rows]

    arrays = {
        "train.npy": train,
        "train_labels.npy": train_labels.astype(np.int64),
        "test.npy": np.ascontiguousarray(test),
        "test_labels.npy": test_labels.astype(np.int64),
    }
    for file, array in arrays.items():
        with atomic(output / file) as temporary:
            np.save(temporary, array, allow_pickle=False)
    description = {
        "format": FORMAT,
        "dataset": name,
        "provenance": preparation["provenance"],
        "classes": classes,
        "length": length,
        "leaky": leaky,
        "split_seed": seed,
        "test_fraction": fraction,
        "deduplicate": preparation["deduplicate"],
        "oversample": oversample,
        "counts": {
            c: {
                "records": int(report.loc[c, "records"]),
                "kept": int(report.loc[c, "kept"]),
                "train": int((before == label).sum()),
                "balanced": int((train_labels == label).sum()),
                "test": int((test_labels == label).sum()),
            }
            for label, c in enumerate(classes)
        },
        "sha256": {file: sha256_file(output / file) for file in arrays},
    }
    write_json(output / "dataset.json", description)
    return description
