"""The answer of the runs that are there, while others are still measured: provisional."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from escala.analysis.statistics import VALUES_FOR_INTERVAL
from escala.experiment.references import Reference
from escala.report.findings.compared import Compared
from escala.report.findings.verdicts import answering
from escala.report.tables import tables

#: The tables from which the page chooses its answer.
_READ = ("runs", "configurations", "noise", "speedup")


def answer(
    run_files: Sequence[Path], references: Sequence[Reference], pilot_file: Path | None = None
) -> list[str]:
    """Return what the page would answer for each dataset and workload, with its interval.

    A ratio of fewer than two matches has none, and is left out.

    Raises
    ------
    InputError : a file is incomplete, or of another format.
    """
    found = tables(run_files, references=references, pilot_file=pilot_file, only=_READ)
    return list(_texts(answering(found))) if len(found["speedup"]) else []


def _texts(rows: Sequence[Compared]) -> Iterator[str]:
    for row in rows:
        _, low, high, matches, best_of = row.in_call.ratio
        if pd.isna(low) or pd.isna(high):
            continue
        # The range of few ratios covers the true one less often than an interval does.
        kind = "95 % interval" if matches >= VALUES_FOR_INTERVAL else f"range of {matches} matches"
        best = f", best of {best_of}" if best_of > 1 else ""
        task = f"{row.dataset} {row.workload}: " if len(rows) > 1 else ""
        yield (
            f"{task}{row.label} takes {low:.2f}–{high:.2f} of the time of {row.reference_label} "
            f"({kind}{best})"
        )
