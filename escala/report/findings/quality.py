"""Describe how good the models are."""

from __future__ import annotations

import pandas as pd

from escala.report.findings.words import (
    Tables,
    joined,
    score_differences,
    with_labels,
)
from escala.report.tables.views import any_ok, trained_by_steps, untested

POSITION = 60


def sentence(tables: Tables, name: str) -> str:
    """Describe how good the models are, and whether configurations differ in it."""
    scored = pd.concat([tables[name][["dataset", "leaky"]] for name in ("pooled", "scores")])
    if scored.empty:
        why = "no run ended ok"
        if any_ok(tables):
            why = "no run that ended ok trained over whole epochs"
        return f"The quality of the models is unavailable: {why}."
    leaky = sorted(scored.loc[scored["leaky"].astype(bool), "dataset"].unique())
    unscored = untested(tables["pooled"])
    parts = [
        *_of_networks(trained_by_steps(tables)),
        _of_pairs(trained_by_steps(tables)),
        *_of_fits(tables),
        *_of_own_scores(tables),
        f"no test rows and hence no scores: {joined(unscored)}" if unscored else "",
        f"scores on {joined(leaky)} are too good: its split is leaky" if leaky else "",
    ]
    text = "; ".join(filter(None, parts))
    return f"{text[0].upper()}{text[1:]}."


def _of_networks(tables: Tables) -> list[str]:
    """Describe the scores of workloads that are trained by steps."""
    pooled = with_labels(tables["pooled"], tables)
    if pooled.empty:
        return []
    scored = with_labels(tables["configurations"], tables).dropna(subset=["accuracy"])
    worst, best = scored.loc[scored["accuracy"].idxmin()], scored.loc[scored["accuracy"].idxmax()]
    accuracy = (
        f"is {best.accuracy:.3f} under every configuration" if worst.accuracy == best.accuracy
        else f"is between {worst.accuracy:.3f} ({worst.label}) and {best.accuracy:.3f} "
        f"({best.label})"
    )  # fmt: skip
    lowest = " and ".join(_lowest(pooled, rate) for rate in ("precision", "recall"))
    apart = _apart(pooled)
    equality = (
        "" if scored.groupby(["dataset", "workload"]).size().max() == 1
        else "the intervals of all configurations overlap for every class" if not apart
        else f"the intervals do not all overlap for {joined(apart)}"
    )  # fmt: skip
    return [f"the median accuracy {accuracy}", f"pooled over runs and splits, {lowest}", equality]


def _of_pairs(tables: Tables) -> str:
    """Describe how precision and recall differ from those of the main reference."""
    scores = tables["score_differences"]
    known = score_differences(with_labels(scores[scores["reference"] == 1], tables))
    if known.empty:
        return ""
    names = known["rate"] + ", " + known["label"]
    bound = known[["low", "high"]].abs().max(axis=1)
    apart = known[(known["low"] > 0) | (known["high"] < 0)]
    differing = [
        f"{names[row.Index]} ({row.low:+.3f} to {row.high:+.3f})" for row in apart.itertuples()
    ]
    return (
        f"compared with {joined(known['reference_label'].unique())} on the same test rows, no "
        f"class differs in precision or recall by more than {bound.max():.3f} "
        f"({names[bound.idxmax()]}), by the 95 % intervals of the differences"
        + (f"; they exclude 0 for {joined(differing)}" if differing else "")
    )


def _of_fits(tables: Tables) -> list[str]:
    """Describe the accuracy of the baselines, which are fitted at once."""
    configurations = tables["configurations"]
    fits = configurations[configurations["training_kind"] == "fit"].dropna(subset=["accuracy"])
    return [
        f"on {dataset} an accuracy of "
        + joined(f"{row.accuracy:.3f} is reached by {row.workload}" for row in group.itertuples())
        for dataset, group in fits.groupby("dataset", sort=False)
    ]


def _of_own_scores(tables: Tables) -> list[str]:
    """Describe each score of workloads that bring their own, by its medians and ranges."""
    scores = with_labels(tables["scores"], tables)
    return [
        f"the median of {name} is "
        + joined(
            f"{values.median():.4g} for {label} ({_range(values)})"
            for label, values in of_score.groupby("label", sort=False)["value"]
        )
        for name, of_score in scores.groupby("score", sort=False)
    ]


def _range(values: pd.Series) -> str:
    if len(values) == 1:
        return "one run"
    return f"range {values.min():.4g} to {values.max():.4g}, {len(values)} runs"


def _lowest(pooled: pd.DataFrame, rate: str) -> str:
    known = pooled.dropna(subset=[rate])
    if known.empty:
        return f"the lowest {rate} is unavailable"
    row = known.loc[known[rate].idxmin()]
    return (
        f"the lowest {rate} of a class is {row[rate]:.3f} ({row['class']}, {row.label}; 95 % "
        f"interval {row[f'{rate}_low']:.3f} to {row[f'{rate}_high']:.3f})"
    )


def _apart(pooled: pd.DataFrame) -> list[str]:
    """Name the rates whose intervals do not overlap between all configurations of a dataset."""
    return [
        f"the {rate} of {name} ({dataset})"
        for (dataset, _, name), group in pooled.groupby(
            ["dataset", "workload", "class"], sort=False
        )
        for rate in ("precision", "recall")
        if group[f"{rate}_low"].max() > group[f"{rate}_high"].min()
    ]
