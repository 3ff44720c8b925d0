"""Choose the comparison that decides on a configuration and the one that answers, and word both."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from escala.analysis.statistics import VALUES_FOR_INTERVAL
from escala.analysis.verdicts import NO_VERDICT, NOT_DISTINGUISHABLE
from escala.record.comparable import CONFIGURATION
from escala.report.findings.words import Tables, in_words, quoted, with_labels
from escala.report.tables.views import trained_by_steps
from escala.runtime.layout import Layout

#: In place of a verdict, where there is no ratio.
UNAVAILABLE = "unavailable"


class Ratio(NamedTuple):
    """A quotient of times with its 95 % interval, or its range; NaN where unknown.

    Attributes
    ----------
    pairs : pairs of runs behind it.
    """

    value: float
    low: float
    high: float
    pairs: int


class Headline(NamedTuple):
    """The comparison that decides on a configuration.

    Attributes
    ----------
    verdict : that of `escala.analysis.verdicts`, or `UNAVAILABLE`.
    visible : the smallest decrease that it could have shown; NaN if unknown.
    ratio : of the times.
    to_target : whether the times are those to the target accuracy, and not those of an epoch.
    """

    verdict: str
    visible: float
    ratio: Ratio
    to_target: bool


def headline(row) -> Headline:
    """Return the comparison that decides on a row of the table `speedup`.

    With equal batches it is that of an epoch. With different batches, epochs have different numbers
    of updates, and the time to the target accuracy decides.
    """
    nothing = Ratio(math.nan, math.nan, math.nan, 0)
    if row.kind == "unavailable":
        return Headline(UNAVAILABLE, math.nan, nothing, False)
    if row.global_batch == row.reference_global_batch:
        return Headline(row.verdict, row.visible_decrease, of_epochs(row), False)
    if row.time_to_target_kind == "unavailable":
        return Headline(NO_VERDICT, math.nan, nothing, False)
    to_target = Ratio(
        row.time_to_target_ratio,
        row.time_to_target_ratio_low,
        row.time_to_target_ratio_high,
        row.time_to_target_pairs,
    )
    return Headline(row.verdict, row.visible_decrease, to_target, True)


def of_epochs(row) -> Ratio:
    """Return the ratio of the times of an epoch."""
    return Ratio(row.ratio, row.ratio_low, row.ratio_high, row.pairs)


def in_brief(found: Headline) -> str:
    """Return the verdict in words, with the number of pairs if they are too few for one."""
    pairs = found.ratio.pairs
    if found.verdict == NO_VERDICT and 0 < pairs < VALUES_FOR_INTERVAL:
        return f"{NO_VERDICT} from {in_words(pairs)} pair{'' if pairs == 1 else 's'}"
    return found.verdict


def could_have_seen(found: Headline) -> str:
    """Return which decrease could have been seen, if none was; empty if that is not known."""
    if found.verdict != NOT_DISTINGUISHABLE or pd.isna(found.visible):
        return ""
    return f"could have seen {math.ceil(100 * found.visible)} %"


def compared(tables: Tables) -> pd.DataFrame:
    """Return the rows of `speedup` that answer, with labels: those against the main reference.

    Configurations that are references themselves are left out, unless there are no others. So are
    workloads that are trained by a fit.
    """
    tables = trained_by_steps(tables)
    rows = with_labels(tables["speedup"], tables)
    references = set(names_of_rows(tables["configurations"].dropna(subset=["reference"])))
    is_other = pd.Series([each not in references for each in names_of_rows(rows)], rows.index)
    rows = rows[is_other] if is_other.any() else rows
    return rows[rows["reference"] == 1]


def answering(tables: Tables) -> Iterator:
    """Yield, for each dataset and workload, the row of `compared` that answers: the `fastest`.

    Rows without a verdict come after the others, and rows that could not be compared come last. A
    configuration of one rank answers only if there is no other: the question is whether several
    pay.
    """
    seconds = seconds_per_epoch(tables)
    for _, group in compared(tables).groupby(["dataset", "workload"], sort=False):
        rows = list(group.itertuples())
        first = min(map(_certainty, rows))
        yield fastest([row for row in rows if _certainty(row) == first], seconds)


def _certainty(row) -> tuple[bool, ...]:
    found = headline(row)
    unknown = bool(pd.isna(found.ratio.value))
    return row.ranks == 1, found.verdict == UNAVAILABLE, found.verdict == NO_VERDICT, unknown


def fastest(rows: Sequence, seconds: Mapping[tuple, float]):
    """Return the row of the least time: its ratio multiplied by the time of its reference.

    Each variant may have a reference of its own, and a slow variant can have the smallest ratio.
    The ratio decides if a time is unknown, or if times to a target are compared.

    Parameters
    ----------
    seconds : the result of `seconds_per_epoch`.
    """
    times = [time_of(row, seconds) for row in rows]
    if any(map(math.isnan, times)):
        times = [headline(row).ratio.value for row in rows]
    return min(zip(rows, times, strict=True), key=lambda each: each[1])[0]


def time_of(row, seconds: Mapping[tuple, float]) -> float:
    """Return the seconds of an epoch of a row, by its ratio; NaN if unknown or of no meaning."""
    found = headline(row)
    reference = seconds.get(names_of_reference(row), math.nan)
    return math.nan if found.to_target else found.ratio.value * reference


def seconds_per_epoch(tables: Tables) -> dict[tuple, float]:
    """Return the known training seconds of an epoch by the values of `CONFIGURATION`."""
    table = tables["configurations"].dropna(subset=["train_seconds_per_epoch"])
    seconds = table["train_seconds_per_epoch"].astype(float)
    return dict(zip(names_of_rows(table), seconds, strict=True))


def shown(tables: Tables) -> set[tuple]:
    """Return the configurations that findings describe: those that answer, and their references."""
    rows = list(answering(tables))
    return {of(row) for row in rows for of in (own_names, names_of_reference)}


def own_names(row) -> tuple:
    """Return the values of `CONFIGURATION` of a row."""
    return tuple(getattr(row, part) for part in CONFIGURATION)


def names_of_reference(row) -> tuple:
    """Return the values of `CONFIGURATION` of a row's reference."""
    return (*own_names(row)[:2], *(getattr(row, f"reference_{part}") for part in CONFIGURATION[2:]))


