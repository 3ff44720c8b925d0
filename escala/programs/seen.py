"""The steps of a program as its hook saw them, and the window of steps that is timed.

`escala/hook/escala_seen.py` describes the lines that processes write.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from pathlib import Path
from statistics import median
from typing import NamedTuple

from escala.core.readable import with_noun
from escala.programs.marks import BEGIN, EPOCH, ROWS, STEP, Epoch, Mark

#: The file, in the folder of the ranks, with the number of the step at which all processes end.
WINDOW_FILE = "window.json"
#: A step that is longer than the median by this factor includes other work, such as an evaluation.
INTERRUPTED = 5.0
#: The steps of an epoch if their number is unknown. A loader with more steps than the second number
#: is treated as endless.
UNKNOWN_EPOCH, LONGEST_EPOCH = 10_000, 10**7
#: The note on an epoch of unknown steps.
ASSUMED_EPOCH = f"the number of steps of an epoch is not known: {UNKNOWN_EPOCH} is assumed"
#: The beginning of the note on the steps of a window.
PROJECTED = "an epoch is projected from a window of its steady steps"


class Steps(NamedTuple):
    """`made` steps that were noted together, mostly one step, and their `rows`."""

    began: float
    ended: float
    made: int
    rows: int | None

    @property
    def seconds(self) -> float:
        return self.ended - self.began


@dataclass
class Loop:
    """Steps of a process in a loop over a loader, or in an epoch of Keras.

    Attributes
    ----------
    began : the time of the beginning, by the monotonic clock; None for steps before any loop.
    batches, rows, samples : the batches of the whole loop, the rows of a batch, and the rows of all
        batches; None if unknown.
    taken_before, made_before : the batches of the loop that were taken, and the steps that were
        made, before `began`.
    steps : for each note of a step, its end and the number of steps until then.
    taken : for each note, the batches of the loop that were taken until then.
    scores : the scores of Keras at the end of the loop; None if the loop did not end.
    """

    began: float | None
    batches: int | None = None
    rows: int | None = None
    samples: int | None = None
    taken_before: int = 0
    made_before: int = 0
    steps: list[tuple[float, int]] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    scores: dict[str, float] | None = None

    @property
    def steps_in_all(self) -> float | None:
        """The steps of the whole loop, from the number of its batches; None if that is unknown."""
        made, taken = self.steps[-1][1] - self.made_before, self.taken[-1] - self.taken_before
        return self.batches and self.batches * made / taken

    def rows_of_steps(self) -> list[int | None]:
        """Return the rows of each note of steps; None for unknown rows."""
        if self.rows is None or self.samples is None:
            return [None] * len(self.steps)
        taken = [self.taken_before, *self.taken]
        ends = [min(self.rows * batches, self.samples) for batches in taken]
        return [end - before for before, end in pairwise(ends)]


@dataclass
class Process:
    """The steps of one process, by its loops.

    Attributes
    ----------
    loops : the loops with steps, in order. The time between two loops belongs to no step.
    steady : the number of the step after which step times were steady; None if they never were.
    """

    loops: list[Loop]
    steady: int | None

    @property
    def made(self) -> int:
        return self.loops[-1].steps[-1][1]

    def steps_between(self, first: int, last: int) -> Iterator[Steps]:
        """Yield the steps after the number `first`, up to `last`."""
        before = 0
        for loop in self.loops:
            since = loop.began
            for (ended, made), rows in zip(loop.steps, loop.rows_of_steps(), strict=True):
                if since is not None and first <= before and made <= last:
                    yield Steps(since, ended, made - before, rows)
                since, before = ended, made


def read(folder: Path) -> list[Process]:
    """Return the processes that made steps, by their files in a folder of marks."""
    processes = []
    for path in sorted(folder.glob("*.seen")):
        loops, made, steady = [Loop(None)], 0, None
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                event, time, *values = json.loads(line)
            except ValueError:  # The last line of a process may be cut.
                break
            if event == "begin":
                loops.append(Loop(time, *values, made))
            elif event == "step":
                made, taken, _ = values
                loops[-1].steps.append((time, made))
                loops[-1].taken.append(taken)
            elif event == "steady":
                steady = values[0]
            else:
                loops[-1].scores = values[0]
        loops = [loop for loop in loops if loop.steps]
        if loops:
            processes.append(Process(loops, steady))
    return processes


def marks_of(process: Process) -> list[Mark]:
    """Return the marks of a process. The end of a loop is the end of an epoch."""
    marks, before = [], 0
    for loop, after in zip_longest(process.loops, process.loops[1:]):
        if loop.began is not None:
            marks.append(Mark(BEGIN, loop.began, {}))
        for (ended, made), rows in zip(loop.steps, loop.rows_of_steps(), strict=True):
            values = {} if rows is None else {ROWS: float(rows)}
            marks.append(Mark(STEP, ended, values, made=made - before))
            before = made
        goes_on = after is not None and after.taken_before
        if loop.began is not None and not goes_on:
            marks.append(Mark(EPOCH, loop.steps[-1][0], loop.scores or {}))
    return marks


@dataclass(frozen=True)
class Window:
    """The steady steps of all processes, with equal numbers in each process.

    Attributes
    ----------
    epochs : for each process, one `Epoch` with the steps of the window.
    epoch_steps : the steps of a whole epoch.
    notes : sentences on the window.
    """

    epochs: list[list[Epoch]]
    epoch_steps: int
    notes: list[str]


def window_of(processes: Sequence[Process]) -> Window | None:
    """Return the window of the processes of a run; None if their steps never were steady.

    The last loop of the first process tells the steps of an epoch. If it does not tell them, an
    epoch has `UNKNOWN_EPOCH` steps. A step that is longer than the median by the factor
    `INTERRUPTED` in one process is left out in all processes.
    """
    if not processes or any(process.steady is None for process in processes):
        return None
    first = max(process.steady for process in processes)
    last = min(process.made for process in processes)
    by_process = [list(process.steps_between(first, last)) for process in processes]
    if not all(by_process):
        return None
    # A process that was ended may lack its last lines.
    by_process = [steps[: min(map(len, by_process))] for steps in by_process]
    medians = [median(steps.seconds / steps.made for steps in chosen) for chosen in by_process]
    interrupted = {
        number
        for chosen, usual in zip(by_process, medians, strict=True)
        for number, steps in enumerate(chosen)
        if steps.seconds > INTERRUPTED * usual * steps.made
    }
    known = processes[0].loops[-1].steps_in_all
    known = known if known and known <= LONGEST_EPOCH else None
    epochs = []
    for every in by_process:
        chosen = [steps for number, steps in enumerate(every) if number not in interrupted]
        epochs.append(
            Epoch(
                chosen[0].began,
                chosen[-1].ended,
                [steps.seconds for steps in chosen],
                [steps.rows for steps in chosen],
                [steps.made for steps in chosen],
                sum(steps.seconds for steps in chosen),
                marked=True,
            )
        )
    notes = [PROJECTED]
    if not known:
        notes.append(ASSUMED_EPOCH)
    if interrupted:
        spent = sum(by_process[0][number].seconds for number in interrupted)
        notes.append(
            f"{with_noun(len(interrupted), 'step')} that held something else, such as an "
            f"evaluation, took {spent:.3g} s, and are left out"
        )
    epoch_steps = max(1, round(known)) if known else UNKNOWN_EPOCH
    return Window([[epoch] for epoch in epochs], epoch_steps, notes)
