"""The epochs and the steps of a program, from marks of its hook or of its output."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from escala.core.errors import Failed
from escala.core.readable import counted
from escala.training import printed

BEGIN, STEP, EPOCH, SCORE = "begin", "step", "epoch", "score"
ROWS, PARAMETERS = "rows", "parameters"
EVENTS = (BEGIN, STEP, EPOCH, SCORE)
#: How the steps of a program are known.
HOOK, OUTPUT, WHOLE = "hook", "output", "whole run"
#: Before the name of a score whose best value is told alongside the last.
BEST = "best_"
#: Numbers of a mark that are no scores.
_COUNTS = {ROWS, EPOCH, STEP}
#: The word for what is no number, in any line.
_NAN = re.compile(r"(?<!\w)nan(?!\w)", re.IGNORECASE)


class Mark(NamedTuple):
    """A moment that a program told of: `time` by the monotonic clock, and numbers by name.

    The event is `BEGIN`, before a step; `STEP` and `EPOCH`, at their ends; or `SCORE`.
    """

    event: str
    time: float
    values: dict[str, float]


@dataclass
class Epoch:
    """An epoch of one process.

    Attributes
    ----------
    began, ended : of the monotonic clock. Without a mark of its beginning, an epoch begins as the
        one before ends, and the first one as the process starts.
    steps : the end of each step, and its duration in seconds.
    rows : their number in each step; None if the program did not tell it.
    train_seconds : of its steps, without what lies between the last of them and the next beginning.
    values : what its end reported.
    marked : whether its beginning was marked.
    """

    began: float
    ended: float = 0.0
    steps: list[float] = field(default_factory=list)
    rows: list[float | None] = field(default_factory=list)
    train_seconds: float = 0.0
    values: dict[str, float] = field(default_factory=dict)
    marked: bool = False


def read_files(folder: Path) -> tuple[list[list[Mark]], int]:
    """Return the marks of each process that used the hook, in the order of their first marks.

    The second value is the number of whole lines that are no marks. The last line of a process may
    be cut.
    """
    found = [_read(path) for path in folder.glob("*.jsonl")]
    told = sorted(filter(None, (marks for marks, _ in found)), key=lambda marks: marks[0].time)
    return told, sum(unread for _, unread in found)


def _read(path: Path) -> tuple[list[Mark], int]:
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    found = [_mark(line) for line in lines]
    return list(filter(None, found)), found[:-1].count(None)


def _mark(line: str) -> Mark | None:
    """Return the mark of a line, None if it holds none."""
    try:
        event, time, values = json.loads(line)
        values = {name: float(value) for name, value in values.items()}
        return Mark(event, float(time), values) if event in EVENTS else None
    except (ValueError, TypeError, AttributeError):
        return None


def flowing(marks: Sequence[Mark]) -> list[Mark]:
    """Return marks of lines that arrived one by one, without steps of which most arrived at once.

    A program of which the ends of several epochs arrived at once is `Failed`.
    """
    times = {event: [m.time for m in marks if m.event == event] for event in (STEP, EPOCH)}
    distinct = {event: len(set(found)) for event, found in times.items()}
    if distinct[EPOCH] < len(times[EPOCH]):
        raise Failed(
            "the ends of several epochs arrived at once: the program holds its output back. "
            "Remedy: terminal: true, or let it flush each line"
        )
    held = distinct[STEP] < len(times[STEP]) / 2
    return [mark for mark in marks if not (held and mark.event == STEP)]


def require_order(
    by_process: Iterable[Sequence[Mark]], started: float, ended: float | None
) -> None:
    """Refuse marks whose times or numbers of epochs do not grow, as `Failed`.

    The program `started` and `ended` by the clock of the marks; an end of None is not checked.
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


