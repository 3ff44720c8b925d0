"""Print the answer from the repeats measured so far, after each repeat."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from escala.analysis.looks import LOOK_LEVEL, futility, judge_session
from escala.analysis.statistics import LEVEL, MATCHES_FOR_INTERVAL, Interval
from escala.analysis.verdicts import FASTER, NOT_DISTINGUISHABLE, SLOWER
from escala.core.console import say
from escala.core.readable import duration, in_percent, with_noun
from escala.experiment import Run
from escala.experiment.runs import DUPLICATE, MAIN, Configuration, Reference, is_compared
from escala.measure import estimate
from escala.measure.plan import Plan, PlannedRun

if TYPE_CHECKING:
    from escala.analysis.best_use import BestUse
    from escala.report.findings.context import Report

#: The tables from which the page chooses its answer.
_READ = ("runs", "configurations", "noise", "speedup", "best_use")


class Progress:
    """Prints the answer so far whenever the last run of a repeat has ended.

    Parameters
    ----------
    clock : returns seconds.
    level : of the intervals.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, level: float = LEVEL):
        self._clock, self._level = clock, level
        # The complete repeats at the last call of `tell`.
        self._known: set[int] | None = None
        # The time of the last call of `tell`, and the seconds of the runs that were left then.
        self._before: tuple[float, float] | None = None

    def tell(self, plan: Plan, waiting: Sequence[PlannedRun]) -> None:
        """Print the answer if a repeat was completed since the last call.

        The first call prints nothing: the repeats that are then complete were measured earlier.

        Parameters
        ----------
        plan : the runs to measure. It is `sequential` as long as the session may stop earlier.
        waiting : the runs that are left.
        """
        left = [planned.run for planned in waiting]
        runs = _runs_to_compare(planned.run for planned in plan.runs)
        complete = {run.repeat for run in runs} - {run.repeat for run in _runs_to_compare(left)}
        known, self._known = self._known, complete
        if known is None:
            self._before = self._clock(), _seconds(left)[0]
        elif complete - known:
            for text in self._answer(plan, [run for run in runs if run.repeat in complete], left):
                say(text)

    def _answer(self, plan: Plan, complete: list[Run], left: Collection[Run]) -> list[str]:
        """Return what the page would say of complete repeats, and how long the others take."""
        name, at_most = plan.experiment, "at most " if plan.sequential else ""
        try:
            files = [Path(run.file) for run in complete]
            lines = answer(files, plan.references, self._level)
        except Exception as error:  # a line on progress must not end a measurement
            lines = []
            say(f"{name}: no answer so far: {error}")
        number, of_all = (
            len({run.repeat for run in runs})
            for runs in (complete, _runs_to_compare(planned.run for planned in plan.runs))
        )
        heading = f"{name}, after {number} of {at_most}{of_all} repeats"
        if not lines:
            return [f"{heading}: {self._time_left(left)}"] if left else []
        lines[-1] += f"; {at_most}{self._time_left(left)}"
        return [f"{heading}, provisional: {text}" for text in lines]

    def _time_left(self, left: Collection[Run]) -> str:
        """Return in words how long the runs that are left take, at the pace since the last call."""
        seconds, unknown = _seconds(left)
        now, pace = self._clock(), 1.0
        if self._before:
            before, seconds_before = self._before
            # Work between the runs takes time, too.
            if seconds_before > seconds:
                pace = max((now - before) / (seconds_before - seconds), 1.0)
        self._before = now, seconds
        if not left:
            return "no run is left"
        if unknown == len(left):
            return f"{with_noun(unknown, 'more run')}, of unknown time"
        more = f", and {with_noun(unknown, 'more run')} of unknown time" if unknown else ""
        return f"about {duration(seconds * pace)} of runs left{more}"


def _seconds(left: Collection[Run]) -> tuple[float, int]:
    """Return the seconds of earlier measurements of runs, and the number of runs without one."""
    median = estimate.medians(left)
    known = [seconds for run in left if (seconds := median(run)) is not None]
    return sum(known), len(left) - len(known)


def _runs_to_compare(runs: Iterable[Run]) -> list[Run]:
    """Return the runs whose times are compared with those of their references."""
    return [run for run in runs if not (run.instrument or run.series) and is_compared(run)]


