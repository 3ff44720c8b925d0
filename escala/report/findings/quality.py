"""Describe how good the models are, and what their scores depend on."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.comparable import CONFIGURATION
from escala.analysis.verdicts import SAME
from escala.core.readable import counted, in_words
from escala.programs.marks import BEST
from escala.record.evaluation import MOST_CLASSES
from escala.report.findings.differences import Differences, differences
from escala.report.findings.words import (
    Finding,
    Tables,
    joined,
    listed,
    quoted,
    significant,
    span,
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

POSITION = 60
SECTION = "scores"
QUESTION = "scores"
ASKS = "How good are the models, and does it depend on how they are trained?"


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Describe how good the models are, and whether configurations differ in it."""
    scored = pd.concat([tables[name][["dataset", "leaky"]] for name in ("reports", "scores")])
    if scored.empty:
        why = "no run ended ok"
        if any_ok(tables) and all_programs(tables):
            why = f"{listed(programs(tables))} reported none"
        elif any_ok(tables):
            why = "no run that ended ok trained over whole epochs"
        yield Finding(f"The scores are unavailable: {why}.", "runs", "mean_scores")
    else:
        for dataset in sorted(scored.loc[scored["leaky"].astype(bool), "dataset"].unique()):
            text = f"Scores on {quoted(dataset)} are too good, because its split is leaky."
            yield Finding(text, "runs", "mean_scores")
        for text in _accuracies(tables):
            yield Finding(text, "configurations", "mean_scores")
        step_tables = trained_by_steps(tables)
        for text in _worst_classes(with_labels(step_tables["pooled"], step_tables)):
            yield Finding(text, "pooled", "classification_reports")
        yield from _score_differences(step_tables)
        for text in _workload_scores(tables):
            yield Finding(text, "scores", "mean_scores")
        for text in _unkept_classes(tables):
            yield Finding(text, "reports", "mean_scores")
        if unscored := untested(tables["pooled"]):
            text = f"There are no test rows, and hence no scores, of {listed(unscored)}."
            yield Finding(text, "pooled", "classification_reports")
    yield from (Finding(text, "baselines") for text in _baselines(tables))
    for text in _largest_of_epochs(tables):
        yield Finding(text, "epoch_scores", "accuracy_per_epoch")
    yield from (Finding(text, "leakage", "splits") for text in _leakage(tables))


def _accuracies(tables: Tables) -> Iterator[str]:
    """Describe the accuracy of each workload on each dataset."""
    scored = labelled(tables["configurations"], tables["runs"]).dropna(subset=["accuracy"])
    for (dataset, workload), group in scored.groupby(["dataset", "workload"], sort=False):
        worst, best = group.loc[group["accuracy"].idxmin()], group.loc[group["accuracy"].idxmax()]
        low, high = (f"{row.accuracy:.3f}" for row in (worst, best))
        values = low
        if low != high:
            values = f"{low} ({quoted(worst.label)}) to {high} ({quoted(best.label)})"
        yield f"The median accuracy of {quoted(workload)} on {quoted(dataset)} is {values}."


def _worst_classes(pooled: pd.DataFrame) -> Iterator[str]:
    """Describe the worst class."""
    for rate in ("precision", "recall") if len(pooled) else ():
        known = pooled.dropna(subset=[rate])
        if known.empty:
            yield f"The lowest {rate} of a class is unavailable."
            continue
        row = known.loc[known[rate].idxmin()]
        yield (
            f"The lowest {rate} of a class is {row[rate]:.3f} "
            f"({row[f'{rate}_low']:.3f}–{row[f'{rate}_high']:.3f}), that of {quoted(row['class'])} "
            f"under {quoted(row['label'])}."
        )


def _unkept_classes(tables: Tables) -> Iterator[str]:
    """Tell of datasets with so many classes that scores of each are not kept."""
    classified = tables["reports"].groupby("dataset", sort=False)["level"]
    for dataset, levels in classified:
        if "class" not in set(levels):
            yield (
                f"Scores of single classes of {quoted(dataset)} are not kept, because there are "
                f"more than {MOST_CLASSES}; `predictions.npy` of a run has the class of each row."
            )


def _score_differences(tables: Tables) -> Iterator[Finding]:
    """Describe how scores differ from those of the main reference."""
    for found in differences(tables):
        known = found.rows[found.rows["reference"] == 1]
        if found.table == "mean_scores":
            yield from _not_excluded(known, found)
        # Equal differences have no interval.
        known = known.dropna(subset=["low", "high"]).reset_index(drop=True)
        if known.empty:
            continue
        bounds = known[["low", "high"]].abs().max(axis=1)
        references = listed(known["reference_label"].unique())
        clauses = [found.bounded.format(references=references, bound=significant(bounds.max()))]
        excluded = bounds[(known["low"] > 0) | (known["high"] < 0)]
        if len(excluded):
            row = known.loc[excluded.idxmax()]
            low, high = (significant(row[end], signed=True) for end in ("low", "high"))
            others = f", like {counted(len(excluded) - 1, f'further {found.one}')}"
            clauses.append(
                f"the {row['what']} under {quoted(row['label'])} differs from that under "
                f"{quoted(row['reference_label'])} ({low} to {high})" + others * (len(excluded) > 1)
            )
        for clause in clauses:
            yield Finding(f"Over {found.varied}, {clause}.", found.table, found.figure)


