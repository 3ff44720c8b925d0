"""Compute accuracy on test rows with and without a near-duplicate among the training rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from escala.core.files import read_json
from escala.data import LEAKAGE, kind_of


def rows(runs: Iterable[Mapping[str, Any]], dataset_files: Iterable[str | Path]) -> Iterator[dict]:
    """Yield the leakage report of every run whose dataset offers that audit.

    The columns are those of `schemas/tables/leakage.schema.yaml`.

    Parameters
    ----------
    runs : current measurements that ended ok, each with the `file` it was read from;
        `predictions.npy` (int, one per test row) is beside it.
    dataset_files : the `dataset.json` of every split. Beside it are `test_labels.npy`,
        `test_similarity.npy` (float32, the similarity of each test row's genome to the most similar
        training genome, NaN if unknown) and `leakage.json`, with the `similarity` from which two
        genomes are near-duplicates.
    """
    splits = {}
    for path in map(Path, dataset_files):
        description = read_json(path)
        splits[description["dataset"], description["split_seed"]] = description, path.parent
    for run in runs:
        description, folder = splits[run["dataset"], run["data"]["split_seed"]]
        if LEAKAGE not in kind_of(description).audits:
            continue
        labels = np.load(folder / "test_labels.npy", allow_pickle=False)
        similarity = np.load(folder / "test_similarity.npy", allow_pickle=False)
        predictions = np.load(Path(run["file"]).with_name("predictions.npy"), allow_pickle=False)
        # Rows that SMOTEN made on both sides of the split count as copies, and so do rows
        # of unknown similarity.
        limit = read_json(folder / "leakage.json")["similarity"]
        rest = similarity < np.float32(limit)
        right = predictions == labels
        yield {
            "split_by": description["split"]["by"],
            "not_separable": ";".join(description["not_separable"]) or None,
            "similarity": limit,
            "test_rows": len(labels),
            "similar_rows": int((~rest).sum()),
            "similar_share": float((~rest).mean()),
            "accuracy": float(right.mean()),
            "macro_f1": run["evaluation"]["macro"]["f1"],
            "rest_rows": int(rest.sum()),
            "rest_accuracy": float(right[rest].mean()) if rest.any() else None,
            "rest_kind": "measured" if rest.any() else "unavailable",
            **{key: run[key] for key in ("dataset", "workload", "strategy", "layout", "variant")},
            **{key: run[key] for key in ("network", "repeat", "session")},
            **{key: run["data"][key] for key in ("provenance", "leaky", "split_seed")},
        }
