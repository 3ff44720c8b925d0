"""The steps of a program as its hook saw them, and the window of steps that is timed.

`escala/hook/escala_seen.py` describes the lines that processes write.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, repeat, zip_longest
from pathlib import Path
from statistics import mean, median, mode
from typing import NamedTuple

from escala.core.readable import with_noun
from escala.hook.escala_seen import Rule
from escala.programs.marks import BEGIN, EPOCH, ROWS, STEP, Epoch, Mark, differences

#: The file, in the folder of the ranks, with the number of the step at which all processes end.
WINDOW_FILE = "window.json"
#: A step that is longer than the median by this factor includes other work, such as an evaluation.
INTERRUPTED = 5.0
#: Such steps may recur if they are apart by at least this fraction of the window, and so many
#: steps: then a longer window is to tell.
_RECURRING, _FEWEST = 1 / 3, 5
#: They recur if there are so many, with gaps that differ at most by this factor, or if they are at
#: least this fraction of all steps. Else they may be chance.
_FEWEST_LONG, _REGULAR, _COMMON = 3, 1.5, 0.05
#: If the later half of the steps takes longer, or less long, by this factor, steps change while the
#: script trains. So many steps tell.
_CHANGED, _FEWEST_HALVED = 1.25, 10
#: The steps of an epoch if their number is unknown. A loader with more steps than the second number
#: is treated as endless.
UNKNOWN_EPOCH, LONGEST_EPOCH = 10_000, 10**7
#: The note on an epoch of unknown steps.
ASSUMED_EPOCH = f"the number of steps of an epoch is not known: {UNKNOWN_EPOCH} is assumed"
#: The least epochs of a window, after the first, if steps are not known.
FEWEST_EPOCHS = 2
#: The beginning of the note on the steps of a window.
PROJECTED = "an epoch is projected from a window of its steady steps"


class Used(NamedTuple):
    """The resources that a process used until a moment, or in some steps.

    Attributes
    ----------
    input_seconds : the time in which it waits for batches.
    core_seconds, kernel_seconds : its core time, and the part of it in the kernel.
    minor_faults : page faults that read nothing from a disk.
    """

    input_seconds: float
    core_seconds: float
    kernel_seconds: float
    minor_faults: float


class Steps(NamedTuple):
    """`made` steps that were noted together, mostly one step, and their `rows`.

    `number` is that of the last one, of all steps of the process. `used` is what the process used
    in them, None if that is not known.
    """

    began: float
    ended: float
    made: int
    number: int
    rows: int | None
    used: Used | None

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
    taken_before, made_before, used_before : the batches of the loop that were taken, the steps that
        were made, and what the process had used, before `began`; None: that is not known.
    workers : the processes that load its batches; None if unknown.
    steps : for each note of a step, its end and the number of steps until then.
    taken : for each note, the batches of the loop that were taken until then.
    used : for each note, what the process had used until then; empty if that is not known.
    scores : the scores of Keras at the end of the loop; None if the loop did not end.
    row_counts : the rows of each note of a step, if they do not follow from the loader.
    """

    began: float | None
    batches: int | None = None
    rows: int | None = None
    samples: int | None = None
    taken_before: int = 0
    made_before: int = 0
    used_before: Used | None = None
    workers: int | None = None
    steps: list[tuple[float, int]] = field(default_factory=list)
    taken: list[int] = field(default_factory=list)
    used: list[Used] = field(default_factory=list)
    scores: dict[str, float] | None = None
    row_counts: list[int | None] = field(default_factory=list)

    @property
    def steps_in_all(self) -> float | None:
        """The steps of the whole loop, from the number of its batches; None if that is unknown.

        A script may take a batch before it needs it. So the steps are counted from one batch to a
        later one. It may also go on with batches that it keeps.
        """
        made_at: dict[int, int] = {}  # the first step after each number of batches
        for (_, made), taken in zip(self.steps, self.taken, strict=True):
            made_at.setdefault(taken, made)
        if self.batches is None or len(self.steps) > 1 == len(made_at):
            return None
        if len(made_at) > 2:
            made_at.pop(self.batches, None)
        first, last = min(made_at), max(made_at)
        if first == last:
            per_batch = (made_at[first] - self.made_before) / (first - self.taken_before)
        else:
            per_batch = (made_at[last] - made_at[first]) / (last - first)
        return self.batches * per_batch

    def rows_of_steps(self) -> list[int | None]:
        """Return the rows of each note of steps; None for unknown rows."""
        if self.rows is None or self.samples is None:
            return self.row_counts or [None] * len(self.steps)
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

    @property
    def notes(self) -> int:
        """How many times steps were noted."""
        return sum(len(loop.steps) for loop in self.loops)

    @property
    def has_length(self) -> bool:
        """Whether the steps of an epoch are known."""
        return bool(self.loops[-1].batches)

    def steps_between(self, first: int, last: int) -> Iterator[Steps]:
        """Yield the steps after the number `first`, up to `last`."""
        for loop in self.loops:
            since, before, used_before = loop.began, loop.made_before, loop.used_before
            notes = zip(loop.steps, loop.rows_of_steps(), loop.used or repeat(None), strict=False)
            for (ended, made), rows, used in notes:
                if since is not None and first <= before and made <= last:
                    grown = used_before and used and Used(*map(operator.sub, used, used_before))
                    yield Steps(since, ended, made - before, made, rows, grown)
                since, before, used_before = ended, made, used


