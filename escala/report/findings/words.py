"""Words, numbers and names that findings share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pandas as pd

from escala.record.comparable import CONFIGURATION
from escala.report.tables.views import labelled

#: The range of n values covers their median with probability 1 - 2 / 2**n: 95 % needs six.
PAIRS_FOR_INTERVAL = 6
Tables = Mapping[str, pd.DataFrame]


def score_differences(scores: pd.DataFrame) -> pd.DataFrame:
    """Return the intervals of differences as `low` and `high`, a row for each `rate` of a class."""
    rates = [
        scores.assign(
            rate=f"the {rate} of " + scores["class"],
            low=scores[f"{rate}_difference_low"],
            high=scores[f"{rate}_difference_high"],
        )
        for rate in ("precision", "recall")
    ]
    return pd.concat(rates, ignore_index=True).dropna(subset=["low", "high"])


def configurations_of(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the names of the configurations in a table, each once."""
    return frame[list(CONFIGURATION)].drop_duplicates()


def with_labels(frame: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """Add the column `label`, which names each row's configuration as far as names differ."""
    return labelled(frame, tables["runs"], ("dataset", "workload", "variant", "network"))


def quoted(reason: str, letters: int = 200) -> str:
    """Quote the words of another program, as code, on one line."""
    text = " ".join(reason.replace("`", "'").split())
    return f"`{text if len(text) <= letters else text[: letters - 1] + '…'}`"


def joined(parts: Iterable[str]) -> str:
    """Join parts of a sentence: `a`, `a and b`, `a, b and c`."""
    *first, last = parts
    return f"{', '.join(first)} and {last}" if first else last


def span(numbers: pd.Series) -> str:
    """Return the smallest and the largest number, or the only one."""
    return " to ".join(f"{number:.0f}" for number in sorted({numbers.min(), numbers.max()}))


def count(number: int, thing: str) -> str:
    """Return a number of things, in the plural but for one."""
    return f"{number} {thing}" if number == 1 else f"{number} {thing}s"
