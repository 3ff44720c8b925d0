"""Draw the training time of every configuration, narrow enough for the first screen of a phone.

Names stand above the marks. A reader of the SVG who points at a row sees its values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from escala.analysis.comparable import CONFIGURATION
from escala.analysis.cost_model.predictions import BOUNDS, EXTRAPOLATED
from escala.core.readable import number, with_interval
from escala.experiment.runs import MAIN
from escala.report.figures import common
from escala.report.figures.common import (
    PANEL_TITLE,
    Colour,
    describe_data,
    in_order,
    strategy_look,
    wrap,
)
from escala.report.findings.context import Report, configuration_of, headline, ratio_of
from escala.report.findings.words import Names, name_in_words
from escala.report.tables.views import add_labels, is_among, time_in_words

CATEGORY = "Time"
CAPTION = (
    "Training time of each configuration: of an epoch, or of the whole run of a program that "
    "reports no epochs. If the experiment has a target accuracy, also the training time until a "
    "run reached it. The time contains training steps and nothing else. Values are in the table "
    "``configurations``."
)
WHAT = "Training time per epoch"
#: The most configurations of a dataset and workload.
MOST = 20
# Colours of the noise floor with its edge, and of a prediction.
_FLOOR, _EDGE, _BAND = "#fbf0cf", "#8a6d00", "#d8dde2"
_RATIO_OF_MAIN = "1 (the main reference)"
_ENDS = ("", "_low", "_high")
_PREDICTED = [f"predicted{end}_seconds_per_epoch" for end in ("_low", "", "_high")]


class Row(NamedTuple):
    """What a panel shows of a configuration. Times are seconds, NaN where unknown.

    Attributes
    ----------
    seconds : the median.
    ends : the lower and the upper end of the median's interval.
    runs : the time of each run.
    value : the median in words, or the reason why there is no median.
    texts : names and values, for readers who point at the row.
    ideal : the time at which the speed-up equals the cores as a multiple of the reference's cores.
    predicted : lower end, median and upper end of a prediction.
    basis : what the prediction is computed from.
    floor : the least and the largest time that cannot be distinguished from the main reference's.
    """

    name: str
    colour: Colour
    seconds: float
    ends: Sequence[float]
    runs: Sequence[float]
    value: str
    texts: dict[str, str]
    ideal: float = math.nan
    predicted: Sequence[float] = (math.nan,) * 3
    basis: str | None = None
    floor: tuple[float, float] = (math.nan,) * 2


class Panel(NamedTuple):
    """The times of a dataset and workload: of an epoch, or to the target accuracy."""

    title: str
    axis: str
    rows: list[Row]


def draw(tables: common.Tables) -> Figure:
    """Draw a row per configuration: the median with its interval, and each run as a point."""
    shown, notes = common.select(tables, MOST, by_steps=True)
    if shown["runs"].empty:
        return common.empty(WHAT, describe_data(tables["runs"]), " ".join(notes))
    if not (shown["configurations"]["kind"] != "unavailable").any():
        return common.without_data(WHAT, shown, "times measured without interruption")
    panels = list(_panels(shown, Names(name_in_words(tables))))
    rows = [row for panel in panels for row in panel.rows]
    height = common.height_with_names((row.name, row.value) for row in rows)
    heights = [height * len(panel.rows) for panel in panels]
    figure = common.new(common.NARROW, sum(heights) + 0.8 * len(panels))
    grid = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)
    for axes, panel in zip(grid.flat, panels, strict=True):
        # An inch in units of the vertical axis, on which a row takes 1.
        inch, farthest = 1 / height, 0.0
        for place, row in enumerate(panel.rows):
            low, middle, high = row.predicted
            mark, width = {"color": row.colour}, 0.2 * inch
            if not math.isnan(row.floor[0]):
                long = row.floor[1] - row.floor[0]
                axes.barh(place, long, 1.4 * width, row.floor[0], color=_FLOOR, ec=_EDGE, lw=0.8)
            if not math.isnan(low):
                hatch = "////" if row.basis == EXTRAPOLATED else None
                band = {"color": _BAND, "edgecolor": common.GREY, "linewidth": 0.8, "hatch": hatch}
                axes.barh(place, high - low, width, low, **band)
            up, down = place - width / 2, place + width / 2
            axes.vlines([middle, row.ideal], up, down, color=[common.GREY, "0.35"], linewidth=1)
            offsets = np.linspace(-0.05, 0.05, len(row.runs)) if len(row.runs) > 1 else np.zeros(1)
            if row.runs:
                spots = place + inch * offsets
                axes.scatter(row.runs, spots, s=14, edgecolors=row.colour, **common.CIRCLES)
            axes.hlines(place, *row.ends, linewidth=2.2, **mark)
            axes.vlines(row.seconds, up, down, linewidth=2.5, **mark)
            lines = [row.name, *(f"{name}: {text}" for name, text in row.texts.items())]
            lines += [f"single runs: {', '.join(map(number, row.runs))} s"] * bool(row.runs)
            # The tooltip belongs to an almost transparent area over the whole row.
            end = place + common.BELOW * inch
            area = axes.axhspan(end - 1, end, linewidth=0, zorder=9, color="black", alpha=0.004)
            common.add_tooltip(area, "\n".join(lines))
            values = [*row.predicted, *row.floor, *row.ends, *row.runs, row.seconds, row.ideal]
            farthest = max([farthest, *(value for value in values if not math.isnan(value))])
        common.name_rows(axes, [(row.name, row.value) for row in panel.rows], height, farthest)
        axes.set_xlabel(panel.axis)
        axes.set_title(wrap(panel.title, 0.9 * common.NARROW, PANEL_TITLE), loc="left")
    what = time_in_words(shown).capitalize()
    data = describe_data(shown["configurations"])
    common.finish(figure, [what, data], [_explain_marks(rows), *notes])
    return figure


def _panels(tables: common.Tables, names: Names) -> Iterator[Panel]:
    """Yield the panels of each dataset and workload.

    If batches differ, times to the target accuracy decide, and come first.

    Parameters
    ----------
    names : of configurations, in words.
    """
    keys, predicted = list(CONFIGURATION), [*_PREDICTED, "basis"]
    configurations, runs = (
        add_labels(tables[name], tables["runs"]) for name in ("configurations", "runs")
    )
    runs = runs[(runs["status"] == "ok") & runs["comparable"]]
    configurations = configurations.merge(
        tables["predictions"][[*keys, *predicted]], "left", keys
    ).merge(tables["noise"][[*keys, "floor"]], "left", keys)
    rows = {configuration_of(row): row for row in configurations.itertuples()}
    compared = Report(tables).against_main
    several = len(common.panels(configurations)) > 1
    for (_, workload), frame in common.panels(in_order(configurations.fillna({"reference": 0}))):
        title = common.panel_title(workload, frame, several)
        epochs, to_target, target_decides = [], [], False
        for row in frame.itertuples():
            of_row = runs[is_among(runs, {configuration_of(row)})]
            against, reference = compared.get(configuration_of(row)), row
            if against is not None:
                reference = rows.get(configuration_of(against, "reference_"))
                target_decides |= headline(against).to_target
            name = names(row.label).replace("`", "")
            epochs.append(_epoch_row(name, row, of_row, against, reference))
            to_target.append(_target_row(name, row, of_row, against))
        panels = [Panel(title, f"{time_in_words(tables, workload)} (s)", epochs)]
        targets = frame.loc[frame["time_to_target_kind"] != "unavailable", "target_accuracy"]
        if targets.notna().any():
            axis = f"training time to accuracy {targets.dropna().iloc[0]:g} (s)"
            panels.append(Panel(title, axis, to_target))
        yield from panels[::-1] if target_decides else panels


def _epoch_row(name: str, row, runs: pd.DataFrame, against, reference) -> Row:
    """Return what is known of the time of an epoch.

    Parameters
    ----------
    name : of the configuration, in words.
    row : of the table `configurations`, with predictions and noise floors. `runs` has its runs.
    against : the row of `speedup` that compares `row` with the main reference; None without one.
    reference : the row of the main reference, which may be `row`; None if the figure does not show
        it.
    """
    seconds, *ends = (getattr(row, f"train{end}_seconds_per_epoch") for end in _ENDS)
    about = "≈ " * (row.kind == "estimated")
    value = f"{about}{number(seconds)} s"
    if row.kind == "unavailable" or pd.isna(seconds):
        seconds, *ends = (math.nan,) * 3
        value = "no run ended ok" + " without interruption" * bool(row.runs_ok)
    texts = {"configuration": row.label, "training time": about + _time(seconds, *ends)}
    base = floor = ideal = math.nan
    if reference:
        base, floor = reference.train_seconds_per_epoch, reference.floor
    if against is not None:
        texts["ratio to the main reference"] = Names().ratio(ratio_of(against))
        texts["verdict"] = headline(against).brief
        if pd.notna(against.reference_cores):
            ideal = float(base * against.reference_cores / against.cores)
            texts["ideal"] = _time(ideal)
    elif row.reference == MAIN:
        texts["ratio"] = _RATIO_OF_MAIN
    low, middle, high = (float(getattr(row, column)) for column in _PREDICTED)
    if pd.notna(row.basis):
        texts["predicted"] = _time(middle, low, high)
    if pd.notna(floor):
        texts["noise floor of the main reference"] = f"{100 * floor:.1f} %"
    texts["runs ok"] = f"{row.runs_ok} of {row.runs_ok + row.runs_failed}"
    return Row(
        name + " (its processes shared cores)" * bool(row.oversubscribed),
        strategy_look(row.strategy).colour,
        seconds,
        ends,
        list(runs["train_seconds_per_epoch"].astype(float)),
        value,
        texts,
        ideal,
        (low, middle, high),
        row.basis,
        (base / (1 + floor), base * (1 + floor)),
    )


def _target_row(name: str, row, runs: pd.DataFrame, against) -> Row:
    """Return what is known of the time to the target accuracy. A censored time is a lower bound."""
    known = row.time_to_target_kind != "unavailable" and pd.notna(row.time_to_target_seconds)
    seconds = float(row.time_to_target_seconds) if known else math.nan
    ends = (row.time_to_target_low_seconds, row.time_to_target_high_seconds)
    bound = "> " * (row.time_to_target_kind == "censored")
    reached = runs[runs["time_to_target_kind"] == "measured"]["time_to_target_seconds"]
    texts = {"configuration": row.label, "training time": bound + _time(seconds, *ends)}
    if against is not None and (shown := headline(against)).to_target:
        texts |= {"ratio to the main reference": Names().ratio(shown.ratio), "verdict": shown.brief}
    elif row.reference == MAIN:
        texts["ratio"] = _RATIO_OF_MAIN
    value = f"{bound}{number(seconds)} s" if known else "no result"
    colour = strategy_look(row.strategy).colour
    return Row(name, colour, seconds, ends, list(reached.dropna().astype(float)), value, texts)


def _time(seconds: float, low: float = math.nan, high: float = math.nan) -> str:
    """Return a time with its interval in words, or only the interval if the time is unknown."""
    if pd.isna(seconds) and pd.notna(low):
        return f"{number(low)}–{number(high)} s"
    return "–" if pd.isna(seconds) else with_interval(seconds, low, high, unit=" s")


def _explain_marks(rows: Sequence[Row]) -> str:
    """Return a sentence on each kind of mark that the figure has."""
    bands = {row.basis for row in rows if not math.isnan(row.predicted[0])}
    estimates = [
        row for row in rows if math.isnan(row.predicted[0]) and not math.isnan(row.predicted[1])
    ]
    marks = {
        "After >, some runs did not reach the accuracy.": any(">" in row.value for row in rows),
        "≈: estimated from runs that were cut short.": any("≈" in row.value for row in rows),
        "Thin lines: the ideal, where twice the cores of the main reference take half of its time.":
            any(not math.isnan(row.ideal) for row in rows),
        "Grey bands: what the cost model predicts, with its 90 % interval for a further run.":
            bool(bands - {BOUNDS}),
        "Hatched bands go beyond the calibration.": EXTRAPOLATED in bands,
        "Grey lines without a band: estimates for more ranks than the checked predictions have.":
            bool(estimates),
        "Grey bands of programs: estimated bounds, from full overlap of computing and exchange to "
        "none.": BOUNDS in bands,
        "Yellow bands: the noise floor. Times in it cannot be distinguished from the "
        "main reference.": any(not math.isnan(row.floor[0]) for row in rows),
    }  # fmt: skip
    first = (
        "Thick lines: medians with their intervals (the range for fewer than six runs); "
        "points: single runs of all sessions."
    )
    return " ".join([first, *(text for text, is_drawn in marks.items() if is_drawn)])
