"""Show which run is measured, and the answer from the repeats measured so far."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from escala.analysis.looks import LOOK_LEVEL, futility, judge_session
from escala.analysis.statistics import LEVEL, MATCHES_FOR_INTERVAL, Interval
from escala.analysis.verdicts import FASTER, NOT_DISTINGUISHABLE, SLOWER
from escala.core.console import say, show
from escala.core.readable import duration, in_percent, with_noun
from escala.experiment import Run
from escala.experiment.runs import DUPLICATE, MAIN, Configuration, Reference, is_compared
from escala.measure.plan import Plan, PlannedRun, words_of

if TYPE_CHECKING:
    from escala.analysis.best_use import BestUse
    from escala.report.findings.context import Report

#: The tables from which the page chooses its answer.
_READ = ("runs", "configurations", "noise", "speedup", "best_use")


class Progress:
    """Shows which run is measured, how long the others take, and the answer so far.

    Parameters
    ----------
    clock : returns seconds.
    level : of the intervals.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, level: float = LEVEL):
        self._clock, self._level = clock, level
        # The complete repeats at the last call of `tell`.
        self._known: set[int] | None = None
        # The number of all runs, those that are left, and an answer that is new.
        self._all, self._most, self._left, self._answer = 0, "", list[Run](), ""
        # When the first run began, and how many have begun.
        self._start, self._begun = math.nan, 0
        # After so many seconds no repeat begins.
        self._seconds = math.inf

    def begin(self, run: Run) -> None:
        """Show that a run begins, how long the rest takes at the present pace, and a new answer."""
        now = self._clock()
        self._start = self._start if self._begun else now
        passed = now - self._start
        seconds = self._begun and passed / self._begun * len(self._left)
        seconds = max(0.0, min(seconds, self._seconds - passed))
        rest = f", {self._most}{duration(seconds)} left" if seconds else ""
        if run in self._left:  # A run that is measured again is not.
            self._left.remove(run)
            self._begun += 1
        number = f"{self._all - len(self._left)} of {self._most}{self._all}"
        show(f"{number}{rest}: {words_of(run)}{self._answer}")
        self._answer = ""

    def tell(self, plan: Plan, waiting: Sequence[PlannedRun]) -> None:
        """Note what is left, and the answer if a repeat was completed since the last call.

        The first call notes no answer: the repeats that are then complete were measured earlier.

        Parameters
        ----------
        plan : the runs to measure. It is `sequential` as long as the session may stop earlier.
        waiting : the runs that are left.
        """
        self._all, self._left = len(plan.runs), [planned.run for planned in waiting]
        self._most = "at most " if plan.sequential else ""
        self._seconds = 60 * ((plan.sequential or {}).get("minutes") or math.inf)
        runs = _runs_to_compare(planned.run for planned in plan.runs)
        complete = {run.repeat for run in runs} - {
            run.repeat for run in _runs_to_compare(self._left)
        }
        known, self._known = self._known, complete
        if known is not None and complete - known:
            self._answer = self._answer_of(plan, [run for run in runs if run.repeat in complete])

    def _answer_of(self, plan: Plan, complete: list[Run]) -> str:
        """Return what the page would say of complete repeats."""
        try:
            lines = answer([Path(run.file) for run in complete], plan.references, self._level)
        except Exception as error:  # a line on progress must not end a measurement
            say(f"{plan.experiment}: no answer so far: {error}")
            return ""
        repeats = with_noun(len({run.repeat for run in complete}), "repeat")
        return f". After {repeats}: {'; '.join(lines)}" if lines else ""


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
