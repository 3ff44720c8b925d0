"""Read the best use of what is there from its table: which configuration, and how sure.

`answers` is the only choice. The first line of the page and of the summary, the table of
configurations, what to do next and the study all word its result.
"""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.best_use import (
    MORE_DOES_NOT_PAY,
    PAYS,
    TIED,
    UNAVAILABLE,
    BestUse,
    best_uses,
)
from escala.analysis.statistics import VALUES_FOR_INTERVAL
from escala.analysis.verdicts import FASTER, NO_VERDICT, Ratio
from escala.core.readable import in_words
from escala.experiment.runs import Configuration
from escala.report.findings.compared import Compared, rows_of
from escala.report.findings.words import Tables, with_labels
from escala.report.tables.views import names_of_rows, remembered, trained_by_steps


@remembered
def answers(tables: Tables) -> list[BestUse]:
    """Return the best use of each task, in the order of the experiment."""
    steps = trained_by_steps(tables)
    table = with_labels(tables["best_use"], steps)
    others = with_labels(_as_alternatives(table), steps)["label"]
    return best_uses(table.assign(alternative_label=others), tables)


def _as_alternatives(table: pd.DataFrame) -> pd.DataFrame:
    """Return the alternatives of `best_use` as configurations."""
    parts = {part: table[f"alternative_{part}"] for part in Configuration._fields}
    return table[["dataset", "workload"]].assign(**parts)


def inverse(ratio: Ratio) -> Ratio:
    """Return the ratio of the times of the alternative to those of the best use."""
    return Ratio(*(1 / each for each in (ratio.value, ratio.high, ratio.low)), ratio.matches)


def verdicts(tables: Tables) -> dict[tuple, tuple[str, Ratio | None]]:
    """Return what each configuration is beside the best use, and its ratio to it, by its names.

    `best use`; `slower`; or why that is not known. Those that train another model, or that nothing
    is comparable with, are left out.
    """
    words = {FASTER: "slower"}
    best = {
        PAYS: "best use", MORE_DOES_NOT_PAY: "best use", TIED: "best use, tied",
        UNAVAILABLE: UNAVAILABLE,
    }  # fmt: skip
    every = answers(tables)
    # The best use of one task may be slower than that of another.
    found: dict[tuple, tuple[str, Ratio | None]] = {
        answer.names: (
            best.get(answer.verdict, "least time") + f", {answer.task}" * bool(answer.task),
            None,
        )
        for answer in every
    }
    for answer in every:
        for each in answer.alternatives:
            verdict = words.get(each.verdict, each.verdict)
            if verdict == NO_VERDICT and 0 < each.ratio.matches < VALUES_FOR_INTERVAL:
                verdict += f" from {in_words(each.ratio.matches)}"
            found.setdefault(each.names, (verdict, inverse(each.ratio)))
    return found


@remembered
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