def mean_step(chosen: Sequence[Steps], workers: int | None) -> dict[str, float | None] | None:
    """Return the seconds of a mean step of a process, and what the process uses in it.

    Returns
    -------
    `step_seconds`, the fields of `Used` and `workers`; None if they are not known. `input_seconds`
    is None if no loader told of waiting.
    """
    known = [steps for steps in chosen if steps.used]
    if not known:
        return None
    made = sum(steps.made for steps in known)
    used = Used(
        *(sum(values) / made for values in zip(*(steps.used for steps in known), strict=True))
    )
    seconds = sum(steps.seconds for steps in known) / made
    step = {"step_seconds": seconds, **used._asdict(), "workers": workers}
    return step if used.input_seconds else step | {"input_seconds": None}


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
                batches, rows, samples, taken, workers, *used = values
                about = {"made_before": made, "used_before": Used(*used), "workers": workers}
                loops.append(Loop(time, batches, rows, samples, taken, **about))
            elif event == "step":
                made, taken, rows, *used = values
                loops[-1].steps.append((time, made))
                loops[-1].taken.append(taken)
                loops[-1].used.append(Used(*used))
                loops[-1].row_counts.append(rows)
            elif event == "steady":
                steady = values[0]
            elif event == "told":
                loops, made, steady = [Loop(None)], 0, None
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


