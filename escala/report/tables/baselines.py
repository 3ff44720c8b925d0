"""The scores that datasets declare to be reached without any model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from escala.core.files import read_json
from escala.report.tables.base import Evidence


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each score of each baseline of every split."""
    for path in evidence.dataset_files:
        split = read_json(Path(path))
        for baseline, scores in split.get("baselines", {}).items():
            names = {key: split[key] for key in ("dataset", "provenance", "leaky", "split_seed")}
            for score, value in scores.items():
                yield names | {"baseline": baseline, "score": score, "value": value}
