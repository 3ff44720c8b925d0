"""Draw the chart of the first screen: the time of each configuration, narrow enough for a phone.

It is a Vega-Lite specification. The page has it as a drawing, and Vega adds values to it where
JavaScript runs. Vega evaluates no text as code (`ast`), and adds no style, so the page's policy
allows it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import pandas as pd

from escala.analysis.cost_model.predictions import BOUNDS, EXTRAPOLATED
from escala.record.comparable import CONFIGURATION
from escala.report.figures.looks import described, hex_code, in_order, significant, strategy_look
from escala.report.findings.verdicts import (
    Ratio,
    in_brief,
    interval,
    names_of_reference,
    names_of_rows,
    of_epochs,
    on_its_own,
)
from escala.report.findings.words import Tables
from escala.report.tables.views import fastest, labelled, per_epoch, trained_by_steps

#: Configurations in a chart.
MOST = 20
_WIDTH, _ROW = 330, 46
_NAME_PIXELS, _VALUE_PIXELS = 240, 85
_INK, _SOFT, _BAND, _LINE = "#1b1f24", "#57606a", "#d8dde2", "#e4e8ec"
_FLOOR = "#fbf0cf"
#: The band of a prediction that goes beyond what was calibrated.
_FAR_BAND = "#eef1f4"
#: Before a time that is estimated.
_ESTIMATED = "≈ "
#: Characters of a configuration's name that there is room for.
_NAME_CHARACTERS = 33
#: Columns of the values that a reader gets by pointing, with their titles.
_TOLD = {
    "label": "configuration",
    "time": "training time",
    "ratio": "ratio to the main reference",
    "verdict": "verdict",
    "ideal": "ideal (s)",
    "predicted": "predicted (s)",
    "runs": "runs ok",
}


class Chart(NamedTuple):
    """A chart of the page.

    Attributes
    ----------
    specification : of Vega-Lite.
    svg : its drawing.
    caption : plain text.
    """

    specification: dict
    svg: str
    caption: str


def chart(tables: Tables) -> Chart | None:
    """Draw the training time of each configuration; None if no time is known.

    It is that of an epoch and, if the experiment has a target accuracy, that to this accuracy. The
    latter comes first where it decides, because batches differ.
    """
    shown = list(_panels(trained_by_steps(tables)))
    if not shown:
        return None
    import altair as alt
    import vl_convert

    several = len(shown) > 1
    charts = [
        _panel(alt, *times, several)
        for frame, points, _ in shown
        for times in _in_order(
            frame,
            (frame, points, f"{per_epoch(tables, frame['workload'].iloc[0])} (s)"),
            *_to_target(frame, points),
        )
    ]
    whole = alt.vconcat(*charts, spacing=24).configure(
        font="system-ui, DejaVu Sans, sans-serif",
        aria=False,
        background="transparent",
        view=alt.ViewConfig(stroke=None),
        axis=alt.AxisConfig(
            labelColor=_SOFT, titleColor=_INK, labelFontSize=11, titleFontSize=12, gridColor=_LINE,
            titleFontWeight="normal", domain=False, tickColor=_LINE,
        ),
        title=alt.TitleConfig(color=_INK, fontSize=12, anchor="start", limit=_WIDTH),
    )  # fmt: skip
    specification = whole.to_dict()
    return Chart(specification, vl_convert.vegalite_to_svg(specification), _caption(shown))


def _panels(tables: Tables) -> Iterator[tuple[pd.DataFrame, pd.DataFrame, int]]:
    """Yield the rows and the runs of each dataset and workload, and the rows that are left out.

    The title of a panel has the dataset and the workload, so the labels in it leave them out.
    """
    configurations = labelled(tables["configurations"], tables["runs"])
    if not (configurations["kind"] != "unavailable").any():
        return
    of_times = {name: tables[name] for name in ("configurations", "speedup")}
    kept = labelled(fastest(of_times, MOST)["configurations"], tables["runs"])
    runs = labelled(tables["runs"], tables["runs"])
    runs = runs[(runs["status"] == "ok") & runs["comparable"]]
    for names, frame in configurations.groupby(["dataset", "workload"], sort=False):
        of_data = runs[(runs[["dataset", "workload"]] == list(names)).all(axis=1)]
        shown = kept[(kept[["dataset", "workload"]] == list(names)).all(axis=1)]
        rows = _rows(in_order(shown), tables)
        points = of_data[of_data["label"].isin(shown["label"])]
        reached = points["time_to_target_kind"] == "measured"
        points = pd.DataFrame(
            {
                "label": points["label"],
                "seconds": points["train_seconds_per_epoch"].astype(float),
                "target_seconds": points["time_to_target_seconds"].where(reached).astype(float),
            }
        )
        yield rows, points, len(frame) - len(shown)


def _in_order(frame: pd.DataFrame, *panels: tuple) -> tuple:
    """Return panels, reversed if the times to the target decide."""
    return panels[::-1] if frame["to_target"].any() else panels


def _to_target(
    frame: pd.DataFrame, points: pd.DataFrame
) -> Iterator[tuple[pd.DataFrame, pd.DataFrame, str]]:
    """Yield a panel's rows and runs with the times to the target, if there is one, and its title.

    There are no ideal, prediction and noise floor of such a time.
    """
    if frame["target"].isna().all():
        return
    only_of_epochs = ("ideal", "predicted", "predicted_low", "predicted_high", "floor_low")
    names = ("seconds", "low", "high", "time", "value", "ratio")
    (target, *_) = frame["target"].dropna().unique()
    yield (
        frame.assign(
            **{name: frame[f"target_{name}"] for name in names},
            **dict.fromkeys((*only_of_epochs, "floor", "floor_high")),
        ),
        points.assign(seconds=points["target_seconds"]).dropna(subset=["seconds"]),
        f"training time to accuracy {target:g} (s)",
    )


def _rows(configurations: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """Return what a panel shows of each configuration, with None where something is unknown."""
    speedup = labelled(tables["speedup"], tables["runs"])
    against_main = speedup[speedup["reference"] == 1]
    compared = dict(
        zip(names_of_rows(against_main), against_main.itertuples(index=False), strict=True)
    )
    predictions = tables["predictions"].set_index(list(CONFIGURATION))
    references = configurations[configurations["reference"] == 1]
    of_references = dict(
        zip(names_of_rows(references), references["train_seconds_per_epoch"], strict=True)
    )
    floors = tables["noise"].set_index(list(CONFIGURATION))["floor"].dropna()
    rows = []
    for row in configurations.fillna({"reference": 0}).itertuples():
        names = tuple(getattr(row, part) for part in CONFIGURATION)
        seconds = row.train_seconds_per_epoch
        known = row.kind != "unavailable" and pd.notna(seconds)
        ends = (row.train_low_seconds_per_epoch, row.train_high_seconds_per_epoch)
        found = {
            "label": row.label,
            "data": described(configurations),
            "workload": row.workload,
            "colour": hex_code(strategy_look(row.strategy).colour),
            "seconds": float(seconds) if known else None,
            "low": float(ends[0]) if known and pd.notna(ends[0]) else None,
            "high": float(ends[1]) if known and pd.notna(ends[1]) else None,
            "time": f"{_about(row)}{_time(seconds, *ends)}" if known else "no run ended ok",
            "value": f"{_about(row)}{significant(seconds)} s" if known else "no result",
            "runs": f"{row.runs_ok} of {row.runs_ok + row.runs_failed}",
            "ratio": "1 (the main reference)" if row.reference == 1 else "–",
            "verdict": "–", "ideal": None, "predicted": None,
            "predicted_low": None, "predicted_high": None, "extrapolated": False,
            "bounds": False,
            "estimated": row.kind == "estimated", "to_target": False,
            "floor": None, "floor_low": None, "floor_high": None,
        }  # fmt: skip
        found |= _of_target(row)
        own = names_of_reference(compared[names]) if names in compared else names
        of_own = of_references.get(own, math.nan)
        if names in compared:
            found |= _compared(compared[names], of_own)
        if names in predictions.index:
            found |= _predicted(predictions.loc[names])
        if pd.notna(of_own) and own in floors.index:
            found |= _floor(float(of_own), float(floors[own]))
        rows.append(found)
    return pd.DataFrame(rows, dtype=object)


def _of_target(row) -> dict:
    """Return the time of a configuration to its target accuracy; it is a bound if censored."""
    known = row.time_to_target_kind != "unavailable" and pd.notna(row.time_to_target_seconds)
    seconds = row.time_to_target_seconds
    ends = (row.time_to_target_low_seconds, row.time_to_target_high_seconds)
    bound = "> " if row.time_to_target_kind == "censored" else ""
    return {
        "target": float(row.target_accuracy) if known else None,
        "target_seconds": float(seconds) if known else None,
        "target_low": float(ends[0]) if known and pd.notna(ends[0]) else None,
        "target_high": float(ends[1]) if known and pd.notna(ends[1]) else None,
        "target_time": bound + _time(seconds, *ends) if known else "unavailable",
        "target_value": f"{bound}{significant(seconds)} s" if known else "no result",
        "target_ratio": "1 (the main reference)" if row.reference == 1 else "–",
    }


def _time(seconds: float, low: float, high: float) -> str:
    ends = "" if pd.isna(low) else f" ({significant(low)}–{significant(high)})"
    return significant(seconds) + ends


def _about(row) -> str:
    return _ESTIMATED if row.kind == "estimated" else ""


def _compared(row, of_reference: float) -> dict:
    """Return ratio, verdict and ideal time of a row of the table `speedup`.

    Parameters
    ----------
    of_reference : seconds of an epoch of its main reference; NaN if unknown.
    """
    found, ratio = on_its_own(row), of_epochs(row)
    ideal = {}
    if pd.notna(of_reference) and pd.notna(row.reference_cores):
        ideal = {"ideal": float(of_reference) * row.reference_cores / row.cores}
    return {
        "ratio": _share(ratio),
        "verdict": in_brief(found),
        "to_target": found.to_target,
        "target_ratio": _share(found.ratio) if found.to_target else "–",
    } | ideal


def _share(ratio: Ratio) -> str:
    return "–" if pd.isna(ratio.value) else f"{ratio.value:.2f}{interval(ratio)}"


def _predicted(row: pd.Series) -> dict:
    ends = {
        f"predicted{end}": row[f"predicted{end}_seconds_per_epoch"] for end in ("", "_low", "_high")
    }
    known = {name: float(value) for name, value in ends.items() if pd.notna(value)}
    return known | {
        "extrapolated": row["basis"] == EXTRAPOLATED,
        "bounds": row["basis"] == BOUNDS,
    }


def _floor(seconds: float, floor: float) -> dict:
    """Return the times whose ratio to that of the main reference is within its noise floor."""
    return {
        "floor": f"{100 * floor:.1f} %",
        "floor_low": seconds / (1 + floor),
        "floor_high": seconds * (1 + floor),
    }


def _panel(alt, frame: pd.DataFrame, points: pd.DataFrame, what: str, several: bool):
    """Return the chart of a dataset and workload, whose axis is titled `what`."""
    rows = alt.Y("label:N", sort=list(frame["label"]), axis=None, scale=alt.Scale(padding=0.3))
    seconds = alt.X(
        "seconds:Q", title=what, scale=alt.Scale(zero=True, nice=True),
        axis=alt.Axis(tickCount=5),
    )  # fmt: skip
    colour = alt.Color("colour:N", scale=None)
    told = [alt.Tooltip(f"{name}:N", title=title) for name, title in _TOLD.items()]
    of_target = [name for name in frame if "target" in name]
    records = (
        frame.drop(columns=of_target)
        .assign(
            short=[_short(label) for label in frame["label"]],
            ideal_s=frame["ideal"],
            ideal=[_number(value) for value in frame["ideal"]],
            predicted=[_number(value) for value in frame["predicted"]],
        )
        .to_dict("records")
    )
    base = alt.Chart(alt.Data(values=records)).encode(y=rows, tooltip=told)
    colours = dict(zip(frame["label"], frame["colour"], strict=True))
    runs = [
        {"label": row.label, "seconds": row.seconds, "colour": colours[row.label]}
        for row in points.itertuples()
    ]
    one_run = [
        alt.Tooltip("label:N", title="configuration"),
        alt.Tooltip("seconds:Q", title="one run (s)", format=".3~g"),
    ]
    of_floor = ("floor", "floor_low", "floor_high")
    floors = [{key: each[key] for key in ("label", *of_floor)} for each in records if each["floor"]]
    told_floor = [alt.Tooltip("floor:N", title="noise floor of the main reference")]
    # A layer without values would have no extent, of which Vega warns.
    layers = {
        # Each row has that of its own main reference.
        "floor_low": alt.Chart(alt.Data(values=floors))
        .mark_rect(color=_FLOOR)
        .encode(x=alt.X("floor_low:Q"), x2="floor_high:Q", y=rows, tooltip=told_floor),
        "predicted_low": base.mark_bar(height=18).encode(
            x=alt.X("predicted_low:Q"),
            x2="predicted_high:Q",
            color=alt.condition("datum.extrapolated", alt.value(_FAR_BAND), alt.value(_BAND)),
        ),
        "ideal": base.mark_tick(height=20, thickness=1.5, color=_SOFT).encode(x=alt.X("ideal_s:Q")),
        "label": alt.Chart(alt.Data(values=runs))
        .mark_circle(size=26, opacity=0.45)
        .encode(x=seconds, y=rows, color=colour, tooltip=one_run),
        "low": base.mark_rule(strokeWidth=2.5).encode(x=alt.X("low:Q"), x2="high:Q", color=colour),
        "seconds": base.mark_tick(height=16, thickness=3).encode(x=seconds, color=colour),
    }
    names = base.mark_text(
        align="left", baseline="bottom", dy=-10, fontSize=12, limit=_NAME_PIXELS, color=_INK
    ).encode(x=alt.value(0), text="short:N")
    values = base.mark_text(
        align="right", baseline="bottom", dy=-10, fontSize=12, limit=_VALUE_PIXELS, color=_INK
    ).encode(x=alt.value(_WIDTH), text="value:N")
    shown = [
        layer for column, layer in layers.items()
        if (runs if column == "label" else frame[column].notna().any())
    ]  # fmt: skip
    title = {"title": f"{frame['data'].iloc[0]}, {frame['workload'].iloc[0]}"} if several else {}
    return alt.layer(*shown, names, values).properties(width=_WIDTH, height=alt.Step(_ROW), **title)


def _short(label: str) -> str:
    """Cut a long label in its middle: what tells configurations apart is often its end."""
    if len(label) <= _NAME_CHARACTERS:
        return label
    half = _NAME_CHARACTERS // 2
    return f"{label[:half]}…{label[1 - half :]}"


def _number(value: float | None) -> str:
    return "–" if value is None or pd.isna(value) else significant(value)


def _caption(shown: list[tuple[pd.DataFrame, pd.DataFrame, int]]) -> str:
    """Explain the marks that the chart has."""
    frames = pd.concat([frame for frame, _, _ in shown])
    left_out = sum(number for _, _, number in shown)
    texts = [
        "Training time: thick lines are medians with their 95\u00a0% intervals (the "
        "range for fewer than six runs), points are single runs."
    ]
    if frames["to_target"].any():
        texts.append(
            "Epochs of different batches are not alike, so the time to the accuracy decides."
        )
    if frames["target_value"].str.startswith(">").any():
        texts.append("After >, some runs did not reach the accuracy.")
    if frames["ideal"].notna().any():
        texts.append(
            "Thin grey lines: the ideal, where twice the cores of the main reference take half of "
            "its time."
        )
    if frames["predicted_low"].notna().any():
        bounds = frames["bounds"].astype(bool)
        if (frames["predicted_low"].notna() & ~bounds).any():
            texts.append("Grey bands: what the cost model predicts, with 90\u00a0% confidence.")
        if bounds.any():
            texts.append(
                "Grey bands of programs: estimated bounds, from full overlap of computing and "
                "exchange to none."
            )
        if frames["extrapolated"].astype(bool).any():
            texts.append("The paler ones go beyond what was calibrated.")
    if frames["floor_low"].notna().any():
        texts.append(
            "Yellow bands: the noise floor. Times in it cannot be told from that of the main "
            "reference."
        )
    if frames["estimated"].astype(bool).any():
        texts.append("≈: estimated from runs that were cut short.")
    if left_out:
        texts.append(f"The {left_out} slowest further configurations are in the table below.")
    return " ".join(texts)
