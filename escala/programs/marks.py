"""The epochs and the steps of a program, from marks of its hook or of its output."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from statistics import mode
from typing import NamedTuple

from escala.core import readable
from escala.core.errors import Failed
from escala.programs import printed
from escala.programs.printed import better, is_score, read_counters, read_total

BEGIN, STEP, EPOCH, SCORE = "begin", "step", "epoch", "score"
ROWS, PARAMETERS = "rows", "parameters"
EVENTS = (BEGIN, STEP, EPOCH, SCORE)
#: How the steps of a program are known.
HOOK, SEEN, OUTPUT, WHOLE = "hook", "seen", "output", "whole run"
#: Names of numbers that the hook adds to a mark: a loop left this step by `break`; and how many
#: earlier marks could not be written.
LEFT, LOST = "_left", "_lost"
#: The prefix of the name of the best value of a score.
BEST = "best_"
#: Names of whole numbers that are no scores.
_COUNTS = {ROWS, EPOCH, STEP}
#: The word for a value that is not a number.
_NAN = re.compile(r"(?<!\w)nan(?!\w)", re.IGNORECASE)
#: The number of all epochs.
_OF_EPOCHS = re.compile(r"(?i)(?<![a-z0-9])epoch[\W_]{0,4}\d+\s*/\s*(\d+)(?![\w/])")
#: A step that a loop left by `break` counts if it took at least this fraction of the shortest other
#: step.
_MADE = 0.1


class Mark(NamedTuple):
    """A moment that a program reported.

    Attributes
    ----------
    event : `BEGIN`, before a step; `STEP`, at the end of a step; `EPOCH`, at the end of an epoch;
        or `SCORE`.
    time : seconds of the monotonic clock.
    values : the reported numbers, by name.
    number : the number of the step or the epoch; None if unknown.
    made : the number of steps that end here; None if unknown.
    bar : the steps or rows that a progress bar counts as done; None without a bar.
    total : the number that the last step of its epoch has, or the last epoch; None if unknown.
    left_out : names of reported values that are not numbers.
    lost : the number of earlier marks that could not be written.
    """

    event: str
    time: float
    values: dict[str, float]
    number: float | None = None
    made: float | None = 1
    bar: float | None = None
    left_out: tuple[str, ...] = ()
    lost: float = 0
    total: float | None = None


@dataclass
class Epoch:
    """An epoch of one process.

    Attributes
    ----------
    began, ended : times of the monotonic clock. Without a mark of its beginning, an epoch begins at
        the end of the previous epoch. Without such a mark, the first epoch begins at the end of its
        first step, and does not include that step. If it has one step or none, it begins at the
        start of the process.
    steps : for each mark of a step, the seconds since the previous mark.
    rows : the rows of each mark; None if the program did not report them.
    made : the number of steps of each mark; None if unknown.
    train_seconds : the seconds of the steps, without the time from the last step to the next
        beginning.
    values : the numbers that its end reported.
    marked : whether its beginning was marked.
    """

    began: float
    ended: float = 0.0
    steps: list[float] = field(default_factory=list)
    rows: list[float | None] = field(default_factory=list)
    made: list[float | None] = field(default_factory=list)
    train_seconds: float = 0.0
    values: dict[str, float] = field(default_factory=dict)
    marked: bool = False

    @property
    def count(self) -> int | None:
        """The number of steps of the epoch; None if unknown."""
        return None if None in self.made or not self.made else int(sum(self.made))

    @property
    def has_single_steps(self) -> bool:
        """Whether each mark ends one step, so that times between marks are times of steps."""
        return set(self.made) <= {1}

    def drop_step(self, place: int) -> None:
        for values in (self.steps, self.rows, self.made):
            del values[place]


def read_files(folder: Path) -> tuple[list[list[Mark]], int]:
    """Return the marks of each process that used the hook, and the number of lines without a mark.

    The processes are in the order of their first marks. The last line of a process may be cut, and
    does not count.
    """
    by_process, unread = [], 0
    for path in folder.glob("*.jsonl"):
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        marks = [_parse_mark(line) for line in lines]
        unread += marks[:-1].count(None)
        by_process.append([mark for mark in marks if mark])
    return sorted(filter(None, by_process), key=lambda marks: marks[0].time), unread


def _parse_mark(line: str) -> Mark | None:
    """Return the mark of a line; None for a line without a mark."""
    try:
        event, time, numbers = json.loads(line)
        values = {name: float(value) for name, value in numbers.items() if value is not None}
        left_out = tuple(name for name, value in numbers.items() if value is None)
        lost, number = values.pop(LOST, 0), values.get(event)
        mark = Mark(event, float(time), values, number, left_out=left_out, lost=lost)
        return mark if event in EVENTS else None
    except (ValueError, TypeError, AttributeError):
        return None


def join_sequences(by_process: Iterable[Sequence[Mark]]) -> list[list[Mark]]:
    """Join the marks of processes that ran one after the other.

    Parameters
    ----------
    by_process : the marks of each process, in the order of their first marks. Marks of processes
        that ran at the same time stay apart.
    """
    sequences: list[list[Mark]] = []
    for marks in by_process:
        before = next(
            (sequence for sequence in sequences if sequence[-1].time <= marks[0].time), None
        )
        if before is None:
            sequences.append(list(marks))
        else:
            before.extend(marks)
    return sequences


def differences(marks: Sequence[Mark]) -> list[float]:
    """Return the differences between the numbers of neighbouring marks."""
    return [later.number - before.number for before, later in pairwise(marks)]


def count_steps(marks: Sequence[Mark]) -> list[Mark]:
    """Return marks of one process with `made`, from the differences between the numbers of steps.

    The `made` of the first mark of an epoch is known if its number is the usual difference, or one
    less. The number of a progress bar may count rows: it tells only whether each step has a mark.
    """
    numbered = [mark for mark in marks if mark.event == STEP and mark.number is not None]
    growths = differences(numbered)
    usual = mode([growth for growth in growths if growth > 0] or [1])
    has_all = bool(growths) and max(growths) == usual == 1
    counted = {}
    for mark, growth in zip(numbered, [0, *growths][: len(numbered)], strict=True):
        # The first mark of an epoch.
        first = usual if mark.number in (usual, usual - 1) else None
        made = 1 if has_all else mark.made and (growth if growth > 0 else first)
        counted[id(mark)] = mark._replace(made=made)
    return [counted.get(id(mark), mark) for mark in marks]


def require_order(
    by_process: Iterable[Sequence[Mark]], started: float, ended: float | None
) -> None:
    """Refuse marks with decreasing times or numbers of epochs.

    Parameters
    ----------
    started, ended : when the program started and ended, by the clock of the marks. An end of None
        is not checked.

    Raises
    ------
    Failed : the times or the numbers decrease, or a time lies outside of the run.
    """
    for marks in by_process:
        times = [started, *(mark.time for mark in marks), *([ended] if ended else [])]
        if any(later < earlier for earlier, later in pairwise(times)):
            raise Failed(
                "the times of its marks decrease, or lie outside of its run. Remedy: let only "
                "escala_steps write them, on this machine"
            )
        numbers = [m.values[EPOCH] for m in marks if m.event == EPOCH and EPOCH in m.values]
        for before, number in pairwise(numbers):
            if number <= before:
                raise Failed(
                    f"the program reported the end of epoch {number:.10g} after that of epoch "
                    f"{before:.10g}. Remedy: mark or print the end of each once, in their order"
                )


class OutputSearch:
    """A search of an output for marks, by patterns; a pattern of None matches nothing.

    Attributes
    ----------
    notes : sentences on output that was not searched or not read. They are complete after `end`.
    epochs : the number of all epochs, if a line tells it; else None.
    """

    def __init__(self, epoch_ends: str | None, step_ends: str | None):
        # A line that ends an epoch may end its last step.
        by_event = {STEP: step_ends, EPOCH: epoch_ends}
        self.patterns = {event: re.compile(text) for event, text in by_event.items() if text}
        self._marks: list[Mark] = []
        self.notes: list[str] = []
        self.epochs: int | None = None
        self._lines, self._numbers = printed.Lines(), printed.Numbers(_COUNTS)
        self._first_nan, self._nans = "", 0

    def feed(self, data: bytes, time: float) -> None:
        """Search output that arrived at a time."""
        for line, ended in self._lines.feed(data, time):
            self._search(line, ended)

    def end(self) -> None:
        """Search the last output, which may be a line without an end."""
        for line, ended in self._lines.end():
            self._search(line, ended)
        self.notes = self._numbers.settle()
        if cut := self._lines.cut:
            self.notes.append(
                f"{readable.with_noun(cut, 'line')} of its output had more than "
                f"{2 * printed.LONGEST} characters, of which the first and the last "
                f"{printed.LONGEST} were searched"
            )
        if self._nans:
            self.notes.append(
                f"{readable.with_noun(self._nans, 'line')} of its output said nan where no number "
                f"is read; the first: {self._first_nan.strip()[:80]!r}"
            )

    @property
    def marks(self) -> list[Mark]:
        """The marks in complete lines."""
        return [
            mark._replace(number=mark.values[mark.event], made=1)
            if mark.event in mark.values
            else mark
            for mark in self._marks
        ]

    def _search(self, line: str, time: float) -> None:
        says_nan = bool(_NAN.search(line))
        if self.epochs is None and (match := _OF_EPOCHS.search(line)):
            self.epochs = int(match[1])
        for event, pattern in self.patterns.items():
            match = printed.search(pattern, line)
            if match is not None:
                matched, numbers = match
                values = self._numbers.values(numbers)
                counters = read_counters(line)
                number, bar, made = getattr(counters, event), counters.bar, 1
                # If a line has several numbers, the pattern selects one.
                if number is not None:
                    inner = getattr(read_counters(matched), event)
                    number = number if inner is None else inner
                if number is None and event == STEP:  # A bar counts steps, or rows.
                    number, made = bar, 1 if bar is None else None
                place = values.get(event, number)
                total = None if place is None else read_total(line, place, event == EPOCH)
                self._marks.append(Mark(event, time, values, number, made, bar, total=total))
                says_nan &= not any(_NAN.search(number.text) for number in numbers.values())
        if says_nan:
            self._first_nan = self._first_nan or line
            self._nans += 1


def epochs(marks: Sequence[Mark], started: float) -> list[Epoch]:
    """Return the epochs of one process. The process `started` by the clock of the marks.

    If no mark ends an epoch, all steps are one epoch. Steps after the end of the last epoch are in
    no epoch.
    """
    result: list[Epoch] = []
    current, segment, last = Epoch(started), started, None
    left: list[int] = []

    def close(end: float) -> None:
        nonlocal segment
        current.train_seconds += max(0.0, end - segment)
        segment = end

    def keep(values: dict[str, float]) -> None:
        for place in reversed(left):
            others = current.steps[:place] + current.steps[place + 1 :]
            if others and current.steps[place] < _MADE * min(others):
                current.drop_step(place)
        current.values = values
        result.append(current)

    for mark in marks:
        if mark.event == BEGIN:
            if current.steps and last is not None:
                close(last)
            elif not current.marked:
                current.began, current.marked = mark.time, True
            segment = last = mark.time
        elif mark.event == STEP:
            if LEFT in mark.values:
                left.append(len(current.steps))
            current.steps.append(mark.time - (segment if last is None else last))
            current.rows.append(mark.values.get(ROWS))
            current.made.append(mark.made)
            last = mark.time
        elif mark.event == EPOCH:
            close(last if current.steps else mark.time)
            current.ended = mark.time
            keep(mark.values)
            current, segment, last, left = Epoch(mark.time), mark.time, None, []
    if current.steps and not result:
        close(last)
        current.ended = last
        keep(next(mark.values for mark in reversed(marks) if mark.event == STEP))
    if result and not result[0].marked and len(result[0].steps) > 1:
        first = result[0]
        first.began += first.steps[0]
        first.train_seconds -= first.steps[0]
        first.drop_step(0)
    return result


def epochs_by_process(by_process: Sequence[Sequence[Mark]], started: float) -> list[list[Epoch]]:
    """Return the epochs of each process that reports epochs.

    If some processes mark the ends of epochs, processes that mark only steps are left out. The sum
    of rows over all processes is then unknown.
    """
    all_epochs = [epochs(marks, started) for marks in by_process]
    marked = [
        process_epochs
        for process_epochs, marks in zip(all_epochs, by_process, strict=True)
        if any(mark.event == EPOCH for mark in marks)
    ]
    all_epochs, marked = list(filter(None, all_epochs)), list(filter(None, marked))
    if not marked or len(marked) == len(all_epochs):
        return all_epochs
    for epoch in chain.from_iterable(marked):
        epoch.rows = [None] * len(epoch.steps)
    return marked


def count_steps_after_epochs(marks: Sequence[Mark]) -> int:
    """Return how many marks of steps follow the last end of an epoch; 0 without an end."""
    events = [mark.event for mark in marks]
    after = events[::-1].index(EPOCH) if EPOCH in events else 0
    return events[len(events) - after :].count(STEP)


def scores(marks: Iterable[Mark]) -> dict[str, float]:
    """Return the last value of each score that a program reported, by name.

    Times, speeds and counts are no scores. If epochs report a score several times, the result also
    has its best value, if the name tells whether lower or higher values are better. A score that
    only steps report has its last value.
    """
    reported: dict[str, list[float]] = {}
    in_steps: dict[str, list[float]] = {}
    for mark in marks:
        kept = in_steps if mark.event == STEP else reported
        for name, value in mark.values.items() if mark.event != BEGIN else ():
            is_named = mark.event == SCORE and name not in _COUNTS
            if math.isfinite(value) and (is_named or is_score(name)):
                kept.setdefault(name, []).append(value)
    last = {name: values[-1] for name, values in (in_steps | reported).items()}
    for name, values in reported.items():
        higher = better(name)
        if len(values) > 1 and higher is not None:
            last[f"{BEST}{name}"] = (max if higher else min)(values)
    return last


def value_at_begin(marks: Iterable[Mark], name: str) -> float | None:
    """Return the last value of a name in marks of a beginning; None without such a value."""
    values = [m.values[name] for m in marks if m.event == BEGIN and name in m.values]
    return values[-1] if values else None
