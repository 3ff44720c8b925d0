"""Describe how good the models are."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.report.findings.differences import TEST_ROWS, differences, over
from escala.report.findings.words import (
    Finding,
    Tables,
    count,
    listed,
    quoted,
    significant,
    with_labels,
)
from escala.report.tables.views import (
    all_programs,
    any_ok,
    labelled,
    programs,
    trained_by_steps,
    untested,
)
from escala.training.marks import BEST

POSITION = 60
SECTION = "scores"


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Describe how good the models are, and whether configurations differ in it."""
    scored = pd.concat([tables[name][["dataset", "leaky"]] for name in ("pooled", "scores")])
    if scored.empty:
        why = "no run ended ok"
        if any_ok(tables) and all_programs(tables):
            why = f"{listed(programs(tables))} reported none"
        elif any_ok(tables):
            why = "no run that ended ok trained over whole epochs"
        yield Finding(f"The scores are unavailable: {why}.", "runs", "mean_scores")
        return
    for dataset in sorted(scored.loc[scored["leaky"].astype(bool), "dataset"].unique()):
        text = f"Scores on {quoted(dataset)} are too good, because its split is leaky."
        yield Finding(text, "runs", "mean_scores")
    yield from _accuracies(tables)
    yield from _of_classes(trained_by_steps(tables))
    yield from _of_pairs(trained_by_steps(tables))
    yield from _of_own_scores(tables)
    if unscored := untested(tables["pooled"]):
        text = f"There are no test rows, and hence no scores, of {listed(unscored)}."
        yield Finding(text, "pooled", "classification_reports")


def _accuracies(tables: Tables) -> Iterator[Finding]:
    """Describe the accuracy of each workload on each dataset."""
    scored = labelled(tables["configurations"], tables["runs"]).dropna(subset=["accuracy"])
    for (dataset, workload), group in scored.groupby(["dataset", "workload"], sort=False):
        worst, best = group.loc[group["accuracy"].idxmin()], group.loc[group["accuracy"].idxmax()]
        low, high = (f"{row.accuracy:.3f}" for row in (worst, best))
        values = low
        if low != high:
            values = f"{low} ({quoted(worst.label)}) to {high} ({quoted(best.label)})"
        text = f"The median accuracy of {quoted(workload)} on {quoted(dataset)} is {values}."
        yield Finding(text, "configurations", "mean_scores")


def _of_classes(tables: Tables) -> Iterator[Finding]:
    """Describe the worst class, and where the intervals of configurations do not overlap."""
    pooled = with_labels(tables["pooled"], tables)
    if pooled.empty:
        return
    for rate in ("precision", "recall"):
        yield Finding(_lowest(pooled, rate), "pooled", "classification_reports")
    several = pooled.groupby(["dataset", "workload", "class"]).size().max() > 1
    if several:
        apart = _apart(pooled)
        clause = (
            "the intervals of all configurations overlap for every class" if not apart
            else f"the intervals of configurations do not all overlap for {apart[0]}"
            + f" and {count(len(apart) - 1, 'further rate')}" * (len(apart) > 1)
        )  # fmt: skip
        yield Finding(over(TEST_ROWS, clause), "pooled", "classification_reports")


def _of_pairs(tables: Tables) -> Iterator[Finding]:
    """Describe how scores differ from those of the main reference."""
    for found in differences(tables):
        known = found.rows[found.rows["reference"] == 1].reset_index(drop=True)
        if known.empty:
            continue
        bounds = known[["low", "high"]].abs().max(axis=1)
        references = listed(known["reference_label"].unique())
        clauses = [found.bounded.format(references=references, bound=significant(bounds.max()))]
        excluded = bounds[(known["low"] > 0) | (known["high"] < 0)]
        if len(excluded):
            others = f", like {count(len(excluded) - 1, f'further {found.one}')}"
            clauses.append(_differs(known.loc[excluded.idxmax()]) + others * (len(excluded) > 1))
        for clause in clauses:
            yield Finding(over(found.varied, clause), found.table, found.figure)


def _differs(row: pd.Series) -> str:
    """Return a clause on a difference whose interval excludes zero."""
    low, high = (significant(row[end], signed=True) for end in ("low", "high"))
    return (
        f"the {row['what']} under {quoted(row['label'])} differs from that under "
        f"{quoted(row['reference_label'])} ({low} to {high})"
    )


def _of_own_scores(tables: Tables) -> Iterator[Finding]:
    """Describe each score of workloads that bring their own, by its medians."""
    scores = with_labels(tables["scores"], tables)
    found = {
        name: of_score.groupby("label", sort=False)["value"].median()
        for name, of_score in scores.groupby("score", sort=False)
    }
    for name, medians in found.items():
        # The best value of a program's score, where it is the last one.
        if name.startswith(BEST) and medians.equals(found.get(name.removeprefix(BEST))):
            continue
        low, high = medians.idxmin(), medians.idxmax()
        if len(medians) > 1 and medians[low] == medians[high]:
            values = f"{medians[low]:.4g} for every configuration"
        else:
            values = (
                f"{medians[low]:.4g} for {quoted(low)}"
                + f" and {medians[high]:.4g} for {quoted(high)}" * (low != high)
            )
        yield Finding(f"The median of {quoted(name)} is {values}.", "scores", "mean_scores")


def _lowest(pooled: pd.DataFrame, rate: str) -> str:
    known = pooled.dropna(subset=[rate])
    if known.empty:
        return f"The lowest {rate} of a class is unavailable."
    row = known.loc[known[rate].idxmin()]
    return (
        f"The lowest {rate} of a class is {row[rate]:.3f} "
        f"({row[f'{rate}_low']:.3f}–{row[f'{rate}_high']:.3f}), that of {quoted(row['class'])} "
        f"under {quoted(row['label'])}."
    )


def _apart(pooled: pd.DataFrame) -> list[str]:
    """Name the rates whose intervals do not overlap between all configurations of a dataset."""
    return [
        f"the {rate} of {quoted(name)} ({quoted(dataset)})"
        for (dataset, _, name), group in pooled.groupby(
            ["dataset", "workload", "class"], sort=False
        )
        for rate in ("precision", "recall")
        if group[f"{rate}_low"].max() > group[f"{rate}_high"].min()
    ]