class Searched:
    """Marks in the lines of an output, found by patterns; None searches for none.

    Attributes
    ----------
    marks : those of the lines that have ended.
    notes : at the end, what was not searched or not read, for the user.
    """

    def __init__(self, epoch_ends: str | None, step_ends: str | None):
        # A line that ends an epoch may end its last step.
        asked = {STEP: step_ends, EPOCH: epoch_ends}
        self.patterns = {event: re.compile(text) for event, text in asked.items() if text}
        self.marks: list[Mark] = []
        self.notes: list[str] = []
        self._lines, self._numbers = printed.Lines(), printed.Numbers(_COUNTS)
        self._searching, self._first_nan, self._nans = "", "", 0

    @property
    def searching(self) -> tuple[str, str]:
        """The key and the text of the pattern that was searched last."""
        return f"{self._searching}_ends", self.patterns[self._searching].pattern

    def feed(self, data: bytes, time: float) -> None:
        """Search what arrived at a time."""
        for line, ended in self._lines.feed(data, time):
            self._search(line, ended)

    def end(self) -> None:
        """Search what arrived last, which may be a line without an end."""
        for line, ended in self._lines.end():
            self._search(line, ended)
        self.notes = self._numbers.settle()
        if cut := self._lines.cut:
            self.notes.append(
                f"{counted(cut, 'line')} of its output had more than {2 * printed.LONGEST} "
                f"characters, of which the first and the last {printed.LONGEST} were searched"
            )
        if self._nans:
            self.notes.append(
                f"{counted(self._nans, 'line')} of its output said nan where no number is read; "
                f"the first: {self._first_nan.strip()[:80]!r}"
            )

    def _search(self, line: str, time: float) -> None:
        says_nan = bool(_NAN.search(line))
        for event, pattern in self.patterns.items():
            self._searching = event
            found = printed.search(pattern, line)
            if found is not None:
                _, numbers = found
                self.marks.append(Mark(event, time, self._numbers.values(numbers)))
                says_nan &= not any(_NAN.search(number.text) for number in numbers.values())
        if says_nan:
            self._first_nan = self._first_nan or line
            self._nans += 1


def epochs(marks: Sequence[Mark], started: float) -> list[Epoch]:
    """Return the epochs of one process, which `started` by the clock of the marks.

    Steps after the last mark of an epoch, or without any mark, form one more epoch.
    """
    found: list[Epoch] = []
    current, segment, last = Epoch(started), started, None

    def close(end: float) -> None:
        nonlocal segment
        current.train_seconds += max(0.0, end - segment)
        segment = end

    for mark in marks:
        if mark.event == BEGIN:
            if current.steps and last is not None:
                close(last)
            elif not current.marked:
                current.began, current.marked = mark.time, True
            segment = last = mark.time
        elif mark.event == STEP:
            current.steps.append(mark.time - (segment if last is None else last))
            current.rows.append(mark.values.get(ROWS))
            last = mark.time
        elif mark.event == EPOCH:
            close(last if current.steps else mark.time)
            current.ended, current.values = mark.time, mark.values
            found.append(current)
            current, segment, last = Epoch(mark.time), mark.time, None
    if current.steps:
        close(last)
        current.ended = last
        found.append(current)
    return found


def scores(marks: Iterable[Mark]) -> dict[str, float]:
    """Return the last value of each number that a program reported of itself, by name.

    A number that epochs report several times also has its best value: the lowest of a loss or an
    error, the highest of any other.
    """
    reported: dict[str, list[float]] = {}
    for mark in marks:
        if mark.event in (EPOCH, SCORE):
            for name, value in mark.values.items():
                if name not in _COUNTS and math.isfinite(value):
                    reported.setdefault(name, []).append(value)
    found = {name: values[-1] for name, values in reported.items()}
    for name, values in reported.items():
        if len(values) > 1:
            lower = re.search(r"loss|err|perplexity|mse|mae", name, re.IGNORECASE)
            found[f"{BEST}{name}"] = (min if lower else max)(values)
    return found


def told(marks: Iterable[Mark], name: str) -> float | None:
    """Return a number that marks of a beginning told, None if none did."""
    values = [m.values[name] for m in marks if m.event == BEGIN and name in m.values]
    return values[-1] if values else None
