"""Words, numbers and names that findings share."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from escala.report.tables.views import is_among, labelled

#: Letters of a reason in a sentence.
REASON_LETTERS = 120
#: Names in a sentence.
NAMES = 3
Tables = Mapping[str, pd.DataFrame]


@dataclass(frozen=True)
class Finding:
    """A sentence, with its evidence.

    Attributes
    ----------
    text : plain text, in which names and reasons are code between backticks.
    table : name of the table that holds its evidence.
    figure : name of the figure that shows it, or None if none does.
    first : whether the first screen tells it besides what it selects of its section.
    task : the task whose answer it is part of, as `BestUse.key` has it; empty of all others.
    spoken : the same in words, without names of configurations.
    """

    text: str
    table: str
    figure: str | None = None
    first: bool = False
    task: str = ""
    spoken: str = field(default="", compare=False)


def with_labels(frame: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """Add the column `label`, which names each row's configuration as far as names differ."""
    return labelled(frame, tables["runs"], ("dataset", "workload", "variant", "network"))


def among(frame: pd.DataFrame, names: Collection[tuple]) -> pd.DataFrame:
    """Return the rows of a table whose configuration is among some."""
    return frame[is_among(frame, names)]


def quote(text: str, letters: int = REASON_LETTERS) -> str:
    """Quote a name from data, or the words of another program, as code on one line.

    A long one loses its middle: the cause of a failure is in the last line of a program.
    """
    line = " ".join(text.replace("`", "'").split())
    if len(line) > letters:
        begin = letters // 2
        line = f"{line[:begin]}…{line[len(line) - letters + begin + 1 :]}"
    return f"`{line}`"


def joined(parts: Iterable[str]) -> str:
    """Join parts of a sentence: `a`, `a and b`, `a, b and c`."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def list_names(names: Collection[str], write: Callable[[str], str] = quote) -> str:
    """Write and join names, and count those beyond the first."""
    first, more = list(map(write, names))[:NAMES], len(names) - NAMES
    return joined([*first, f"{more} more"] if more > 0 else first)


def span(numbers: pd.Series) -> str:
    """Return the smallest and the largest number, or the only one."""
    return "–".join(f"{number:.0f}" for number in sorted({numbers.min(), numbers.max()}))


def a(thing: str) -> str:
    """Return a thing with its indefinite article."""
    return f"an {thing}" if thing[0] in "aeiou" else f"a {thing}"


def of(ratio: float) -> str:
    """Return the word after a ratio: 0.7 *of* the time, and 5.9 *times* the time."""
    return "times" if round(ratio, 2) > 1 else "of"


def significant(number: float, signed: bool = False) -> str:
    """Return a number with three significant digits and without an exponent."""
    # Adding 0 turns -0 into 0.
    return np.format_float_positional(number + 0.0, 3, fractional=False, trim="-", sign=signed)


def sentence(text: str) -> str:
    """Return a text with a capital at its start and a full stop at its end."""
    return f"{text[0].upper()}{text[1:]}."
