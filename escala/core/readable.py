"""Numbers in the form in which people read and write them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from numbers import Real

from escala.core.errors import InputError

UNAVAILABLE = "unavailable"
#: A smaller number is shown as `< 0.0001`.
_LEAST = 1e-4


def with_noun(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: `1 run`, `2 runs`. An irregular plural is given as `many`."""
    return f"{number} {one if number == 1 else many or f'{one}s'}"


def align(rows: Sequence[Sequence[object]]) -> Iterator[str]:
    """Yield the rows of a table as lines with aligned columns; None is a dash."""
    cells = [list(map(_cell, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        line = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(line).rstrip()


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def name_first(names: Sequence[str], most: int = 3) -> str:
    """Return the first names of several, and the number of further names.

    A file may have any name: a character that is not printable is written as in Python.
    """
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(n if n.isprintable() else repr(n)[1:-1] for n in names[:most]) + more


def size(number: float) -> str:
    """Return a number of bytes in readable form: `512 bytes`, `1.5 MiB`, `2.0 GiB`."""
    for exponent, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number >= 2**exponent:
            return f"{number / 2**exponent:.1f} {unit}"
    return f"{number:.0f} bytes"


def duration(seconds: float) -> str:
    """Return a duration in readable form: `42 s`, `3 min 5 s`, `2 h 4 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def span(seconds: float) -> str:
    """Return a duration in readable form; a short one with two digits: `2.4 s`."""
    return f"{seconds:.2g} s" if seconds < 10 else duration(seconds)


def in_percent(level: float) -> str:
    """Return a probability in per cent with at most one decimal: `95 %`, `98.4 %`."""
    return f"{round(100 * level, 1):g} %"


def in_words(number: int) -> str:
    """Return a number up to ten as a word, and a larger one as digits."""
    words = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    return words[number] if number < len(words) else str(number)


_RATE = re.compile(r"([1-9][0-9]{0,4})(kbit|mbit|gbit)")
_BITS = {"kbit": 10**3, "mbit": 10**6, "gbit": 10**9}


def bits_per_second(rate: str) -> int:
    """Return a rate such as `100mbit` as a number.

    Raises
    ------
    InputError : the text is not a rate.
    """
    match = _RATE.fullmatch(rate)
    if match is None:
        raise InputError(
            "rate", rate, "is not a rate", "write it as 10mbit, 100mbit or 1gbit, or write native"
        )
    return int(match[1]) * _BITS[match[2]]


def number(value: object, form: str | None = None) -> str:
    """Return a number with three significant digits and no exponent, or `unavailable`.

    Parameters
    ----------
    value : unknown if it is None, NaN or NA.
    form : another format, such as `.2f`.
    """
    if not isinstance(value, Real) or value != value:
        return UNAVAILABLE
    if form or not value:
        return format(float(value), form or ".3g")
    if abs(value) < _LEAST:
        return f"< {_LEAST:f}".rstrip("0")
    digits = max(0, 2 - int(f"{abs(value):e}".rpartition("e")[2]))
    return f"{value:.{digits}f}"


def with_interval(
    value: object,
    low: object,
    high: object,
    form: str | None = None,
    unit: str = "",
    kind: str = "",
) -> str:
    """Return a number with its interval: `0.53 (0.48–0.60)`, `1.8 ms (-3.2 to 6.8)`.

    The interval is left out if one of its bounds is unknown.

    Parameters
    ----------
    form : see `number`.
    unit, kind : words after the number, and before the bounds.
    """
    text, *ends = (number(bound, form) for bound in (value, low, high))
    if text == UNAVAILABLE:
        return text
    between = " to " if ends[0].startswith("-") else "–"
    return text + unit + (f" ({kind}{between.join(ends)})" if UNAVAILABLE not in ends else "")


def milliseconds(seconds: float) -> str:
    """Return a time in ms with three digits."""
    return f"{float(f'{seconds * 1e3:.3g}'):g} ms"
