"""The tables of the data: rows of each class, scores without a model, and near-duplicates."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from escala.core.files import read_json
from escala.data import LEAKAGE, kind_of
from escala.report.tables import base
from escala.report.tables.base import Evidence, Tables

STAGES = ("records", "kept", "train", "balanced", "test")
_OF_RECORDS = (
    "duplicates_genome", "duplicates_encoded", "length_min", "length_median", "length_max",
    "ambiguous_fraction",
)  # fmt: skip


def classes(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each class of each split whose rows are counted by class."""
    reports = {
        Path(path).parent: pd.read_csv(path, dtype={"class": str}, keep_default_na=False).set_index(
            "class"
        )
        for path in evidence.class_files
    }
    for path in map(Path, evidence.dataset_files):
        split, report = read_json(path), reports.get(path.parent.parent)
        for label, counts in split.get("counts", {}).items():
            row = {} if report is None else report.loc[label]
            yield {
                **{key: split[key] for key in ("dataset", "split_seed", *base.ABOUT)},
                "class": label,
                **{stage: counts.get(stage) for stage in STAGES},
                **{key: row.get(key) for key in _OF_RECORDS},
            }


def baselines(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield each score that a dataset declares to be reached without any model."""
    for path in map(Path, evidence.dataset_files):
        split = read_json(path)
        about = {key: split[key] for key in ("dataset", "split_seed", *base.ABOUT)}
        for baseline, scores in split.get("baselines", {}).items():
            for score, value in scores.items():
                yield about | {"baseline": baseline, "score": score, "value": value}


def leakage(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield accuracy on test rows with and without a near-duplicate among the training rows.

    There is a row for each run whose scores count and whose dataset offers that audit. Alongside
    the dataset.json of its split are `test_labels.npy`, `test_similarity.npy` (float32, the
    similarity of each test row's genome to the most similar training genome, NaN if unknown) and
    `leakage.json`, with the `similarity` from which two genomes are near-duplicates.
    """
    splits = {}
    for path in map(Path, evidence.dataset_files):
        split = read_json(path)
        splits[split["dataset"], split["split_seed"]] = split, path.parent
    for run in evidence.classified:
        split, folder = splits[run["dataset"], run["data"]["split_seed"]]
        if LEAKAGE not in kind_of(split).audits:
            continue
        labels, similarity, predictions = (
            np.load(file, allow_pickle=False)
            for file in (
                folder / "test_labels.npy",
                folder / "test_similarity.npy",
                Path(run["file"]).with_name("predictions.npy"),
            )
        )
        # Rows that SMOTEN made on both sides of the split count as copies, and so do rows
        # of unknown similarity.
        limit = read_json(folder / "leakage.json")["similarity"]
        rest, right = similarity < np.float32(limit), predictions == labels
        yield {
            **base.names_of(run),
            "split_by": split["split"]["by"],
            "not_separable": ";".join(split["not_separable"]) or None,
            "similarity": limit,
            "test_rows": len(labels),
            "similar_rows": int((~rest).sum()),
            "similar_fraction": float((~rest).mean()),
            "accuracy": float(right.mean()),
            "macro_f1": run["evaluation"]["macro"]["f1"],
            "rest_rows": int(rest.sum()),
            "rest_accuracy": float(right[rest].mean()) if rest.any() else None,
            "rest_kind": "measured" if rest.any() else "unavailable",
            **base.data_of(run),
        }