def steps_of(marks: Sequence[Mark], has_ended: bool) -> tuple[Process, Rule] | None:
    """Return the steps of a process from its marks, and the rule of the window after the last.

    If only epochs are marked, and numbered, each of them is a step, and an epoch has one. Else the
    first epoch that has ended tells how many steps an epoch has, if no mark tells it. The number 0
    of a bar is a beginning. When the numbers of steps begin again, the epoch before was complete,
    also after its last mark.

    Parameters
    ----------
    has_ended : whether the process ended by itself. If not, the last mark may end no epoch.

    Returns
    -------
    None if the marks do not tell how many steps were made.
    """
    event = STEP if any(mark.event == STEP for mark in marks) else EPOCH
    chosen = [mark for mark in marks if mark.event == event]
    numbers = [mark.number for mark in chosen]
    are_numbered = None not in numbers and all(float(number).is_integer() for number in numbers)
    if not chosen or not (are_numbered or (event == STEP and all(mark.made for mark in chosen))):
        return None
    usual = mode([n for n in differences(chosen) if n > 0] or [1]) if are_numbered else 1
    loops, made, number, length = [Loop(None)], 0, None, None
    for mark in marks if has_ended or marks[-1].event == event else marks[:-1]:
        if mark.event == BEGIN:
            loops.append(Loop(mark.time, made_before=made))
        elif mark.event == event:
            goes_on = are_numbered and number is not None and mark.number >= number
            growth = mark.number - number if goes_on else usual
            if are_numbered and number is not None and not goes_on:  # Another epoch.
                complete = [loop for loop in loops if loop.steps][-1]
                made = max(made, complete.made_before + int(complete.batches or 0))
                if loops[-1].steps:
                    loops.append(Loop(None))
                loops[-1].made_before = made
            number = mark.number
            if event == STEP and mark.total and are_numbered and not goes_on:
                growth = usual if number >= max(1, usual - 1) else number
            if not (growth or goes_on):
                loops.append(Loop(mark.time, made_before=made))
                continue
            made, loop = made + int(growth), loops[-1]
            if loop.steps and loop.steps[-1][0] == mark.time:  # Lines that arrive together.
                del loop.steps[-1], loop.taken[-1], loop.row_counts[-1]
            loop.steps.append((mark.time, made))
            loop.taken.append(made - loop.made_before)
            loop.row_counts.append(mark.values.get(ROWS) if growth == 1 else None)
            loop.batches = 1 if event == EPOCH else loop.batches or mark.total
        elif mark.event == EPOCH and loops[-1].steps:
            length = length or made - loops[-1].made_before
            loops.append(Loop(None, made_before=made))
    loops, before = [loop for loop in loops if loop.steps], 0
    rule = Rule() if event == STEP else Rule(FEWEST_EPOCHS)
    for loop in loops:
        loop.batches = loop.batches or length
        rule.begin(loop.began)
        for ended, made in loop.steps:
            if made > before:
                rule.step(ended, made - before, made)
            before = made
    if event == EPOCH:
        rule.began, rule.steady = loops[0].steps[0]
    return Process(loops, rule.steady), rule


@dataclass(frozen=True)
class Window:
    """The steady steps of all processes, with equal numbers in each process.

    Attributes
    ----------
    epochs : for each process, one `Epoch` with the steps of the window.
    epoch_steps : the steps of a whole epoch.
    notes : sentences on the window.
    made, ended : the number of the last step of the first process, and the time of its end.
    rest_seconds : the time of an epoch outside of its steps, as far as the first process has shown
        it; None if the steps of an epoch are not known.
    period : the longest seconds from one step that recurs with other work to the next; 0: none.
    mean_steps : `mean_step` of each process; None if one is not known.
    sees_end : whether an epoch was seen to end, so that `rest_seconds` has what comes between two.
    """

    epochs: list[list[Epoch]]
    epoch_steps: int
    notes: list[str]
    made: int
    ended: float
    rest_seconds: float | None
    period: float = 0.0
    mean_steps: list[dict[str, float | None]] | None = None
    sees_end: bool = False

    def project(self, epochs: int, started: float) -> float | None:
        """Return the seconds of a training of some epochs, which `started` by the monotonic clock.

        Until the end of the window they are measured. None if the steps of an epoch are not known,
        or the window has more than all of them.
        """
        left = epochs * self.epoch_steps - self.made
        if self.rest_seconds is None or left < 0:
            return None
        step = max(e.train_seconds / e.count for [e] in self.epochs)
        return self.ended - started + left * (step + self.rest_seconds / self.epoch_steps)


def _rest_seconds(process: Process, step: float) -> tuple[float | None, float]:
    """Return the mean seconds between two epochs, and the seconds for each step within epochs.

    The first is None if no epoch was seen to end.

    Parameters
    ----------
    step : the seconds of a step.
    """
    between, within, before = [], 0.0, process.loops[0]
    for loop in process.loops[1:]:
        (first, made), (ended, made_before) = loop.steps[0], before.steps[-1]
        # Steps at the end of an epoch may have no note, and belong to no rest.
        began, reached = (first, made) if loop.began is None else (loop.began, loop.made_before)
        rest, before = max(0.0, began - ended - step * (reached - made_before)), loop
        if loop.taken_before:
            within += rest
        else:
            between.append(rest)
    return mean(between) if between else None, within / process.made


