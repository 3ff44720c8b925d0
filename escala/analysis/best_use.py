"""Judge the best use of the machines: the quickest configuration, compared with alternatives.

The page, the study and the advice read the table `best_use` by `best_uses`. So all three name the
same configuration and the same verdict.
"""

from __future__ import annotations

import math
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

#: Verdicts on the best use. The best use *pays* if it takes less time than all alternatives that
#: use no more. *More does not pay* if the best use uses the least, and takes less time than all
#: alternatives. The best use is *tied* if it cannot be distinguished from an alternative that uses
#: no more.
PAYS, MORE_DOES_NOT_PAY, TIED = "pays", "more does not pay", "tied"
#: If the network is no better than naming the largest class, no use of the machines pays.
NOT_LEARNT = "not learnt"
UNAVAILABLE = "unavailable"


class Resources(NamedTuple):
    """Nodes, cores and GPUs of a configuration."""

    nodes: int
    cores: int
    gpus: int

    @property
    def in_words(self) -> str:
        """The resources as a phrase, such as `two cores`, or `two nodes with eight GPUs`."""
        number, name = (self.gpus, "GPU") if self.gpus else (self.cores, "core")
        text = f"{in_words(number)} {name}{'s' * (number != 1)}"
        return f"{in_words(self.nodes)} nodes with {text}" if self.nodes > 1 else text


@dataclass(frozen=True)
class _Use:
    """A use of the machines: a measured configuration.

    Attributes
    ----------
    label : the name of the use in the report.
    names : the values of `CONFIGURATION`, which begin with dataset and workload.
    """

    label: str
    names: tuple
    resources: Resources

    @property
    def configuration(self) -> Configuration:
        return Configuration(*self.names[2:])

    @property
    def ranks(self) -> int:
        return self.configuration.layout.ranks


@dataclass(frozen=True)
class Alternative(_Use):
    """A configuration that the best use is compared with.

    Attributes
    ----------
    uses : whether the alternative uses `more` or `less` resources than the best use, or `as much`.
    verdict : the verdict on the best use against this alternative, or `UNAVAILABLE`.
    ratio : the time of the best use divided by that of the alternative.
    ratio_of : the times that are compared: `steps`, `epoch`, `target` or `run`.
    row : the row of the table `best_use`.
    """

    uses: str
    verdict: str
    ratio: Ratio
    ratio_of: str
    row: Mapping