def names_of_rows(frame: pd.DataFrame) -> Iterator[tuple]:
    """Yield the values of `CONFIGURATION` of each row of a table."""
    return frame[list(CONFIGURATION)].itertuples(index=False, name=None)


def processes(row, prefix: str = "") -> str:
    """Describe a row's configuration by its processes, and a single one also by its cores.

    With the prefix `reference_`, describe the reference of the row.
    """
    layout, cores = Layout.parse(getattr(row, f"{prefix}layout")), getattr(row, f"{prefix}cores")
    if layout.ranks > 1:
        return f"{in_words(layout.ranks)} processes"
    several = f" with {in_words(int(cores))} cores" if pd.notna(cores) and cores > 1 else ""
    return f"one process{several}"


def reference_of(row, several: bool = False) -> str:
    """Describe the reference of a row by its processes, and if needed by its label.

    That is the case if its variant is another, or if `several` main references are compared with.
    """
    name = processes(row, "reference_")
    if row.reference_variant == row.variant and not several:
        return name
    return f"{name} ({quoted(row.reference_label)})"


def take(row) -> str:
    """Return the verb of a row's processes."""
    return "takes" if row.ranks == 1 else "take"


def interval(ratio: Ratio) -> str:
    """Return the interval of a ratio and its pairs in brackets, or with too few pairs the range."""
    if ratio.pairs == 1:
        return ""
    ends = "–".join("unknown" if pd.isna(end) else f"{end:.2f}" for end in (ratio.low, ratio.high))
    if ratio.pairs < VALUES_FOR_INTERVAL:
        return f" (range {ends})"
    return f" ({ends}, {ratio.pairs} pairs)"
