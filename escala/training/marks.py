"""The epochs and the steps of a program, from marks of its hook or of its output."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

BEGIN, STEP, EPOCH, SCORE = "begin", "step", "epoch", "score"
ROWS, PARAMETERS = "rows", "parameters"
#: How the steps of a program are known.
HOOK, OUTPUT, WHOLE = "hook", "output", "whole run"


class Mark(NamedTuple):
    """A moment that a program told of.

    Attributes
    ----------
    event : `BEGIN`, before a step; `STEP` and `EPOCH`, at their ends; or `SCORE`.
    time : of the monotonic clock, in seconds.
    values : numbers by name.
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
    rows : of each step; None where the program did not tell.
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


def read_files(folder: Path) -> list[list[Mark]]:
    """Return the marks of each process that used the hook, in the order of their first marks.

    A line that was cut, because its process was killed, is left out.
    """
    found = [_read(path) for path in folder.glob("*.jsonl")]
    return sorted(filter(None, found), key=lambda marks: marks[0].time)


def _read(path: Path) -> list[Mark]:
    marks = []
    for line in path.read_text(errors="replace").splitlines():
        try:
            marks.append(Mark(*json.loads(line)))
        except (ValueError, TypeError):
            continue
    return marks


class Searched:
    """Marks in the lines of an output.

    Parameters
    ----------
    epoch_ends, step_ends : patterns; None searches for none.
    """

    def __init__(self, epoch_ends: str | None, step_ends: str | None):
        asked = {EPOCH: epoch_ends, STEP: step_ends}
        self._patterns = {event: re.compile(text) for event, text in asked.items() if text}
        self._rest = ""
        self.marks: list[Mark] = []

    def feed(self, text: str, time: float) -> None:
        """Search what arrived at a time; a line may end with a return to its beginning."""
        if not self._patterns:
            return
        *lines, self._rest = re.split(r"[\r\n]+", self._rest + text)
        for line in lines:
            self.marks += self._found(line, time)

    def _found(self, line: str, time: float) -> Iterator[Mark]:
        for event, pattern in self._patterns.items():
            for match in pattern.finditer(line):
                yield Mark(event, time, dict(_numbers(match.groupdict())))
                break


def _numbers(groups: dict[str, str | None]) -> Iterator[tuple[str, float]]:
    for name, text in groups.items():
        try:
            yield name, float((text or "").replace(",", ""))
        except ValueError:
            continue


def epochs(marks: Sequence[Mark], started: float) -> list[Epoch]:
    """Return the epochs of one process.

    Steps after the last mark of an epoch, or without any, are an epoch of their own.

    Parameters
    ----------
    started : when the process started, of the same clock.
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
                if name != ROWS:
                    reported.setdefault(name, []).append(value)
    found = {name: values[-1] for name, values in reported.items()}
    for name, values in reported.items():
        if len(values) > 1:
            lower = re.search(r"loss|err|perplexity|mse|mae", name, re.IGNORECASE)
            found[f"best_{name}"] = (min if lower else max)(values)
    return found


def told(marks: Iterable[Mark], name: str) -> float | None:
    """Return a number that marks of a beginning told, None if none did."""
    values = [m.values[name] for m in marks if m.event == BEGIN and name in m.values]
    return values[-1] if values else None