@dataclass(frozen=True)
class BestUse(_Use):
    """The quickest configuration of a task, and its alternatives.

    Attributes
    ----------
    task : name that distinguishes tasks of one dataset and workload; empty for a single task.
    learning : whether the network learns; None if the tables do not have scores.
    """

    task: str
    alternatives: tuple[Alternative, ...]
    learning: Learning | None = None

    @property
    def dataset(self) -> str:
        return self.names[0]

    @property
    def workload(self) -> str:
        return self.names[1]

    @property
    def key(self) -> str:
        """The name of the task, unique within an experiment."""
        return f"{self.dataset} {self.workload} {self.task}"

    @property
    def available(self) -> Resources:
        """The resources of the machines: the most nodes, cores and GPUs of any configuration."""
        resources = [self.resources, *(use.resources for use in self.alternatives)]
        return Resources(*map(max, zip(*resources, strict=True)))

    @cached_property
    def rivals(self) -> list[Alternative]:
        """The alternatives that decide: those that use no more, or all if every one uses more."""
        compared = [use for use in self.alternatives if use.verdict != UNAVAILABLE]
        return [use for use in compared if use.uses != "more"] or compared

    @cached_property
    def tied(self) -> list[Alternative]:
        """The rivals from which the best use cannot be distinguished."""
        return [use for use in self.rivals if use.verdict == NOT_DISTINGUISHABLE]

    @cached_property
    def verdict(self) -> str:
        """`PAYS`, `MORE_DOES_NOT_PAY`, `TIED`, `NOT_LEARNT`, `NO_VERDICT` or `UNAVAILABLE`."""
        kinds = {use.verdict for use in self.rivals}
        if not kinds:
            return UNAVAILABLE
        if self.learning and self.learning.kind == DOES_NOT_LEARN:
            return NOT_LEARNT
        # Any two configurations have their own paired runs, so A may beat B, B beat C, and C beat
        # A.
        if NO_VERDICT in kinds or SLOWER in kinds:
            return NO_VERDICT
        if kinds == {FASTER}:
            uses_least = all(use.uses == "more" for use in self.rivals)
            return MORE_DOES_NOT_PAY if uses_least else PAYS
        return TIED

    @cached_property
    def closest(self) -> Alternative:
        """The rival that is hardest to beat, by its verdict, and then by its time."""
        return next(use for use in self.alternatives if use.row["closest"])

    @cached_property
    def fewer(self) -> Alternative | None:
        """The quickest alternative that uses less and has a ratio; None without one."""
        less = [use for use in self.rivals if use.uses == "less" and use.ratio.value > 0]
        return max(less, key=lambda use: use.ratio.value, default=None)

    @cached_property
    def others(self) -> list[Alternative]:
        """The quickest alternative that uses more, and the quickest of several processes.

        An experiment asks for both, so any verdict is told. The closest alternative is left out.
        """
        known = [use for use in self.alternatives if use.verdict != UNAVAILABLE]
        groups = [[use for use in known if use.uses == "more"]]
        if self.ranks == 1:
            groups.append([use for use in known if use.ranks > 1])
        # The ratio is that of the best use: a larger one is of a quicker alternative.
        quickest = [
            max(group, key=lambda use: 0.0 if math.isnan(use.ratio.value) else use.ratio.value)
            for group in filter(None, groups)
        ]
        by_label = {use.label: use for use in quickest if use.label != self.closest.label}
        return [*by_label.values()]

    @property
    def equals(self) -> list[str]:
        """The labels of the alternatives that are tied with the best use and use as much."""
        return [use.label for use in self.tied if use.uses == "as much"]

    @property
    def thriftiest(self) -> str:
        """The label of what uses least among the best use and its tied alternatives."""
        uses = [self, *self.tied]
        return min(uses, key=lambda use: (use.resources, use.ranks, use.label)).label

    @property
    def advised(self) -> tuple | None:
        """The `names` of the configuration to train with; None if nothing is decided.

        This is the best use, unless a tied alternative uses less.
        """
        if self.verdict in (PAYS, MORE_DOES_NOT_PAY):
            return self.names
        if self.verdict != TIED:
            return None
        if self.thriftiest in (self.label, *self.equals):
            return self.names
        return next(use.names for use in self.tied if use.label == self.thriftiest)

    @property
    def evidence(self) -> set[tuple]:
        """The `names` of the configurations that the first answer of the page compares."""
        return {use.names for use in (self, self.closest, self.fewer) if use}


def best_uses(table: pd.DataFrame, tables: Mapping[str, pd.DataFrame]) -> list[BestUse]:
    """Return the best use of each task, in the order of the experiment.

    Parameters
    ----------
    table : `best_use`, with the columns `label` and `alternative_label`.
    tables : tables by name. With `configurations` and `pooled`, learning is judged.
    """
    uses = []
    keys = ["dataset", "workload", "task"]
    for (dataset, workload, task), rows in table.fillna({"task": ""}).groupby(keys, sort=False):
        first = rows.iloc[0]
        names = tuple(with_layout(first[list(CONFIGURATION)]).values())
        alternatives = []
        for _, row in rows.iterrows():
            configuration = {name: row[f"alternative_{name}"] for name in Configuration._fields}
            alternatives.append(
                Alternative(
                    row["alternative_label"],
                    (dataset, workload, *with_layout(configuration).values()),
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
                first["label"],
                names,
                Resources(*map(int, first[["nodes", "cores", "gpus"]])),
                task,
                tuple(alternatives),
                judge_learning(tables, names) if "pooled" in tables else None,
            )
        )
    return uses
