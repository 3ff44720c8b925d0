"""Read the best use of what is there from its table: which configuration, and how sure.

`answers` is the only choice. The first line of the page and of the summary, the table of
configurations, what to do next and the study all word its result.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import pandas as pd

from escala.analysis.statistics import VALUES_FOR_INTERVAL
from escala.analysis.verdicts import FASTER, NO_VERDICT, NOT_DISTINGUISHABLE
from escala.core.readable import in_words
from escala.experiment.references import Configuration
from escala.record.comparable import CONFIGURATION
from escala.report.findings.compared import Compared, Ratio, rows_of
from escala.report.findings.learning import DOES_NOT_LEARN, Learning, learning
from escala.report.findings.words import Tables, with_labels
from escala.report.tables.views import names_of_rows, trained_by_steps
from escala.runtime.layout import Layout

#: What is known of the best use. It *pays*: it takes less time than all that use no more. *More
#: does not pay*: it uses the least, and takes less time than all that use more. *Tied*: some that
#: use no more cannot be distinguished from it.
PAYS, MORE_DOES_NOT_PAY, TIED = "pays", "more does not pay", "tied"
#: Nothing pays where the network is no better than naming the largest class.
NOT_LEARNT = "not learnt"
UNAVAILABLE = "unavailable"


class Resources(NamedTuple):
    """What a configuration uses."""

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
    """A configuration that the best use is compared with: a row of `best_use`, with a label."""

    label: str
    names: tuple
    resources: Resources
    uses: str
    verdict: str
    ratio: Ratio
    row: Mapping

    @property
    def ranks(self) -> int:
        return Layout.parse(self.names[3]).ranks


@dataclass(frozen=True)
class BestUse:
    """The quickest configuration of a task, and what it is compared with.

    Attributes
    ----------
    task : what tells it from other tasks of the dataset and workload; empty if it is the only one.
    ratio_of : the times that are compared: `steps`, `target` or `run`.
    learning : whether the network learns; None if the tables do not have scores.
    """

    dataset: str
    workload: str
    task: str
    label: str
    names: tuple
    resources: Resources
    ratio_of: str
    alternatives: tuple[Alternative, ...]
    learning: Learning | None = None

    @property
    def key(self) -> str:
        """What tells its task from the others of an experiment."""
        return f"{self.dataset} {self.workload} {self.task}"

    @property
    def ranks(self) -> int:
        return Layout.parse(self.names[3]).ranks

    @property
    def there(self) -> Resources:
        """The most that any of the configurations uses: what is there."""
        every = [self.resources, *(each.resources for each in self.alternatives)]
        return Resources(*map(max, zip(*every, strict=True)))

    @cached_property
    def rivals(self) -> list[Alternative]:
        """The alternatives that decide: those that use no more, or without any all of them."""
        known = [each for each in self.alternatives if each.verdict != UNAVAILABLE]
        return [each for each in known if each.uses != "more"] or known

    @cached_property
    def tied(self) -> list[Alternative]:
        """The rivals that it cannot be distinguished from."""
        return [each for each in self.rivals if each.verdict == NOT_DISTINGUISHABLE]

    @cached_property
    def verdict(self) -> str:
        """`PAYS`, `MORE_DOES_NOT_PAY`, `TIED`, `NOT_LEARNT`, `NO_VERDICT` or `UNAVAILABLE`."""
        kinds = {each.verdict for each in self.rivals}
        if not kinds:
            return UNAVAILABLE
        if self.learning and self.learning.kind == DOES_NOT_LEARN:
            return NOT_LEARNT
        if NO_VERDICT in kinds:
            return NO_VERDICT
        if kinds == {FASTER}:
            uses_least = all(each.uses == "more" for each in self.rivals)
            return MORE_DOES_NOT_PAY if uses_least else PAYS
        return TIED

    @cached_property
    def closest(self) -> Alternative:
        """The alternative that decides."""
        return next(each for each in self.alternatives if each.row["closest"])

    @cached_property
    def fewer(self) -> Alternative | None:
        """The quickest alternative that uses less; None if there is none with a ratio."""
        less = [each for each in self.rivals if each.uses == "less"]
        return max(less, key=lambda each: each.ratio.value, default=None)

    @property
    def thriftiest(self) -> str:
        """The label of what uses least among those that cannot be told from the best use."""
        same = [(self.resources, self.ranks, self.label)] * (self.verdict != NO_VERDICT)
        same += [(each.resources, each.ranks, each.label) for each in self.tied]
        return min(same)[2]

    @property
    def behind(self) -> set[tuple]:
        """The names of the best use and of the alternatives that the answer names."""
        named = [self.closest, *([self.fewer] if self.fewer else [])]
        return {self.names, *(each.names for each in named)}


def answers(tables: Tables) -> list[BestUse]:
    """Return the best use of each task, in the order of the experiment."""
    table = with_labels(tables["best_use"], tables)
    others = with_labels(_as_alternatives(table), tables)["label"]
    found = []
    keys = ["dataset", "workload", "task"]
    for (dataset, workload, task), rows in table.fillna({"task": ""}).groupby(keys, sort=False):
        first = rows.iloc[0]
        names = tuple(first[list(CONFIGURATION)])
        found.append(
            BestUse(
                dataset,
                workload,
                task,
                first["label"],
                names,
                Resources(*map(int, first[["nodes", "cores", "gpus"]])),
                first["ratio_of"],
                tuple(_alternative(others[index], row) for index, row in rows.iterrows()),
                learning(tables, names) if "pooled" in tables else None,
            )
        )
    return found


def _as_alternatives(table: pd.DataFrame) -> pd.DataFrame:
    """Return the alternatives of `best_use` as configurations."""
    parts = {part: table[f"alternative_{part}"] for part in Configuration._fields}
    return table[["dataset", "workload"]].assign(**parts)


def _alternative(label: str, row: pd.Series) -> Alternative:
    names = [row["dataset"], row["workload"]]
    return Alternative(
        label,
        (*names, *(row[f"alternative_{part}"] for part in Configuration._fields)),
        Resources(*(int(row[f"alternative_{each}"]) for each in Resources._fields)),
        row["uses"],
        UNAVAILABLE if pd.isna(row["verdict"]) else row["verdict"],
        Ratio(*(_number(row[f"ratio{end}"]) for end in ("", "_low", "_high")), int(row["matches"])),
        row,
    )


def _number(value: float | None) -> float:
    return math.nan if pd.isna(value) else float(value)


def inverse(ratio: Ratio) -> Ratio:
    """Return the ratio of the times of the alternative to those of the best use."""
    return Ratio(*(1 / each for each in (ratio.value, ratio.high, ratio.low)), ratio.matches)


def verdicts(tables: Tables) -> dict[tuple, tuple[str, Ratio | None]]:
    """Return what each configuration is beside the best use, and its ratio to it, by its names.

    `best use`; `slower`; or why that is not known. Those that train another model, or that nothing
    is comparable with, are left out.
    """
    words = {FASTER: "slower"}
    found: dict[tuple, tuple[str, Ratio | None]] = {}
    for answer in answers(tables):
        best = {PAYS: "best use", MORE_DOES_NOT_PAY: "best use", TIED: "best use, tied"}
        found.setdefault(answer.names, (best.get(answer.verdict, "least time"), None))
        for each in answer.alternatives:
            verdict = words.get(each.verdict, each.verdict)
            if verdict == NO_VERDICT and 0 < each.ratio.matches < VALUES_FOR_INTERVAL:
                verdict += f" from {in_words(each.ratio.matches)}"
            found.setdefault(each.names, (verdict, inverse(each.ratio)))
    return found


def against_main(tables: Tables) -> pd.DataFrame:
    """Return the rows of `speedup` against the main references, with labels."""
    tables = trained_by_steps(tables)
    rows = with_labels(tables["speedup"], tables)
    return rows[rows["reference"] == 1]


def to_main(tables: Tables) -> Iterator[Compared]:
    """Yield how the best use of each task compares with its main reference, if it has one."""
    rows = {row.names: row for row in rows_of(against_main(tables))}
    yield from (rows[answer.names] for answer in answers(tables) if answer.names in rows)


def seconds_per_epoch(tables: Tables) -> dict[tuple, float]:
    """Return the known training seconds of an epoch by the values of `CONFIGURATION`."""
    table = tables["configurations"].dropna(subset=["train_seconds_per_epoch"])
    seconds = table["train_seconds_per_epoch"].astype(float)
    return dict(zip(names_of_rows(table), seconds, strict=True))


def shown(tables: Tables) -> set[tuple]:
    """Return the configurations that findings describe: best uses and what answers name."""
    return set().union(*(answer.behind for answer in answers(tables)))
