"""Draw the mean of each score with its interval, and its mean difference from the reference."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from escala.analysis.comparable import CONFIGURATION
from escala.core.readable import with_noun
from escala.report.figures import common
from escala.report.figures.common import (
    PANEL_TITLE,
    Look,
    describe_data,
    height_of,
    in_order,
    looks,
    wrap,
    wrap_names,
)
from escala.report.tables.views import add_labels, all_programs

CATEGORY = "Quality"
CAPTION = (
    "Scores: the mean over the runs of each configuration, and the mean difference from the "
    "reference in paired runs with the same rows and seeds. Each pale point is one run. Bars are "
    "intervals over repeats by Student's distribution. Equal values have no bar. With one "
    "split, bars cover other weights and orders, but not other rows. With several splits, runs "
    "share rows, so bars are rather too narrow."
)
WHAT = "Scores on the test rows"
#: The title for programs, which select their test rows themselves.
REPORTED = "Scores that the program reports"


def draw(tables: common.Tables) -> Figure:
    """Draw a row of panels for each score: its values by configuration, and the differences."""
    shown, notes = common.select(tables)
    if shown["mean_scores"].empty:
        return common.without_data(WHAT, shown, "scores")
    runs = shown["runs"]
    # A configuration has a row for each score and reference. The first reference is drawn.
    ordered = add_labels(shown["mean_scores"], runs).sort_values(
        "reference", kind="stable", na_position="first"
    )
    means = in_order(ordered.drop_duplicates([*CONFIGURATION, "score"]).sort_index())
    scored = runs[runs["current"] & (runs["status"] == "ok") & runs["accuracy"].notna()]
    accuracy = scored.assign(score="accuracy", value=scored["accuracy"])
    columns = [*CONFIGURATION, "score", "value"]
    frames = [frame[columns] for frame in (accuracy, shown["scores"]) if len(frame)]
    values = add_labels(pd.concat(frames, ignore_index=True), runs)
    look_of, compared = looks(means), means["difference"].notna().any()
    parts = list(means.groupby(["dataset", "workload", "score"], sort=False))
    row_height = max(0.28, height_of(wrap_names(look_of)) + 0.08)
    heights = [0.9 + row_height * len(frame) for _, frame in parts]
    figure = common.new(9 if compared else 6, sum(heights))
    grid = figure.subplots(
        len(parts), 1 + compared, squeeze=False, height_ratios=heights, sharey="row"
    )
    several = len(common.panels(means)) > 1
    for axes, ((dataset, workload, score), frame) in zip(grid, parts, strict=True):
        keys = {"dataset": dataset, "workload": workload, "score": score}
        of_score = values[(values[list(keys)] == list(keys.values())).all(axis=1)]
        # Every run is a circle above the mean with its interval.
        for place, label in enumerate(frame["label"]):
            points = of_score.loc[of_score["label"] == label, "value"].astype(float)
            height, colour = np.full(len(points), place - 0.22), look_of[label].colour
            axes[0].scatter(points, height, s=14, edgecolors=colour, **common.CIRCLES)
        _draw_intervals(axes[0], frame, "mean", look_of)
        axes[0].set_yticks(range(len(frame)), wrap_names(frame["label"]))
        axes[0].set(ylim=(len(frame) - 0.5, -0.6), xlabel="score")
        heading = f"{dataset}, {workload}: {score}" if several else score
        axes[0].set_title(wrap(heading, 3.2, PANEL_TITLE))
        known = frame[frame["difference"].notna()]
        if compared and known.empty:
            axes[1].remove()
        elif compared:
            axes[1].axvline(0, color="0.4", linestyle="--", linewidth=1)
            _draw_intervals(axes[1], frame, "difference", look_of)
            heading = f"difference from {common.reference_name(known)}"
            axes[1].set_title(wrap(heading, 3.2, PANEL_TITLE))
            axes[1].set_xlabel("difference of the score")
    what = REPORTED if all_programs(shown) else WHAT
    common.finish(figure, [what, describe_data(means)], [*_counts(means, several), *notes])
    return figure


def _draw_intervals(axes: Axes, means: pd.DataFrame, column: str, look_of: dict[str, Look]) -> None:
    """Draw a column of means with its intervals, a row for each label."""
    rows = means[["label", column, f"{column}_low", f"{column}_high"]].itertuples(index=False)
    for place, (label, middle, low, high) in enumerate(rows):
        if pd.notna(middle):
            look, bars = look_of[label], common.error_bars(middle, low, high)
            axes.errorbar(
                [middle], [place], xerr=bars, color=look.colour, marker=look.marker,
                fillstyle=look.fill, markersize=6, capsize=3, linewidth=1.5,
            )  # fmt: skip
    axes.locator_params(axis="x", nbins=5)


def _counts(means: pd.DataFrame, several: bool) -> list[str]:
    """Return notes on the runs and paired runs of means, and on labels without paired runs."""
    notes = [f"{_span(means['runs'], 'run')} for each configuration."]
    compared = means[means["matches"] > 0]
    if len(compared):
        notes[0] += f" Differences are over {_span(compared['matches'], 'paired run')}."
        labels = means.loc[means["difference"].notna(), "reference_label"].unique()
        notes[0] += f" References: {', '.join(labels)}." * (len(labels) > 1)
    keys = ["dataset", "workload", "label", "reference_label"]
    most = means[means["reference"].notna()].groupby(keys, sort=False)["matches"].max()
    parts = [
        (f"{dataset} {workload} " if several else "") + f"{label} (no paired run with {reference})"
        for dataset, workload, label, reference in most[most == 0].index
    ]
    return [*notes, *[f"Without difference: {'; '.join(parts)}."] * bool(parts)]


def _span(counts: pd.Series, noun: str) -> str:
    """Return the least and the largest of some counts, with their noun."""
    low, high = int(counts.min()), int(counts.max())
    most = with_noun(high, noun)
    return most if low == high else f"{low} to {most}"
