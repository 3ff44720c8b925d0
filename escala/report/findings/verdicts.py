"""Choose the comparison that decides on a configuration and the one that answers, and word both.

`answers` is the only choice: the first line of the page and of the summary, the report's, and what
to do next all word its result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import pandas as pd

from escala.analysis.verdicts import FASTER, NO_VERDICT, NOT_DISTINGUISHABLE
from escala.report.findings.compared import UNAVAILABLE, Compared, rows_of
from escala.report.findings.words import Tables, with_labels
from escala.report.tables.views import is_among, names_of_rows, same_batch, trained_by_steps


class Answer(NamedTuple):
    """What the comparisons of a dataset and workload say.

    Attributes
    ----------
    row : the row of `compared` that answers.
    rows : all rows of `compared` of the dataset and workload.
    best : the row of the least time among all that take less time than the main reference, also
        references; None if none does.
    """

    row: Compared
    rows: list[Compared]
    best: Compared | None


def compared(tables: Tables) -> pd.DataFrame:
    """Return the rows of `speedup` that answer, with labels: those against the main reference.

    Configurations that are references themselves are left out, unless there are no others. So are
    workloads that are trained by a fit.
    """
    rows = against_main(tables)
    configurations = trained_by_steps(tables)["configurations"]
    references = set(names_of_rows(configurations.dropna(subset=["reference"])))
    is_other = ~is_among(rows, references)
    return rows[is_other] if is_other.any() else rows


def against_main(tables: Tables) -> pd.DataFrame:
    """Return the rows of `speedup` against the main references, with labels."""
    tables = trained_by_steps(tables)
    rows = with_labels(tables["speedup"], tables)
    return rows[rows["reference"] == 1]


def answers(tables: Tables) -> Iterator[Answer]:
    """Yield, for each dataset and workload, the row that answers, and the best of all.

    A decided verdict answers before an undecided one, rows without a verdict come after these, and
    rows that could not be compared last; of equal ones the `fastest` answers. A configuration of
    one rank answers only if there is no other: the question is whether several pay.
    """
    seconds, against = seconds_per_epoch(tables), rows_of(against_main(tables))
    for task, group in compared(tables).groupby(["dataset", "workload"], sort=False):
        rows = rows_of(group)
        first = min(map(_certainty, rows))
        row = fastest([row for row in rows if _certainty(row) == first], seconds)
        faster = [
            each
            for each in against
            if (each.dataset, each.workload) == task
            and each.headline.verdict == FASTER
            # Epochs of other batches have other numbers of updates.
            and same_batch(row, each)
        ]
        yield Answer(row, rows, fastest(faster, seconds) if faster else None)


def answering(tables: Tables) -> list[Compared]:
    """Return the row of each of `answers`."""
    return [answer.row for answer in answers(tables)]


def _certainty(row: Compared) -> tuple:
    found, uncertain = row.headline, (UNAVAILABLE, NO_VERDICT, NOT_DISTINGUISHABLE)
    unknown = bool(pd.isna(found.ratio.value))
    return row.ranks == 1, *(found.verdict == each for each in uncertain), unknown


def fastest(rows: Sequence[Compared], seconds: Mapping[tuple, float]) -> Compared:
    """Return the row of the least time: its ratio multiplied by the time of its reference.

    Each variant may have a reference of its own, and a slow variant can have the smallest ratio.
    The ratio decides if a time is unknown, or if times to a target are compared.

    Parameters
    ----------
    seconds : the result of `seconds_per_epoch`.
    """
    times = [time_of(row, seconds) for row in rows]
    if any(map(math.isnan, times)):
        times = [row.headline.ratio.value for row in rows]
    return min(zip(rows, times, strict=True), key=lambda each: each[1])[0]


def time_of(row: Compared, seconds: Mapping[tuple, float]) -> float:
    """Return the seconds of an epoch of a row, by its ratio; NaN if unknown or of no meaning."""
    found = row.headline
    reference = seconds.get(row.reference_names, math.nan)
    return math.nan if found.to_target else found.ratio.value * reference


def seconds_per_epoch(tables: Tables) -> dict[tuple, float]:
    """Return the known training seconds of an epoch by the values of `CONFIGURATION`."""
    table = tables["configurations"].dropna(subset=["train_seconds_per_epoch"])
    seconds = table["train_seconds_per_epoch"].astype(float)
    return dict(zip(names_of_rows(table), seconds, strict=True))


def shown(tables: Tables) -> set[tuple]:
    """Return the configurations that findings describe: those that answer, and their references."""
    return set().union(*(row.behind for row in answering(tables)))
