"""A comparison with a reference: a row of `speedup`, and what decides on it, in words."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, NamedTuple

import pandas as pd

from escala.analysis.statistics import VALUES_FOR_INTERVAL, matches_needed
from escala.analysis.verdicts import (
    NO_VERDICT,
    NOT_DISTINGUISHABLE,
    Ratio,
    as_best,
    over_sessions,
    simultaneous_level,
)
from escala.core.readable import in_words
from escala.record.comparable import CONFIGURATION
from escala.report.findings.words import Tables
from escala.report.tables.views import same_batch, unit

#: In place of a verdict, where there is no ratio.
UNAVAILABLE = "unavailable"


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
        """The fewest matches of one session whose interval reaches the level."""
        return max(VALUES_FOR_INTERVAL, matches_needed(simultaneous_level(self.best_of)))

    @property
    def brief(self) -> str:
        """The verdict in words, with the number of matches if they are too few for one."""
        matches = self.ratio.matches
        if self.verdict == NO_VERDICT and 0 < matches < VALUES_FOR_INTERVAL:
            return f"{NO_VERDICT} from {in_words(matches)} match{'' if matches == 1 else 'es'}"
        if self.cannot_tell_best:
            return f"{NO_VERDICT} on the best of {in_words(self.best_of)}"
        return self.verdict

    @property
    def cannot_tell_best(self) -> bool:
        """Whether there are matches for a verdict on one configuration, and not on the best."""
        return (
            self.verdict == NO_VERDICT and VALUES_FOR_INTERVAL <= self.ratio.matches < self.needed
        )

    @property
    def when(self) -> str:
        """The sessions that the interval is of."""
        if self.is_over_sessions:
            return f"over {in_words(self.sessions)} sessions"
        return "in this call" if self.sessions == 1 else f"in {in_words(self.sessions)} calls"

    @property
    def could_have_seen(self) -> str:
        """The decrease that could have been seen, if none was; empty if that is not known."""
        if self.smallest_seen is None:
            return ""
        return f"could have seen {self.smallest_seen} %"

    @property
    def smallest_seen(self) -> int | None:
        """The smallest decrease that could have been seen, in percent, if none was."""
        if self.verdict != NOT_DISTINGUISHABLE or pd.isna(self.visible):
            return None
        return math.ceil(100 * self.visible)


@dataclass(frozen=True)
class Compared:
    """A row of the table `speedup`, with labels; numbers are NaN or NA where they are unknown.

    Its `row` has all columns, also those that `escala.analysis.verdicts` judges by.
    """

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
    work: float
    global_batch: int
    reference_global_batch: int
    oversubscribed: bool
    same_nodes: bool
    seconds_apart: float
    node_spread: float
    matches: int
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
    row: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def names(self) -> tuple:
        """The values of `CONFIGURATION`."""
        return tuple(getattr(self, part) for part in CONFIGURATION)

    @property
    def reference_names(self) -> tuple:
        """The values of `CONFIGURATION` of the reference."""
        return names_of_reference(self)

    @property
    def behind(self) -> set[tuple]:
        """The names of the configuration and of its reference."""
        return {self.names, self.reference_names}

    @property
    def epochs(self) -> Ratio:
        """The ratio of the times of an epoch."""
        return Ratio(self.ratio, self.ratio_low, self.ratio_high, self.matches)

    @property
    def is_weak(self) -> bool:
        """Return whether an epoch has more rows than one of the reference: weak scaling."""
        return self.work != 1

    def unit(self, tables: Tables) -> str:
        """Return the word for what times are compared of: `row` with weak scaling."""
        return "row" if self.is_weak else unit(tables, self.workload)

    @cached_property
    def headline(self) -> Headline:
        """The comparison that decides, as the best of several.

        It is that over sessions, or with too few sessions that of the current runs.
        """
        found = self.in_call
        judged = None if found.verdict == UNAVAILABLE else over_sessions(self.row)
        if judged is None:
            return found
        verdict, ratio, sessions = judged
        return found._replace(
            verdict=verdict, visible=math.nan, ratio=ratio, sessions=sessions, is_over_sessions=True
        )

    @property
    def in_call(self) -> Headline:
        """The comparison of the current runs, as the best of those it is selected from."""
        found = self.on_its_own
        if found.verdict == UNAVAILABLE:
            return found
        verdict, ratio = as_best(found.verdict, found.ratio, self.row)
        best_of = 1 if pd.isna(self.best_of) else int(self.best_of)
        return found._replace(verdict=verdict, ratio=ratio, best_of=best_of)

    @property
    def on_its_own(self) -> Headline:
        """The comparison of the current runs with its own 95 % interval, as tables show it.

        With equal batches it is that of an epoch. With different batches, epochs have different
        numbers of updates, and the time to the target accuracy decides.
        """
        nothing = Ratio(math.nan, math.nan, math.nan, 0)
        if self.kind == "unavailable":
            return Headline(UNAVAILABLE, math.nan, nothing, False)
        if same_batch(self):
            return Headline(self.verdict, self.visible_decrease, self.epochs, False, self.sessions)
        if self.time_to_target_kind == "unavailable":
            return Headline(NO_VERDICT, math.nan, nothing, False)
        to_target = Ratio(
            self.time_to_target_ratio,
            self.time_to_target_ratio_low,
            self.time_to_target_ratio_high,
            self.time_to_target_pairs,
        )
        return Headline(self.verdict, self.visible_decrease, to_target, True, self.sessions)


def rows_of(frame: pd.DataFrame) -> list[Compared]:
    """Return the rows of `speedup` with labels."""
    *columns, _ = (each.name for each in fields(Compared))
    rows = (dict(zip(frame, row, strict=True)) for row in frame.itertuples(index=False, name=None))
    return [Compared(*(row[name] for name in columns), row) for row in rows]


def names_of_reference(row) -> tuple:
    """Return the values of `CONFIGURATION` of the reference of a row of any table."""
    parts = (getattr(row, f"reference_{part}") for part in CONFIGURATION[2:])
    return row.dataset, row.workload, *parts


def interval(ratio: Ratio) -> str:
    """Return the interval of a ratio and its matches in brackets, or with too few the range.

    The interval of the best of several says so.
    """
    if ratio.matches == 1:
        return ""
    ends = "–".join("unknown" if pd.isna(end) else f"{end:.2f}" for end in (ratio.low, ratio.high))
    if ratio.matches < VALUES_FOR_INTERVAL:
        return f" (range {ends})"
    best = f", best of {ratio.best_of}" if ratio.best_of > 1 else ""
    return f" ({ends}, {ratio.matches} matches{best})"
