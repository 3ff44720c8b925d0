"""Choose the comparison that decides on a configuration and the one that answers, and word both.

`answers` is the only choice: the first line of the page and of the summary, the report's, and what
to do next all word its result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import pandas as pd

from escala.analysis import decisive
from escala.analysis.decisive import Ratio
from escala.analysis.statistics import VALUES_FOR_INTERVAL, matches_needed
from escala.analysis.verdicts import FASTER, NO_VERDICT, NOT_DISTINGUISHABLE, simultaneous_level
from escala.record.comparable import CONFIGURATION
from escala.report.findings.words import Tables, in_words, quoted, with_labels
from escala.report.tables.views import is_among, names_of_rows, same_batch, trained_by_steps
from escala.runtime.layout import Layout

#: In place of a verdict, where there is no ratio.
UNAVAILABLE = "unavailable"


@dataclass(frozen=True)
class Compared:
    """A row of the table `speedup`, with labels; numbers are NaN or NA where they are unknown."""

    dataset: str
    workload: str
    strategy: str
    layout: str
    variant: str
    network: str
    reference: int
    reference_strategy: str
    reference_layout: str
    reference_variant: str
    reference_network: str
    label: str
    reference_label: str
    kind: str
    reason: str
    ranks: int
    cores: int
    reference_cores: int
    global_batch: int
    reference_global_batch: int
    oversubscribed: bool
    other_hosts: bool
    pairs: int
    sessions: int
    verdict: str
    visible_decrease: float
    ratio: float
    ratio_low: float
    ratio_high: float
    efficiency: float
    efficiency_low: float
    efficiency_high: float
    target_accuracy: float
    time_to_target_kind: str
    time_to_target_pairs: int
    time_to_target_ratio: float
    time_to_target_ratio_low: float
    time_to_target_ratio_high: float
    best_of: int
    best_verdict: str
    best_low: float
    best_high: float
    sessions_judged: int
    sessions_pairs: int
    sessions_verdict: str
    sessions_ratio: float
    sessions_ratio_low: float
    sessions_ratio_high: float
    best_sessions_verdict: str
    best_sessions_low: float
    best_sessions_high: float


class Headline(NamedTuple):
    """The comparison that decides on a configuration.

    Attributes
    ----------
    verdict : that of `escala.analysis.verdicts`, or `UNAVAILABLE`.
    visible : the smallest decrease that it could have shown; NaN if unknown.
    ratio : of the times.
    to_target : whether the times are those to the target accuracy, and not those of an epoch.
    sessions : of these runs.
    is_over_sessions : whether the interval covers how sessions differ. If not, it is of these
        sessions only, mostly of one.
    best_of : configurations from which the best is selected.
    """

    verdict: str
    visible: float
    ratio: Ratio
    to_target: bool
    sessions: int = 1
    is_over_sessions: bool = False
    best_of: int = 1

    @property
    def needed(self) -> int:
        """The fewest pairs of one session whose interval reaches the level."""
        return max(VALUES_FOR_INTERVAL, matches_needed(simultaneous_level(self.best_of)))


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


def rows_of(frame: pd.DataFrame) -> list[Compared]:
    """Return the rows of `speedup` with labels."""
    columns = [each.name for each in fields(Compared)]
    return [Compared(*row) for row in frame[columns].itertuples(index=False, name=None)]


def headline(row: Compared) -> Headline:
    """Return the comparison that decides on a row, as the best of several.

    It is that over sessions, or with too few sessions that of the current runs.
    """
    found = in_call(row)
    judged = None if found.verdict == UNAVAILABLE else decisive.over_sessions(vars(row))
    if judged is None:
        return found
    verdict, ratio, sessions = judged
    return found._replace(
        verdict=verdict, visible=math.nan, ratio=ratio, sessions=sessions, is_over_sessions=True
    )


def in_call(row: Compared) -> Headline:
    """Return the comparison of the current runs, as the best of those it is selected from."""
    found = on_its_own(row)
    if found.verdict == UNAVAILABLE:
        return found
    verdict, ratio = decisive.as_best(found.verdict, found.ratio, vars(row))
    best_of = 1 if pd.isna(row.best_of) else int(row.best_of)
    return found._replace(verdict=verdict, ratio=ratio, best_of=best_of)


def on_its_own(row: Compared) -> Headline:
    """Return the comparison of the current runs with its own 95 % interval, as tables show it.

    With equal batches it is that of an epoch. With different batches, epochs have different numbers
    of updates, and the time to the target accuracy decides.
    """
    nothing = Ratio(math.nan, math.nan, math.nan, 0)
    if row.kind == "unavailable":
        return Headline(UNAVAILABLE, math.nan, nothing, False)
    if same_batch(row):
        return Headline(row.verdict, row.visible_decrease, of_epochs(row), False, row.sessions)
    if row.time_to_target_kind == "unavailable":
        return Headline(NO_VERDICT, math.nan, nothing, False)
    to_target = Ratio(
        row.time_to_target_ratio,
        row.time_to_target_ratio_low,
        row.time_to_target_ratio_high,
        row.time_to_target_pairs,
    )
    return Headline(row.verdict, row.visible_decrease, to_target, True, row.sessions)


def of_epochs(row: Compared) -> Ratio:
    """Return the ratio of the times of an epoch."""
    return Ratio(row.ratio, row.ratio_low, row.ratio_high, row.pairs)


def in_brief(found: Headline) -> str:
    """Return the verdict in words, with the number of pairs if they are too few for one."""
    pairs = found.ratio.pairs
    if found.verdict == NO_VERDICT and 0 < pairs < VALUES_FOR_INTERVAL:
        return f"{NO_VERDICT} from {in_words(pairs)} pair{'' if pairs == 1 else 's'}"
    if cannot_tell_best(found):
        return f"{NO_VERDICT} on the best of {in_words(found.best_of)}"
    return found.verdict


def cannot_tell_best(found: Headline) -> bool:
    """Return whether there are pairs for a verdict on one configuration, and not on the best."""
    pairs = found.ratio.pairs
    return found.verdict == NO_VERDICT and VALUES_FOR_INTERVAL <= pairs < found.needed


def when(found: Headline) -> str:
    """Tell of which sessions an interval is."""
    if found.is_over_sessions:
        return f"over {in_words(found.sessions)} sessions"
    return "in this call" if found.sessions == 1 else f"in {in_words(found.sessions)} calls"


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
            and headline(each).verdict == FASTER
            # Epochs of other batches have other numbers of updates.
            and same_batch(row, each)
        ]
        yield Answer(row, rows, fastest(faster, seconds) if faster else None)


def answering(tables: Tables) -> list[Compared]:
    """Return the row of each of `answers`."""
    return [answer.row for answer in answers(tables)]


def _certainty(row: Compared) -> tuple:
    found, uncertain = headline(row), (UNAVAILABLE, NO_VERDICT, NOT_DISTINGUISHABLE)
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
        times = [headline(row).ratio.value for row in rows]
    return min(zip(rows, times, strict=True), key=lambda each: each[1])[0]


def time_of(row: Compared, seconds: Mapping[tuple, float]) -> float:
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
    return set().union(*map(behind, answering(tables)))


def behind(row: Compared) -> set[tuple]:
    """Return the names of a row's configuration and of its reference."""
    return {own_names(row), names_of_reference(row)}


