"""Build the table of the rows of each class, from the records to the sides of the split."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from escala.core.files import read_json
from escala.report.tables.base import Evidence

STAGES = ("records", "kept", "train", "balanced", "test")
_OF_RECORDS = (
    "duplicates_genome", "duplicates_encoded", "length_min", "length_median", "length_max",
    "ambiguous_fraction",
)  # fmt: skip


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each class of each split whose rows are counted by class."""
    reports = {
        Path(path).parent: pd.read_csv(path, dtype={"class": str}, keep_default_na=False).set_index(
            "class"
        )
        for path in evidence.class_files
    }
    for path in map(Path, evidence.dataset_files):
        dataset, report = read_json(path), reports.get(path.parent.parent)
        for label, counts in dataset.get("counts", {}).items():
            row = {} if report is None else report.loc[label]
            yield {
                "dataset": dataset["dataset"],
                "split_seed": dataset["split_seed"],
                "class": label,
                **{stage: counts.get(stage) for stage in STAGES},
                **{key: row.get(key) for key in _OF_RECORDS},
                "provenance": dataset["provenance"],
                "leaky": dataset["leaky"],
            }
