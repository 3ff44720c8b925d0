"""Name the scores that are reached without any model."""

from __future__ import annotations

from collections.abc import Iterator

from escala.report.findings.words import Finding, Tables, quoted

POSITION = 61
SECTION = "scores"


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Describe the median over splits of each score of each baseline."""
    of_baselines = tables["baselines"].groupby(["dataset", "baseline", "score"], sort=False)
    for (dataset, baseline, score), values in of_baselines["value"]:
        text = f"On {quoted(dataset)}, {quoted(score)} of the baseline {quoted(baseline)} is "
        yield Finding(f"{text}{values.median():.4g}.", "baselines")