def own_names(row) -> tuple:
    """Return the values of `CONFIGURATION` of a row of any table."""
    return tuple(getattr(row, part) for part in CONFIGURATION)


def names_of_reference(row) -> tuple:
    """Return the values of `CONFIGURATION` of a row's reference."""
    return (*own_names(row)[:2], *(getattr(row, f"reference_{part}") for part in CONFIGURATION[2:]))


def processes(row: Compared, prefix: str = "") -> str:
    """Describe a row's configuration by its processes, and a single one also by its cores.

    With the prefix `reference_`, describe the reference of the row.
    """
    layout, cores = Layout.parse(getattr(row, f"{prefix}layout")), getattr(row, f"{prefix}cores")
    if layout.ranks > 1:
        return f"{in_words(layout.ranks)} processes"
    several = f" with {in_words(int(cores))} cores" if pd.notna(cores) and cores > 1 else ""
    return f"one process{several}"


def reference_of(row: Compared, several: bool = False) -> str:
    """Describe the reference of a row by its processes, and if needed by its label.

    That is the case if its variant is another, or if `several` main references are compared with.
    """
    name = processes(row, "reference_")
    if row.reference_variant == row.variant and not several:
        return name
    return f"{name} ({quoted(row.reference_label)})"


def take(row: Compared) -> str:
    """Return the verb of a row's processes."""
    return "takes" if row.ranks == 1 else "take"


def interval(ratio: Ratio) -> str:
    """Return the interval of a ratio and its pairs in brackets, or with too few pairs the range.

    The interval of the best of several says so.
    """
    if ratio.pairs == 1:
        return ""
    ends = "–".join("unknown" if pd.isna(end) else f"{end:.2f}" for end in (ratio.low, ratio.high))
    if ratio.pairs < VALUES_FOR_INTERVAL:
        return f" (range {ends})"
    best = f", best of {ratio.best_of}" if ratio.best_of > 1 else ""
    return f" ({ends}, {ratio.pairs} pairs{best})"