def window_of(processes: Sequence[Process]) -> Window | None:
    """Return the window of the processes of a run; None if their steps never were steady.

    The last loop of the first process tells the steps of an epoch. If it does not tell them, an
    epoch has `UNKNOWN_EPOCH` steps. A step that is longer than the median by the factor
    `INTERRUPTED` in one process is left out in all processes. If such steps recur, the epoch has
    all steps from the end of the first one to the end of the last one: whole periods. Such steps
    in a row are one.
    """
    if not processes or any(process.steady is None for process in processes):
        return None
    first = max(process.steady for process in processes)
    made = min(process.made for process in processes)
    by_process = [list(process.steps_between(first, made)) for process in processes]
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
    numbers = sorted(number for number in interrupted if number - 1 not in interrupted)
    gaps = [later - before for before, later in pairwise(numbers)]
    ends = [[steps[number].ended for number in numbers] for steps in by_process]
    may_recur = sum(gaps) >= _FEWEST and all(
        end[-1] - end[0] > _RECURRING * (steps[-1].ended - steps[0].began)
        for end, steps in zip(ends, by_process, strict=True)
    )
    period, timed, count = 0.0, by_process, len(interrupted)
    if may_recur:
        period = max(later - before for end in ends for before, later in pairwise(end))
    is_regular = len(numbers) >= _FEWEST_LONG and max(gaps) <= _REGULAR * min(gaps)
    recurs = may_recur and (is_regular or count >= _COMMON * len(by_process[0]))
    if recurs:
        timed = [steps[numbers[0] + 1 : numbers[-1] + 1] for steps in by_process]
    if recurs or count == len(by_process[0]):
        interrupted = set()
    known = processes[0].loops[-1].steps_in_all
    known = known if known and known <= LONGEST_EPOCH else None
    epochs, mean_steps = [], []
    for process, every in zip(processes, timed, strict=True):
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
        mean_steps.append(mean_step(chosen, process.loops[-1].workers))
    notes = [PROJECTED]
    if not known:
        notes.append(ASSUMED_EPOCH)
    if recurs:
        notes.append(
            f"{count} steps took more than {INTERRUPTED:g} times the usual one, such as "
            "steps after a rollout, an evaluation or a wait for data: they recur, and count"
        )
    counted = [steps for n, steps in enumerate(timed[0]) if n not in interrupted]
    if not recurs and len(counted) >= _FEWEST_HALVED:
        earlier, later = counted[: len(counted) // 2], counted[len(counted) // 2 :]
        before, after = (
            sum(steps.seconds for steps in half) / sum(steps.made for steps in half)
            for half in (earlier, later)
        )
        if max(before, after) > _CHANGED * min(before, after):
            notes.append(
                f"later steps take {after / before:.2g} times as long as earlier ones: a "
                "configuration that makes more steps in its window is timed on other steps"
            )
    if interrupted:
        are = "is" if len(interrupted) == 1 else "are"
        spent = sum(by_process[0][number].seconds for number in interrupted)
        notes.append(
            f"{with_noun(len(interrupted), 'step')} that held something else, such as an "
            f"evaluation, took {spent:.3g} s, and {are} left out"
        )
    epoch_steps = max(1, round(known)) if known else UNKNOWN_EPOCH
    usual, last = medians[0], by_process[0][-1]
    between, within = _rest_seconds(processes[0], usual)
    long = (by_process[0][number] for number in interrupted)
    within += sum(s.seconds - usual * s.made for s in long) / sum(s.made for s in by_process[0])
    rest_seconds = (between or 0.0) + within * epoch_steps if known else None
    return Window(
        [[epoch] for epoch in epochs],
        epoch_steps,
        notes,
        last.number,
        last.ended,
        rest_seconds,
        period,
        None if None in mean_steps else mean_steps,
        # Where only epochs are known, each of them is a step.
        between is not None or known == 1,
    )
