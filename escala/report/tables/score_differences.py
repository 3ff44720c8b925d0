"""Build the table of differences of precision and recall from the references."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from escala.analysis import differences
from escala.analysis.statistics import rate_differences
from escala.experiment.references import Configuration, Reference, compared_with
from escala.record.comparable import CONFIGURATION, Measurement
from escala.report.tables.base import (
    Evidence,
    by_configuration,
    kind_of,
    on_same_rows,
    reference_columns,
)


def rows(evidence: Evidence) -> Iterator[dict]:
    """Compare each configuration's predictions with a reference's in the same repeats."""
    groups = by_configuration(evidence.scored)
    folders = differences.split_folders(evidence.dataset_files)
    for names, number, reference, pairs in _pairs(groups, evidence.references):
        tested = differences.paired_rows(pairs, folders)
        classes = pairs[0][1]["evaluation"]["classes"]
        for label, differs in enumerate(rate_differences(*tested, len(classes))):
            own = tested.labels == label
            yield {
                **dict(zip(CONFIGURATION, names, strict=True)),
                **reference_columns(number, reference),
                "class": classes[label],
                "runs": len(pairs),
                "splits": len({run["data"]["split_seed"] for _, run in pairs}),
                "rows": int(own.sum()),
                "genomes": len(np.unique(tested.genomes[own])),
                **differs.precision.columns("precision_difference"),
                "precision_kind": kind_of(differs.precision),
                **differs.recall.columns("recall_difference"),
                "recall_kind": kind_of(differs.recall),
                **{key: pairs[0][1]["data"][key] for key in ("provenance", "leaky")},
            }


def _pairs(
    groups: Mapping[tuple, Sequence[Measurement]], references: Sequence[Reference]
) -> Iterator[tuple]:
    """Yield a configuration, a reference, and pairs of their runs on the same rows."""
    for names, runs in groups.items():
        for number, reference in compared_with(Configuration(*names[2:]), references):
            pairs = on_same_rows(runs, groups.get((*names[:2], *reference), []))
            if pairs:
                yield names, number, reference, pairs
