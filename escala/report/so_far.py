"""The answer of the runs that are there, while others are still measured: provisional."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd

from escala.analysis.best_use import BestUse
from escala.experiment.runs import Reference
from escala.report.findings.answers import TIMES
from escala.report.findings.best_use import answers
from escala.report.tables import tables

#: The tables from which the page chooses its answer.
_READ = ("runs", "configurations", "noise", "speedup", "best_use")


def answer(
    run_files: Sequence[Path], references: Sequence[Reference], pilot_file: Path | None = None
) -> list[str]:
    """Return what the page would answer for each task, with its interval.

    A ratio of fewer than two paired runs has none, and is left out.

    Raises
    ------
    InputError : a file is incomplete, or of another format.
    """
    found = tables(run_files, references=references, pilot_file=pilot_file, only=_READ)
    return list(_texts(answers(found)))


def _texts(found: Sequence[BestUse]) -> Iterator[str]:
    for each in found:
        rival = each.closest
        if pd.isna(rival.ratio.low) or pd.isna(rival.ratio.high):
            continue
        # The range of few ratios covers the true one less often than an interval does.
        kind = "95 % interval"
        if rival.ratio.matches < rival.row["needed"]:
            kind = f"range of {rival.ratio.matches} paired runs, widened"
        if rival.row["stays_disturbed"]:
            kind = "no verdict, because other work disturbed too many runs"
        task = f"{each.dataset} {each.workload}: " if len(found) > 1 else ""
        yield (
            f"{task}{each.label} takes {rival.ratio.low:.2f}–{rival.ratio.high:.2f} of the "
            f"{TIMES[rival.ratio_of]} of {rival.label} ({kind})"
        )