def answer(
    run_files: Sequence[Path], references: Sequence[Reference], level: float = LEVEL
) -> list[str]:
    """Return the page's answer to each task, with the interval of its ratio.

    A ratio of fewer than two paired runs has no interval, and its answer is left out.

    Raises
    ------
    InputError : a file is incomplete, or of another format.
    """
    return list(provisional(_report(run_files, references, level).answers, level))


def _report(
    run_files: Sequence[Path],
    references: Sequence[Reference],
    level: float,
    series_files: Sequence[Path] = (),
) -> Report:
    # Imported here: a session that prints no answer does not need pandas.
    from escala.report.findings.context import Report
    from escala.report.tables import tables

    about = {"references": references, "level": level, "series_files": series_files}
    return Report(tables(run_files, **about, only=_READ))


def find_comparisons(
    runs: Sequence[Run], references: Sequence[Reference], threshold: float | None = None
) -> list[dict]:
    """Return the comparisons that decide the answer of some runs, at the level of a look.

    Each best use is compared with the alternatives that use no more. Without a best use, every
    configuration is compared with its main reference.

    Parameters
    ----------
    threshold : None, or a slowdown such as 0.05. If it is given, every configuration is compared
        with its main reference, even if there is a best use. Ratio and verdict are then those of
        this session alone (`escala.analysis.looks.judge_session`).

    Returns
    -------
    For each comparison, its columns of the table `looks`.
    """
    import pandas as pd

    from escala.analysis.tables import records
    from escala.report.tables.best_use import LOOKED_AT

    timed = [run for run in runs if run.instrument is None]
    files, duplicates = (
        [Path(run.file) for run in timed if run.series == series] for series in (None, DUPLICATE)
    )
    report = _report(files, references, LOOK_LEVEL, duplicates)
    rows = [dict(rival.row) for answer in report.answers for rival in answer.rivals]
    if threshold is not None or not report.answers:
        speedup = report.tables["speedup"]
        decides = speedup["decides"] & (speedup["reference"] == MAIN) & speedup["verdict"].notna()
        names = {f"reference_{part}": f"alternative_{part}" for part in Configuration._fields}
        rows = records(speedup[decides].rename(columns=names))
    if threshold is not None:
        for row in rows:
            ratio = Interval(*(row[f"session_ratio{end}"] for end in ("", "_low", "_high")))
            kind = judge_session(row, threshold)
            is_open = kind == NOT_DISTINGUISHABLE and not threshold
            futile = futility(ratio, "as much", 0.0) if is_open else None
            row |= {**ratio.columns("ratio"), "verdict": kind, "futile": futile}
    return records(pd.DataFrame(rows, columns=LOOKED_AT).convert_dtypes())


def why_decided(compared: Sequence[dict], threshold: float | None = None) -> str | None:
    """Return why a session with these comparisons may stop; None if it goes on.

    Parameters
    ----------
    compared, threshold : the result of `find_comparisons`, and what it took.
    """
    if not compared:
        return "nothing can be compared"
    left = [row for row in compared if row["verdict"] not in (FASTER, SLOWER)]
    if not left and threshold is not None:
        return f"each ratio of this session lies above or below {1 + threshold:g}"
    if not left:
        return "every question was decided"
    if any(row["futile"] is None for row in left):
        return None
    return f"what is not decided shows {' and '.join(sorted({row['futile'] for row in left}))}"


def provisional(answers: Sequence[BestUse], level: float = LEVEL) -> Iterator[str]:
    """Yield a line on each answer whose ratio has an interval."""
    from escala.report.findings.answer import TIMES

    for best_use in answers:
        rival, ratio = best_use.closest, best_use.closest.ratio
        if math.isnan(ratio.low) or math.isnan(ratio.high):
            continue
        # The range of few ratios covers the true one less often than an interval does.
        ends = f"{in_percent(level)} interval"
        if ratio.matches < MATCHES_FOR_INTERVAL:
            ends = f"range of {ratio.matches} paired runs, widened"
        if rival.row["stays_disturbed"]:
            ends = "no verdict, because other work disturbed too many runs"
        task = f"{best_use.dataset} {best_use.workload}: " if len(answers) > 1 else ""
        yield (
            f"{task}{best_use.label} takes {ratio.low:.2f}–{ratio.high:.2f} of the "
            f"{TIMES[rival.ratio_of]} of {rival.label} ({ends})"
        )
