"""The answer as it forms: what the repeats measured so far say, printed after each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path

from escala.core.console import say
from escala.core.readable import counted, duration
from escala.experiment import Run
from escala.experiment.runs import is_compared
from escala.measure import estimate
from escala.measure.plan import Plan, PlannedRun


class Forming:
    """Tells of each repeat of a session once, when its last run has ended.

    Parameters
    ----------
    clock : returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._known: set[int] | None = None
        self._before: tuple[float, float] | None = None

    def tell(self, plan: Plan, waiting: Sequence[PlannedRun]) -> None:
        """Print the answer if there is a complete repeat more than at the last call.

        At the first call the complete ones were measured before, and nothing is printed.

        Parameters
        ----------
        plan : what is asked for so far; with its pilot as long as that may add repeats.
        waiting : the runs that are left.
        """
        left = [each.run for each in waiting]
        every = _timed(each.run for each in plan.runs)
        complete = {run.repeat for run in every} - {run.repeat for run in _timed(left)}
        known, self._known = self._known, complete
        if known is None:
            self._before = self._clock(), _seconds(left)[0]
        elif complete - known:
            for text in self._answer(plan, [run for run in every if run.repeat in complete], left):
                say(text)

    def _answer(self, plan: Plan, complete: list[Run], left: Collection[Run]) -> list[str]:
        """Return what the page would say of complete repeats, and how long the others take."""
        # With its libraries, which a session without an answer does not need.
        from escala.report import so_far

        name, pilot = plan.experiment, Path(f"results/{plan.experiment}/pilot.json")
        is_decided = plan.pilot is None and pilot.exists()
        try:
            files = [Path(run.file) for run in complete]
            found = so_far.answer(files, plan.references, pilot if is_decided else None)
        except Exception as error:  # a line on progress must not end a measurement
            found = []
            say(f"{name}: no answer so far: {error}")
        least = "at least " if plan.pilot else ""
        repeats, every = (
            len({run.repeat for run in runs})
            for runs in (complete, _timed(each.run for each in plan.runs))
        )
        number = f"{name}, after {repeats} of {least}{every} repeats"
        if not found:
            return [f"{number}: {self._remaining(left)}"] if left else []
        last = found.pop()
        return [
            *(f"{number}, provisional: {text}" for text in found),
            f"{number}, provisional: {last}; {self._remaining(left)}",
        ]

    def _remaining(self, left: Collection[Run]) -> str:
        """Return the time that runs take, at the pace of those before them."""
        seconds, unknown = _seconds(left)
        now, pace = self._clock(), 1.0
        if self._before and self._before[1] > seconds:
            # What is between the runs takes time, too.
            pace = max((now - self._before[0]) / (self._before[1] - seconds), 1.0)
        self._before = now, seconds
        if not left:
            return "no run is left"
        if unknown == len(left):
            return f"{counted(unknown, 'more run')}, of unknown time"
        more = f", and {counted(unknown, 'more run')} of unknown time" if unknown else ""
        return f"about {duration(seconds * pace)} of runs left{more}"


def _seconds(left: Collection[Run]) -> tuple[float, int]:
    """Return the seconds of runs as they took before, and of how many they are not known."""
    median = estimate.medians(left)
    known = [seconds for run in left if (seconds := median(run)) is not None]
    return sum(known), len(left) - len(known)


def _timed(runs: Iterable[Run]) -> list[Run]:
    """Return the runs whose times are compared with those of their references."""
    return [run for run in runs if run.instrument is run.series is None and is_compared(run)]