def _not_excluded(known: pd.DataFrame, found: Differences) -> Iterator[Finding]:
    """Tell of each score that is the same in all matches what the fewest of these leave open."""
    for score, rows in known[known["verdict"] == SAME].groupby("score", sort=False):
        row = rows.loc[rows["matches"].idxmin()]
        what = f"paired runs within {row['bound']:g} do" if row["bound"] else "equal paired runs do"
        text = (
            f"Over {found.varied}, {in_words(row['matches'])} {what} not exclude a larger "
            f"difference of {quoted(score)} in up to {100 * row['beyond_bound_fraction']:.0f} % "
            "of runs."
        )
        yield Finding(text, found.table, found.figure)


def _workload_scores(tables: Tables) -> Iterator[str]:
    """Describe each score of workloads that bring their own, by its medians."""
    scores = with_labels(tables["scores"], tables)
    found = {
        name: score_rows.groupby("label", sort=False)["value"].median()
        for name, score_rows in scores.groupby("score", sort=False)
    }
    for name, medians in found.items():
        # The best value of a program's score, where it is the last one.
        if name.startswith(BEST) and medians.equals(found.get(name.removeprefix(BEST))):
            continue
        low, high = medians.idxmin(), medians.idxmax()
        values = f"{medians[low]:.4g} for {quoted(low)}"
        if len(medians) > 1 and medians[low] == medians[high]:
            values = f"{medians[low]:.4g} for every configuration"
        elif low != high:
            values += f" and {medians[high]:.4g} for {quoted(high)}"
        yield f"The median of {quoted(name)} is {values}."


def _baselines(tables: Tables) -> Iterator[str]:
    """Describe the median over splits of each score that is reached without any model."""
    baseline_scores = tables["baselines"].groupby(["dataset", "baseline", "score"], sort=False)
    for (dataset, baseline, score), values in baseline_scores["value"]:
        yield (
            f"On {quoted(dataset)}, {quoted(score)} of the baseline {quoted(baseline)} is "
            f"{values.median():.4g}."
        )


def _largest_of_epochs(tables: Tables) -> Iterator[str]:
    """Describe the largest value of each score over the epochs of a run, and its epoch.

    Of each score, only the configuration with the largest median over runs is named.
    """
    scores = with_labels(tables["epoch_scores"], tables)
    if scores.empty:
        return
    runs = [*CONFIGURATION, "repeat", "session"]
    largest = scores.loc[scores.groupby([*runs, "score"], sort=False)["value"].idxmax()]
    sides = joined(sorted(scores["validated_on"].unique()))
    for score, score_rows in largest.groupby("score", sort=False):
        by_label = score_rows.groupby("label", sort=False)
        medians = by_label["value"].median()
        label = medians.idxmax()
        yield (
            f"By the {sides} rows, {quoted(score)} is largest for {quoted(label)}: a median of "
            f"{medians[label]:.4g}, after epoch {span(by_label.get_group(label)['epoch'])}."
        )


def _leakage(tables: Tables) -> Iterator[str]:
    """Describe, for each split, how scores depend on similar genomes in training."""
    leakage = tables["leakage"]
    if leakage.empty and not any_ok(tables) and not all_programs(tables):
        yield "What near-duplicates in training add to the scores is unavailable: no run ended ok."
    for name, group in leakage.groupby("dataset", sort=False):
        dataset, split_by = quoted(name), quoted(group["split_by"].iloc[0])
        fraction = 100 * group["similar_fraction"].median()
        # A fraction below 1 % is not shown as 0 %.
        number = f"{fraction:.0f} %" if fraction == 0 or fraction >= 1 else f"{fraction:.1g} %"
        yield (
            f"On {dataset}, split by {split_by}, {number} of the test rows have a near-duplicate "
            "in training."
        )
        for workload, runs in group.groupby("workload", sort=False):
            rest = runs["rest_accuracy"].dropna()
            found = "and unavailable on rows without near-duplicate, as there are none"
            if len(rest):
                found = f"and {rest.median():.3f} on rows without near-duplicate"
            accuracy = f"{runs['accuracy'].median():.3f} on all test rows"
            yield f"On {dataset}, the accuracy of {quoted(workload)} is {accuracy}, {found}."
        whole = sorted(set(";".join(group["not_separable"].dropna()).split(";")) - {""})
        if whole:
            classes = quoted(", ".join(whole))
            yield f"On {dataset}, {classes} cannot be separated and has no score."
