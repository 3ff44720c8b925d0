"""Judge the best use of what is there: the quickest configuration, beside what it is compared with.

The page, the study and the advice read the table `best_use` by `best_uses`, so they name one
configuration and one verdict.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import pandas as pd

from escala.analysis.comparable import CONFIGURATION
from escala.analysis.rates import DOES_NOT_LEARN, Learning, judge_learning
from escala.analysis.verdicts import FASTER, NO_VERDICT, NOT_DISTINGUISHABLE, SLOWER, Ratio
from escala.core.readable import in_words
from escala.experiment.runs import Configuration
from escala.runtime.layout import with_layout

#: What is known of the best use. It *pays*: it takes less time than all that use no more. *More
#: does not pay*: it uses the least, and takes less time than all that use more. *Tied*: some that
#: use no more cannot be distinguished from it.
PAYS, MORE_DOES_NOT_PAY, TIED = "pays", "more does not pay", "tied"
#: Nothing pays where the network is no better than naming the largest class.
NOT_LEARNT = "not learnt"
UNAVAILABLE = "unavailable"


class Resources(NamedTuple):
    """Nodes, cores and GPUs of a configuration."""

    nodes: int
    cores: int
    gpus: int

    @property
    def in_words(self) -> str:
        """`two cores`, or `two nodes with eight cores`."""
        parts = [(self.gpus, "GPU"), (self.cores, "core")]
        number, name = parts[0] if self.gpus else parts[1]
        text = f"{in_words(number)} {name}{'s' * (number != 1)}"
        return f"{in_words(self.nodes)} nodes with {text}" if self.nodes > 1 else text


@dataclass(frozen=True)
class Alternative:
    """A configuration that the best use is compared with: a row of `best_use`, with a label.

    Attributes
    ----------
    ratio : of the time of the best use to its.
    ratio_of : the times that are compared: `steps`, `target` or `run`.
    """

    label: str
    names: tuple
    resources: Resources
    uses: str
    verdict: str
    ratio: Ratio
    ratio_of: str
    row: Mapping

    @property
    def ranks(self) -> int:
        return self.names[3].ranks


@dataclass(frozen=True)
class BestUse:
    """The quickest configuration of a task, and what it is compared with.

    Attributes
    ----------
    task : what tells it from other tasks of the dataset and workload; empty if it is the only one.
    learning : whether the network learns; None if the tables do not have scores.
    """

    dataset: str
    workload: str
    task: str
    label: str
    names: tuple
    resources: Resources
    alternatives: tuple[Alternative, ...]
    learning: Learning | None = None

    @property
    def key(self) -> str:
        """The name of its task, unique within an experiment."""
        return f"{self.dataset} {self.workload} {self.task}"

    @property
    def ranks(self) -> int:
        return self.names[3].ranks

    @property
    def there(self) -> Resources:
        """The most that any of the configurations uses: what is there."""
        every = [self.resources, *(use.resources for use in self.alternatives)]
        return Resources(*map(max, zip(*every, strict=True)))

    @cached_property
    def rivals(self) -> list[Alternative]:
        """The alternatives that decide: those that use no more, or without any all of them."""
        known = [use for use in self.alternatives if use.verdict != UNAVAILABLE]
        return [use for use in known if use.uses != "more"] or known

    @cached_property
    def tied(self) -> list[Alternative]:
        """The rivals that it cannot be distinguished from."""
        return [use for use in self.rivals if use.verdict == NOT_DISTINGUISHABLE]

    @cached_property
    def verdict(self) -> str:
        """`PAYS`, `MORE_DOES_NOT_PAY`, `TIED`, `NOT_LEARNT`, `NO_VERDICT` or `UNAVAILABLE`."""
        kinds = {use.verdict for use in self.rivals}
        if not kinds:
            return UNAVAILABLE
        if self.learning and self.learning.kind == DOES_NOT_LEARN:
            return NOT_LEARNT
        # Each two have matches of their own, so that A may beat B, B beat C, and C beat A.
        if NO_VERDICT in kinds or SLOWER in kinds:
            return NO_VERDICT
        if kinds == {FASTER}:
            uses_least = all(use.uses == "more" for use in self.rivals)
            return MORE_DOES_NOT_PAY if uses_least else PAYS
        return TIED

    @cached_property
    def closest(self) -> Alternative:
        """The alternative that decides."""
        return next(use for use in self.alternatives if use.row["closest"])

    @cached_property
    def fewer(self) -> Alternative | None:
        """The quickest alternative that uses less; None if there is none with a ratio."""
        less = [use for use in self.rivals if use.uses == "less" and use.ratio.value > 0]
        return max(less, key=lambda use: use.ratio.value, default=None)

    @property
    def equals(self) -> list[str]:
        """The labels of those that are tied with it and use as much."""
        return [use.label for use in self.tied if use.uses == "as much"]

    @property
    def thriftiest(self) -> str:
        """The label of what uses least among those that cannot be told from the best use."""
        same = [(self.resources, self.ranks, self.label)]
        same += [(use.resources, use.ranks, use.label) for use in self.tied]
        return min(same)[2]

    @property
    def advised(self) -> tuple | None:
        """The names of what to train with: of those that are tied, what uses least.

        None if nothing is decided.
        """
        if self.verdict in (PAYS, MORE_DOES_NOT_PAY):
            return self.names
        if self.verdict != TIED:
            return None
        if self.thriftiest in (self.label, *self.equals):
            return self.names
        return next(use.names for use in self.tied if use.label == self.thriftiest)

    @property
    def behind(self) -> set[tuple]:
        """The names of the best use and of the alternatives that the answer names."""
        named = [self.closest, *([self.fewer] if self.fewer else [])]
        return {self.names, *(use.names for use in named)}


def best_uses(table: pd.DataFrame, tables: Mapping[str, pd.DataFrame]) -> list[BestUse]:
    """Return the best use of each task, in the order of the experiment.

    Parameters
    ----------
    table : `best_use`, with the columns `label` and `alternative_label`.
    tables : with `configurations` and `pooled`, if scores are known.
    """
    uses = []
    keys = ["dataset", "workload", "task"]
    for (dataset, workload, task), rows in table.fillna({"task": ""}).groupby(keys, sort=False):
        first = rows.iloc[0]
        names = tuple(with_layout(first[list(CONFIGURATION)]).values())
        alternatives = []
        for _, row in rows.iterrows():
            other = {part: row[f"alternative_{part}"] for part in Configuration._fields}
            alternatives.append(
                Alternative(
                    row["alternative_label"],
                    (dataset, workload, *with_layout(other).values()),
                    Resources(*(int(row[f"alternative_{name}"]) for name in Resources._fields)),
                    row["uses"],
                    UNAVAILABLE if pd.isna(row["verdict"]) else row["verdict"],
                    Ratio(
                        *row[["ratio", "ratio_low", "ratio_high"]].astype(float),
                        int(row["matches"]),
                    ),
                    row["ratio_of"],
                    row,
                )
            )
        uses.append(
            BestUse(
                dataset,
                workload,
                task,
                first["label"],
                names,
                Resources(*map(int, first[["nodes", "cores", "gpus"]])),
                tuple(alternatives),
                judge_learning(tables, names) if "pooled" in tables else None,
            )
        )
    return uses
