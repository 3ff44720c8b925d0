"""The tables of a report, with the answers and comparisons that its sentences are made from.

Only `Report.answers` chooses a best use. The first line of the page and of the summary, the table
of configurations, the advice and the study put this choice into words.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from copy import copy
from functools import cached_property
from typing import NamedTuple

import pandas as pd

from escala.analysis.best_use import MORE_DOES_NOT_PAY, PAYS, TIED, UNAVAILABLE, BestUse, best_uses
from escala.analysis.comparable import CONFIGURATION
from escala.analysis.statistics import MATCHES_FOR_INTERVAL
from escala.analysis.verdicts import FASTER, NO_VERDICT, Ratio
from escala.core.readable import in_words, with_noun
from escala.experiment.runs import MAIN, Configuration
from escala.report.findings.words import (
    Names,
    Tables,
    name_in_words,
    quote,
    tasks_that_vary,
    with_labels,
)
from escala.report.tables.base import EPOCH
from escala.report.tables.views import without_fits

_UNKNOWN = Ratio(math.nan, math.nan, math.nan, 0)


class Report:
    """The tables of an experiment, its answers, and how sentences name its configurations.

    Attributes
    ----------
    headings : the first words of a sentence on a task, by `BestUse.key`. They are empty if the
        names of configurations tell the task.
    """

    def __init__(self, tables: Tables, name: str = "", names: Names | None = None):
        self.tables, self.name, self.names = tables, name, names or Names()
        self.headings: Mapping[str, str] = {}
        self._labelled: dict[str, pd.DataFrame] = {}
        self._spoken: dict[bool, Report] = {}

    def in_words(self, with_tasks: bool = True) -> Report:
        """Return the report with sentences in words. The report is made once.

        With one answer, names lose their brackets if the answer's configurations stay distinct.

        Parameters
        ----------
        with_tasks : whether names tell the dataset and the workload, if the experiment has several.
            Otherwise headings tell them.
        """
        if with_tasks in self._spoken:
            return self._spoken[with_tasks]
        texts = name_in_words(self.tables, with_tasks)
        if with_tasks and len(self.answers) == 1:
            [answer] = self.answers
            labels = [use.label for use in (answer, *answer.alternatives)]
            brief = {label: texts.get(label, label).partition(" (")[0] for label in labels}
            if len(set(brief.values())) == len(brief):
                texts |= brief
        report = self._spoken[with_tasks] = copy(self)
        report.names = Names(texts)
        report.__dict__.pop("without_fits", None)  # It was made with the former names.
        if not with_tasks and len(self.answers) > 1:
            varying = tasks_that_vary(self.without_fits.tables)
            report.headings = {}
            for answer in self.answers:
                parts = [*(quote(getattr(answer, key)) for key in varying), answer.task]
                report.headings[answer.key] = ", ".join(filter(None, parts))
        return report

    @cached_property
    def without_fits(self) -> Report:
        """The report without the workloads that are trained by a fit."""
        return Report(without_fits(self.tables), self.name, self.names)

    def table(self, name: str) -> pd.DataFrame:
        """Return a table with the columns of `words.with_labels`, made once."""
        if name not in self._labelled:
            self._labelled[name] = with_labels(self.tables[name], self.tables)
        return self._labelled[name]

    @cached_property
    def answers(self) -> list[BestUse]:
        """The best use of each task, in the order of the experiment."""
        steps = without_fits(self.tables)
        table = with_labels(steps["best_use"], steps)
        parts = {part: table[f"alternative_{part}"] for part in Configuration._fields}
        alternatives = table[["dataset", "workload"]].assign(**parts)
        labels = with_labels(alternatives, steps)["label"]
        return best_uses(table.assign(alternative_label=labels), self.tables)

    @cached_property
    def shown(self) -> set[tuple]:
        """The configurations that findings describe: best uses, and others that answers name."""
        return set().union(*(answer.evidence for answer in self.answers))

    @cached_property
    def comparisons(self) -> pd.DataFrame:
        """Rows of `speedup` on the times of an epoch, with labels and the column `decision`.

        A configuration may also have a row on the times to the target accuracy. `decision` is the
        `Headline` of whichever of the two rows has `decides`.
        """
        rows = self.table("speedup")
        decisions = {
            (*configuration_of(row), row.reference): (
                Headline(NO_VERDICT, _UNKNOWN, False)
                if row.kind == UNAVAILABLE
                else Headline(row.verdict, ratio_of(row), row.basis != EPOCH)
            )
            for row in rows[rows["decides"]].itertuples()
        }
        rows = rows[rows["basis"] == EPOCH]
        listed = [decisions[(*configuration_of(row), row.reference)] for row in rows.itertuples()]
        return rows.assign(decision=pd.Series(listed, rows.index, dtype=object))

    @property
    def is_of_session(self) -> bool:
        """Return whether the experiment asks for times of its session, not of the next one."""
        return bool(self.tables["looks"]["threshold"].notna().any())

    @cached_property
    def against_main(self) -> dict[tuple, tuple]:
        """The rows of `speedup` against main references, with labels, by their configurations."""
        rows = self.without_fits.comparisons
        rows = rows[rows["reference"] == MAIN].itertuples()
        return {configuration_of(row): row for row in rows}

    def verdicts(self) -> dict[tuple, tuple[str, Ratio | None]]:
        """Return the verdict on each configuration, and its time as a ratio to the best use.

        The verdict is `best use`, `slower`, or the reason why neither is known. A best use has no
        ratio. Configurations that train another model are left out, and so are configurations
        without a comparable one.
        """
        of_best_use = {
            PAYS: "best use", MORE_DOES_NOT_PAY: "best use", TIED: "best use, tied",
            UNAVAILABLE: UNAVAILABLE,
        }  # fmt: skip
        verdicts: dict[tuple, tuple[str, Ratio | None]] = {}
        for answer in self.answers:
            task = f", {answer.task}" * bool(answer.task)
            verdicts[answer.names] = of_best_use.get(answer.verdict, "least time") + task, None
        # A best use keeps its verdict, even if another task has a quicker one.
        for other in (other for answer in self.answers for other in answer.alternatives):
            verdict = "slower" if other.verdict == FASTER else other.verdict
            if verdict == NO_VERDICT and 0 < other.ratio.matches < MATCHES_FOR_INTERVAL:
                verdict += f" from {in_words(other.ratio.matches)}"
            verdicts.setdefault(other.names, (verdict, inverse(other.ratio)))
        return verdicts


class Headline(NamedTuple):
    """The comparison that decides on a configuration and a reference.

    Attributes
    ----------
    verdict : a verdict of `escala.analysis.verdicts`, or `UNAVAILABLE`.
    ratio : of the times.
    to_target : whether the times are to the target accuracy. Otherwise they are of an epoch.
    """

    verdict: str
    ratio: Ratio
    to_target: bool

    @property
    def brief(self) -> str:
        """The verdict in words, with the number of paired runs if that is too small."""
        if self.verdict == NO_VERDICT and 0 < self.ratio.matches < MATCHES_FOR_INTERVAL:
            return f"{NO_VERDICT} from {with_noun(self.ratio.matches, 'paired run')}"
        return self.verdict


def headline(row) -> Headline:
    """Return the deciding comparison of a row of `Report.comparisons`."""
    return Headline(UNAVAILABLE, _UNKNOWN, False) if row.kind == UNAVAILABLE else row.decision


def ratio_of(row, name: str = "ratio") -> Ratio:
    """Return a ratio with its interval from the columns of a row."""
    ends = (getattr(row, f"{name}{end}") for end in ("", "_low", "_high"))
    return Ratio(*ends, row.matches)


def inverse(ratio: Ratio) -> Ratio:
    """Return the inverse of a ratio of times."""
    return Ratio(*(1 / end for end in (ratio.value, ratio.high, ratio.low)), ratio.matches)


def configuration_of(row, prefix: str = "") -> tuple:
    """Return the configuration of a row, or with the prefix `reference_` the row's reference."""
    parts = (getattr(row, f"{prefix}{part}") for part in CONFIGURATION[2:])
    return row.dataset, row.workload, *parts
