"""Tell what to do next: what to train with, and what would answer what is still open."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.statistics import VALUES_FOR_INTERVAL
from escala.analysis.verdicts import FASTER, NOT_DISTINGUISHABLE, SLOWER
from escala.report.findings.steps import without_clocks
from escala.report.findings.verdicts import (
    UNAVAILABLE,
    answering,
    could_have_seen,
    headline,
    own_names,
)
from escala.report.findings.words import Finding, Tables, quoted, with_labels
from escala.report.tables.views import trained_by_steps

POSITION = 55
SECTION = "next"

_CLOCKS, _PREDICTIONS = "docs/how-to/attribution.md", "docs/how-to/predict-times.md"


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Advise on each dataset and workload, then name what was not measured or predicted."""
    of_steps = trained_by_steps(tables)
    against_main = with_labels(of_steps["speedup"], of_steps)
    against_main = against_main[against_main["reference"] == 1]
    answers = list(answering(tables))
    for row in answers:
        of_data = (against_main["dataset"] == row.dataset) & (
            against_main["workload"] == row.workload
        )
        texts = _use(row, list(against_main[of_data].itertuples())), _decide(row)
        yield from (Finding(text, "speedup", "speedup") for text in texts if text)
    for row in without_clocks(tables):
        yield Finding(
            f"To see where the time of a step of {quoted(row.label)} goes, set "
            f"`clocks: {{enabled: true}}`, as in `{_CLOCKS}`.",
            "attribution",
        )
    if answers and tables["predictions"].empty:
        yield Finding(
            "To predict layouts and networks that were not run, request the target `predictions`, "
            f"as in `{_PREDICTIONS}`.",
            "predictions",
        )


def _use(row, rows: list) -> str:
    """Name what to train with, by the verdicts on all configurations of a dataset and workload.

    Parameters
    ----------
    row : the row that answers.
    rows : those of `speedup` against the main reference, with labels.
    """
    reference = quoted(row.reference_label)
    faster = [each for each in rows if headline(each).verdict == FASTER]
    if faster:
        best = min(faster, key=lambda each: headline(each).ratio.value)
        text = f"To save time, train with {quoted(best.label)}"
        if own_names(best) != own_names(row):
            text += f", which takes {headline(best).ratio.value:.2f} of the time of {reference}"
        dearer = best.efficiency_high < 1 and not headline(best).to_target
        return text + f"; to save core-hours, train with {reference}." if dearer else f"{text}."
    verdict = headline(row).verdict
    if verdict == SLOWER:
        return f"Train with {reference}: no other configuration was found to take less time."
    if verdict == NOT_DISTINGUISHABLE and row.cores > row.reference_cores:
        return f"Train with {reference}: more cores were not found to save time."
    return ""


def _decide(row) -> str:
    """Tell what would give a verdict on the configuration that answers, if it has none."""
    found, label = headline(row), quoted(row.label)
    if found.verdict == UNAVAILABLE:
        return (
            f"To compare {label} with {quoted(row.reference_label)}, remove what prevented it, and "
            "repeat the Snakemake command."
        )
    if found.verdict == NOT_DISTINGUISHABLE:
        return (
            f"To see savings half as large, {label} needs about four times its {found.ratio.pairs} "
            "pairs: raise `repeats`."
        ) * bool(could_have_seen(found))
    if found.verdict in (FASTER, SLOWER):
        return ""
    if pd.isna(found.ratio.value) and row.global_batch != row.reference_global_batch:
        return (
            f"To judge {label}, set `target_accuracy`, or give {quoted(row.reference_label)} the "
            "same global batch."
        )
    if found.ratio.pairs < VALUES_FOR_INTERVAL:
        return (
            f"For a verdict on {label}, set `repeats` to {VALUES_FOR_INTERVAL} or more, and repeat "
            "the Snakemake command."
        )
    return ""
