"""Guess by which of its lines a program tells of steps or epochs, from what it printed once."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

from escala.programs.marks import EPOCH, STEP
from escala.programs.printed import better, read_counters

#: A counter has so many different values at least, and grows from most lines to the next.
_FEWEST, _MOSTLY = 3, 0.6
#: A pattern holds at most so many letters that stand before the number.
_BEFORE = 24
_NUMBER = re.compile(r"\d[\d,.]*")
#: A part of all steps, in a line that says so.
_PART = re.compile(r"(\d+)\s*/\s*\d+(?=\s*(?:batch|step|iter|update)\w*\b)", re.IGNORECASE)
_ALL = re.compile(r"\s*/\s*\d+")
#: A name of words, and a number that has decimals: a score, or a duration.
_NAMED = re.compile(
    r"([A-Za-z](?:\w|[/ ](?=[A-Za-z]))*?)[\W_]{1,3}([+-]?\d*\.\d+(?:e[+-]?\d+)?|nan\b)"
)


def guess_patterns(text: str) -> dict[str, str]:
    """Return the patterns `step_ends` or `epoch_ends` for an output; none if no line counts.

    A line ends a step if it holds a number that grows, after a word such as `iter`, or in a bar. It
    ends an epoch if it holds the number of an epoch that grows, and a score or a duration: without
    these it may be a header. Where both are there, both are returned.

    Parameters
    ----------
    text : without colours (`escala.programs.printed.text`); bars may end lines by a return.
    """
    lines: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
    for line in re.split(r"[\r\n]+", text):
        counted = _counter_of(line)
        if counted:
            event, place, number, group = counted
            written = _NUMBER.match(line, place)
            of_total = r"\s*/\s*\d+" if _ALL.match(line, written.end()) else ""
            key = event, f"{_pattern_before(line[:place])}{group}{of_total}"
            lines[key].append((number, line))
    patterns = {}
    for event in (STEP, EPOCH):
        counting = {key: n for key, n in lines.items() if key[0] == event and _grows(n)}
        if counting:
            key = max(counting, key=lambda key: len({number for number, _ in counting[key]}))
            _, example = counting[key][-1]
            for score in (_score(example, event), _score("", event)):
                pattern = f"{key[1]}{score}"
                if _grows([(n, line) for n, line in counting[key] if re.search(pattern, line)]):
                    patterns[f"{event}_ends"] = pattern
                    break
    return patterns


def _counter_of(line: str) -> tuple[str, int, float, str] | None:
    """Return the event of a line, where its number stands, the number, and the number's pattern.

    The number in a bar may be one of rows: its pattern does not call it a step.
    """
    counters = read_counters(line)
    if part := _PART.search(line):
        return STEP, part.start(1), float(part[1]), rf"(?P<{STEP}>\d+)"
    if counters.step is not None:
        event, number, group = STEP, counters.step, rf"(?P<{STEP}>\d+)"
    elif counters.bar is not None:
        event, number, group = STEP, counters.bar, r"\d+"
    elif counters.epoch is not None and _NAMED.search(line):
        event, number, group = EPOCH, counters.epoch, rf"(?P<{EPOCH}>\d+)"
    else:
        return None
    # The number may be several times in the line. Take the first that "/ TOTAL" follows, or else
    # the first.
    matches = [m for m in _NUMBER.finditer(line) if _whole(m[0]) == f"{number:.0f}"]
    parts = [match for match in matches if _ALL.match(line, match.end())]
    chosen = next(iter(parts or matches), None)
    return None if chosen is None else (event, chosen.start(), number, group)


def _whole(digits: str) -> str:
    return digits.rstrip(".,").replace(",", "")


def _pattern_before(text: str) -> str:
    """Return a pattern of the end of a text, in which numbers and spaces may be others."""
    end, start = text[-_BEFORE:], "^"
    if len(text) > _BEFORE:  # From a whole word on.
        end, start = re.sub(r"^\S*\s", "", end), ""
    # Odd parts are the separators: a number, spaces, or the drawing of a bar.
    parts = re.split(r"(\d[\d.,]*|\s+|[█▏▎▍▌▋▊▉━╸─#=>.]{2,})", end)
    return start + "".join(
        re.escape(part)
        if number % 2 == 0
        else r"\S+"
        if part[0].isdigit()
        else r"\s+"
        if part.isspace()
        else r"\S*"
        for number, part in enumerate(parts)
    )


def _grows(lines: Sequence[tuple[float, str]]) -> bool:
    """Return whether the numbers of lines are those of a counter, which may begin again."""
    numbers = [number for number, _ in lines]
    if len(set(numbers)) < _FEWEST:
        return False
    return sum(b > a for a, b in pairwise(numbers)) >= _MOSTLY * (len(numbers) - 1)


def _score(line: str, event: str) -> str:
    """Return a pattern of the first loss or other score in a line, which a line of a step may lack.

    The pattern for the end of an epoch requires the score, or else any number with decimals. So it
    does not match the header of an epoch, such as "Epoch 3/10", which has neither.
    """
    for name, _ in _NAMED.findall(line):
        word = re.sub(r"\W+", "_", name.strip()).strip("_").lower()
        if better(name) is not None and word.isidentifier():
            score = rf".*?{re.escape(name.strip())}[\W_]{{1,3}}(?P<{word}>[-+\w.]+)"
            return score if event == EPOCH else f"(?:{score})?"
    return r".*?\d\.\d" if event == EPOCH else ""


def as_options(patterns: Mapping[str, str]) -> str:
    """Return patterns as options of `escala try`."""
    return " ".join(f"--{key.replace('_', '-')} '{text}'" for key, text in patterns.items())
