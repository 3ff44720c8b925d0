"""The answer as it forms: what the repeats measured so far say, printed after each of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from contextlib import chdir
from pathlib import Path
from typing import NamedTuple

from escala.core.progress import say
from escala.core.readable import counted
from escala.experiment import Run
from escala.experiment.runs import is_compared
from escala.record import estimate
from escala.workflow import internals
from escala.workflow.internals import DAG
from escala.workflow.matches import Graph
from escala.workflow.study import Study


class State(NamedTuple):
    """The runs of a call.

    Attributes
    ----------
    every : all in its graph, those included that were measured before.
    left : those that it still has to measure.
    pilots : the experiments to which a pilot may still add repeats.
    """

    every: Collection[Run]
    left: Collection[Run]
    pilots: Collection[str] = ()


class Forming:
    """Tells of each repeat of an experiment once, when its last run has ended.

    Parameters
    ----------
    folder : the working directory.
    clock : returns seconds.
    """

    def __init__(
        self, study: Study, graph: Graph, folder: Path, clock: Callable[[], float] = time.monotonic
    ):
        self._named, self._graph, self._folder = study.named, graph, folder
        self._clock = clock
        self._known: dict[str, set[int]] | None = None
        self._before: tuple[float, float] | None = None

    def update(self, dag: DAG) -> None:
        """Tell of the repeats that are complete in the graph of the call."""
        jobs = list(self._graph.jobs(dag))
        left = [run for run, job in jobs if dag.needrun(job) and not dag.finished(job)]
        pilots = internals.jobs(dag, "pilot", needed=True)
        deciding = {job.wildcards.experiment for job in pilots if not dag.finished(job)}
        with chdir(self._folder):
            self.tell(State([run for run, _ in jobs], left, deciding))

    def tell(self, state: State) -> None:
        """Print a line for each experiment that has a complete repeat more than at the last call.

        At the first call the complete ones were measured before, and nothing is printed.
        """
        found = _complete(state)
        known, self._known = self._known, found
        if known is None:
            self._before = self._clock(), self._seconds(state.left)[0]
            return
        for name, repeats in found.items():
            if repeats - known.get(name, set()):
                for text in self._answer(name, state, repeats):
                    say(text)

    def _answer(self, name: str, state: State, repeats: Collection[int]) -> list[str]:
        """Return what the page would say of complete repeats, and how long the others take."""
        # With its libraries, which no other part of a call of Snakemake needs.
        from escala.report import so_far

        runs = [run for run in _timed(state.every) if run.experiment == name]
        every, pilot = {run.repeat for run in runs}, Path(f"results/{name}/pilot.json")
        try:
            found = so_far.answer(
                [Path(run.file) for run in runs if run.repeat in repeats],
                self._named(name).references,
                pilot if pilot.exists() and name not in state.pilots else None,
            )
        except Exception as error:  # a line on progress must not end a measurement
            found = []
            say(f"{name}: no answer so far: {error}")
        least = "at least " if name in state.pilots else ""
        number = f"{name}, after {len(repeats)} of {least}{len(every)} repeats"
        if not found:
            return [f"{number}: {self._remaining(state.left)}"] if state.left else []
        last = found.pop()
        return [
            *(f"{number}, provisional: {text}" for text in found),
            f"{number}, provisional: {last}; {self._remaining(state.left)}",
        ]

    def _remaining(self, left: Collection[Run]) -> str:
        """Return the time that runs take, at the pace of those before them."""
        seconds, unknown = self._seconds(left)
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
        return f"about {estimate.duration(seconds * pace)} of runs left{more}"

    def _seconds(self, left: Collection[Run]) -> tuple[float, int]:
        """Return the seconds of runs as they took before, and of how many they are not known."""
        median = estimate.medians(left)
        known = [seconds for run in left if (seconds := median(run)) is not None]
        return sum(known), len(left) - len(known)


def _timed(runs: Collection[Run]) -> list[Run]:
    """Return the runs whose times are compared with those of their references."""
    return [run for run in runs if run.instrument is run.series is None and is_compared(run)]


def _complete(state: State) -> dict[str, set[int]]:
    """Return the repeats of each experiment of which no run is left."""
    found: dict[str, set[int]] = {}
    for run in _timed(state.every):
        found.setdefault(run.experiment, set()).add(run.repeat)
    for run in _timed(state.left):
        found[run.experiment].discard(run.repeat)
    return found
