"""Draw the mean of each score with its interval, and its mean difference from the reference."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.core.readable import counted
from escala.record.comparable import CONFIGURATION
from escala.report.figures.common import (
    PANEL_TITLE,
    Tables,
    gaps,
    name_height,
    new,
    not_all,
    note,
    panels,
    reference_name,
    title,
    without_data,
    wrap,
    wrapped_names,
)
from escala.report.figures.looks import Look, in_order, looks
from escala.report.tables.views import all_programs, fastest, labelled

CATEGORY = "Quality"
WHAT = "Scores on the test rows"
#: The same of programs, whose rows are their own affair.
REPORTED = "Scores that the program reports"


def draw(tables: Tables) -> Figure:
    """Draw a row of panels for each score: its values by configuration, and the differences."""
    everything, tables = tables, fastest(tables)
    means = tables["mean_scores"]
    if means.empty:
        return without_data(WHAT, tables, "scores")
    means = in_order(_with_main_reference(labelled(means, tables["runs"])))
    values = labelled(_values(tables), tables["runs"])
    shown, compared = looks(means), means["difference"].notna().any()
    parts = [
        (dataset, workload, score, of_score)
        for (dataset, workload), frame in panels(means)
        for score, of_score in frame.groupby("score", sort=False)
    ]
    names = wrapped_names(shown)
    heights = [0.9 + max(0.28, name_height(names) + 0.08) * len(part[-1]) for part in parts]
    figure = new(9 if compared else 6, sum(heights))
    grid = figure.subplots(
        len(parts), 1 + compared, squeeze=False, height_ratios=heights, sharey="row"
    )
    several = len(panels(means)) > 1
    for axes, (dataset, workload, score, of_score) in zip(grid, parts, strict=True):
        of_part = values[
            (values["dataset"] == dataset)
            & (values["workload"] == workload)
            & (values["score"] == score)
        ]
        _means(axes[0], of_score, of_part, shown)
        heading = f"{dataset}, {workload}: {score}" if several else score
        axes[0].set_title(wrap(heading, 3.2, PANEL_TITLE))
        if compared:
            _differences(axes[1], of_score, shown)
    title(figure, REPORTED if all_programs(tables) else WHAT, means)
    note(
        figure,
        [
            _reading(means),
            *_without_difference(means),
            *not_all(everything, tables),
            *gaps(tables["runs"]),
        ],
    )
    return figure


def _with_main_reference(means: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each score of a configuration: that with its first reference."""
    ordered = means.sort_values("reference", kind="stable", na_position="first")
    return ordered.drop_duplicates([*CONFIGURATION, "score"]).sort_index()


def _values(tables: Tables) -> pd.DataFrame:
    """Return the score of every run of the table of means."""
    runs = tables["runs"]
    scored = runs[runs["current"] & (runs["status"] == "ok") & runs["accuracy"].notna()]
    accuracy = scored.assign(score="accuracy", value=scored["accuracy"])
    columns = [*CONFIGURATION, "score", "value"]
    own = [frame[columns] for frame in (accuracy, tables["scores"]) if len(frame)]
    return pd.concat(own, ignore_index=True)


def _means(axes: Axes, means: pd.DataFrame, values: pd.DataFrame, shown: dict[str, Look]) -> None:
    """Draw every run as a pale point, and the mean with its interval."""
    for place, label in enumerate(means["label"]):
        own = values.loc[values["label"] == label, "value"].astype(float)
        look = shown[label]
        axes.scatter(
            own, np.full(len(own), place - 0.22), s=12, alpha=0.5, color=look.colour, linewidth=0
        )
    _intervals(axes, means, "mean", shown)
    axes.set_yticks(range(len(means)), wrapped_names(means["label"]))
    axes.set_ylim(len(means) - 0.5, -0.6)
    axes.set_xlabel("score")


def _differences(axes: Axes, means: pd.DataFrame, shown: dict[str, Look]) -> None:
    """Draw the mean difference with its interval, and a line at 0; nothing if there is none."""
    if means["difference"].isna().all():
        axes.remove()
        return
    reference = reference_name(means[means["difference"].notna()])
    axes.axvline(0, color="0.4", linestyle="--", linewidth=1)
    _intervals(axes, means, "difference", shown)
    axes.set_title(wrap(f"difference from {reference}", 3.2, PANEL_TITLE))
    axes.set_xlabel("difference of the score")


def _intervals(axes: Axes, means: pd.DataFrame, column: str, shown: dict[str, Look]) -> None:
    for place, (label, middle, low, high) in enumerate(
        means[["label", column, f"{column}_low", f"{column}_high"]].itertuples(index=False)
    ):
        if pd.isna(middle):
            continue
        look = shown[label]
        ends = [[0], [0]] if pd.isna(low) else [[middle - low], [high - middle]]
        axes.errorbar(
            [middle], [place], xerr=ends, color=look.colour, marker=look.marker,
            fillstyle=look.fill, markersize=6, capsize=3, linewidth=1.5,
        )  # fmt: skip
    axes.locator_params(axis="x", nbins=5)


def _labels(means: pd.DataFrame) -> list[str]:
    """Return the labels of the references of rows with differences."""
    return list(means.loc[means["difference"].notna(), "reference_label"].unique())


def _reading(means: pd.DataFrame) -> str:
    """Return how to read the figure."""
    compared = means[means["pairs"] > 0]
    sentences = [
        f"Pale points: one run each ({_span(means['runs'], 'run')} for each configuration).",
        "Markers: means; bars: 95 % intervals by Student's distribution over repeats (none for a "
        "single value).",
    ]
    if (means["splits"] == 1).any():
        sentences.append("With one split, bars cover other weights and orders, but not other rows.")
    if (means["splits"] > 1).any():
        sentences.append("Several splits share rows, so bars are rather too narrow.")
    if len(compared):
        pairs = _span(compared["pairs"], "pair")
        sentences.append(f"Differences are of runs with the same rows and seeds ({pairs}).")
        labels = _labels(means)
        sentences += [f"References: {', '.join(labels)}."] * (len(labels) > 1)
    return " ".join(sentences)


def _span(counts: pd.Series, one: str) -> str:
    low, high = int(counts.min()), int(counts.max())
    return counted(high, one) if low == high else f"{low} to {counted(high, one)}"


def _without_difference(means: pd.DataFrame) -> list[str]:
    """Return a note on the configurations that have a reference and no pair, if there are any."""
    several = len(panels(means)) > 1
    keys = ["dataset", "workload", "label", "reference_label"]
    most = means[means["reference"].notna()].groupby(keys, sort=False)["pairs"].max()
    parts = [
        (f"{dataset} {workload} " if several else "") + f"{label} (no pair with {reference})"
        for dataset, workload, label, reference in most[most == 0].index
    ]
    return [f"Without difference: {'; '.join(parts)}."] * bool(parts)
