"""A comparison with a reference: a row of `speedup`, and what decides on it, in words."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import NamedTuple

import pandas as pd

from escala.analysis.comparable import CONFIGURATION
from escala.analysis.statistics import VALUES_FOR_INTERVAL
from escala.analysis.verdicts import NO_VERDICT, Ratio
from escala.core.readable import counted
from escala.report.tables.views import same_batch

#: In place of a verdict, where there is no ratio.
UNAVAILABLE = "unavailable"


class Headline(NamedTuple):
    """The comparison that decides on a configuration and a reference.

    Attributes
    ----------
    verdict : that of `escala.analysis.verdicts`, or `UNAVAILABLE`.
    ratio : of the times.
    to_target : whether the times are those to the target accuracy, and not those of an epoch.
    """

    verdict: str
    ratio: Ratio
    to_target: bool

    @property
    def brief(self) -> str:
        """The verdict in words, with the number of paired runs if they are too few for one."""
        if self.verdict == NO_VERDICT and 0 < self.ratio.matches < VALUES_FOR_INTERVAL:
            return f"{NO_VERDICT} from {counted(self.ratio.matches, 'paired run')}"
        return self.verdict


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
    work: float
    global_batch: int
    reference_global_batch: int
    oversubscribed: bool
    same_nodes: bool
    seconds_apart: float
    node_spread: float
    matches: int
    disturbed_matches: int
    stays_disturbed: bool
    verdict: str
    ratio: float
    ratio_low: float
    ratio_high: float
    efficiency: float
    time_to_target_kind: str
    time_to_target_matches: int
    time_to_target_ratio: float
    time_to_target_ratio_low: float
    time_to_target_ratio_high: float

    @property
    def names(self) -> tuple:
        """The values of `CONFIGURATION`."""
        return tuple(getattr(self, part) for part in CONFIGURATION)

    @property
    def reference_names(self) -> tuple:
        """The values of `CONFIGURATION` of the reference."""
        return names_of_reference(self)

    @property
    def epochs(self) -> Ratio:
        """The ratio of the times of an epoch."""
        return Ratio(self.ratio, self.ratio_low, self.ratio_high, self.matches)

    @property
    def is_weak(self) -> bool:
        """Return whether an epoch has more rows than one of the reference: weak scaling."""
        return self.work != 1

    @property
    def headline(self) -> Headline:
        """The comparison that decides.

        With equal batches it is that of an epoch. With different batches, epochs have different
        numbers of updates, and the time to the target accuracy decides.
        """
        nothing = Ratio(math.nan, math.nan, math.nan, 0)
        if self.kind == "unavailable":
            return Headline(UNAVAILABLE, nothing, False)
        if same_batch(self):
            return Headline(self.verdict, self.epochs, False)
        if self.time_to_target_kind == "unavailable":
            return Headline(NO_VERDICT, nothing, False)
        to_target = Ratio(
            self.time_to_target_ratio,
            self.time_to_target_ratio_low,
            self.time_to_target_ratio_high,
            self.time_to_target_matches,
        )
        return Headline(self.verdict, to_target, True)


def rows_of(frame: pd.DataFrame) -> list[Compared]:
    """Return the rows of `speedup` with labels."""
    columns = [each.name for each in fields(Compared)]
    return [Compared(*row) for row in frame[columns].itertuples(index=False, name=None)]


def names_of_reference(row) -> tuple:
    """Return the values of `CONFIGURATION` of the reference of a row of any table."""
    parts = (getattr(row, f"reference_{part}") for part in CONFIGURATION[2:])
    return row.dataset, row.workload, *parts


def interval(ratio: Ratio) -> str:
    """Return the interval of a ratio and its paired runs in brackets, or with too few the range.

    Both are widened by how sessions differ.
    """
    if ratio.matches == 1:
        return ""
    ends = "–".join("unknown" if pd.isna(end) else f"{end:.2f}" for end in (ratio.low, ratio.high))
    if ratio.matches < VALUES_FOR_INTERVAL:
        return f" (range {ends}, widened)"
    return f" ({ends}, {ratio.matches} paired runs)"
