"""Predict the configurations of an experiment from a calibration, without any of their runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from escala.analysis.cost_model.bounds import step_bounds
from escala.analysis.cost_model.calibration import MODEL_DEVIATION, Calibration
from escala.analysis.cost_model.messages import Exchange
from escala.analysis.cost_model.networks import PRESETS, Network, payload
from escala.analysis.cost_model.predict import (
    DRAWS,
    TERMS,
    Plan,
    Prediction,
    interval,
    predict,
)
from escala.core.errors import InputError
from escala.record.comparable import CONFIGURATION
from escala.runtime.layout import Layout
from escala.strategies import costs

#: The error of the model is not measured on the machine that is predicted.
ASSUMED = (
    f"Assumed in the intervals with several ranks: an error of the model of {MODEL_DEVIATION:.0%}, "
    "that of 24 predictions on one node of another machine."
)
PREDICTED, EXTRAPOLATED, UNAVAILABLE = "predicted", "extrapolated", "unavailable"
#: Of a program: the truth is expected between the ends, and nowhere in particular there.
BOUNDS = "bounds"
BASES = PREDICTED, EXTRAPOLATED, BOUNDS, UNAVAILABLE


def rows(
    calibration: Calibration, planned: Sequence[Mapping], train_rows: Mapping[str, int]
) -> Iterator[dict]:
    """Yield a row of the table `predictions` for each configuration, without measured columns.

    Parameters
    ----------
    planned : configurations, as `escala.experiment.calibration.planned` returns them.
    train_rows : of each dataset.
    """
    for each in planned:
        names = {name: each[name] for name in CONFIGURATION}
        layout = Layout.parse(each["layout"])
        row = _row(calibration, each, train_rows)
        kind = UNAVAILABLE if row["basis"] == UNAVAILABLE else "estimated"
        yield names | {"ranks": layout.ranks, "kind": kind} | row


def _row(calibration: Calibration, planned: Mapping, train_rows: Mapping[str, int]) -> dict:
    if planned["unavailable"]:
        return {"basis": UNAVAILABLE, "reason": planned["unavailable"]}
    if "program" in planned:
        return bounds(calibration, planned)
    try:
        calibration = with_network(calibration, planned)
        plan = plan_of(calibration, planned, train_rows[planned["dataset"]])
        found = predict(calibration, plan)
        seconds = epoch_seconds(calibration, plan, found, train_rows[planned["dataset"]])
    except InputError as error:
        return {"basis": UNAVAILABLE, "reason": str(error)}
    notes = [*found.extrapolated, *other_knobs(planned)]
    return {
        "basis": EXTRAPOLATED if notes else PREDICTED,
        "reason": "; ".join(notes) or None,
        "global_batch": plan.rows,
        **interval(seconds).columns("predicted", "_seconds_per_epoch"),
        **interval(found.steps).columns("step", "_seconds"),
        **{f"{term}_seconds": float(np.median(found.terms[term])) for term in TERMS},
    }


def bounds(calibration: Calibration, planned: Mapping) -> dict:
    """Return the bounds of a program on a layout, for a step and an epoch."""
    program = calibration.programs.get(planned["program"])
    ranks = Layout.parse(planned["layout"]).ranks
    if program is None:
        return {"basis": UNAVAILABLE, "reason": "the program was not calibrated: calibrate again"}
    try:
        found = step_bounds(program, planned["layout"], planned["network"], planned["rows"], ranks)
    except InputError as error:
        return {"basis": UNAVAILABLE, "reason": f"{error.reason}. Remedy: {error.remedy}"}
    low, high = found.step
    steps = -(-program["epoch_rows"] // planned["rows"])
    return {
        "basis": BOUNDS,
        "reason": None,
        "global_batch": planned["rows"],
        "predicted_low_seconds_per_epoch": steps * low,
        "predicted_high_seconds_per_epoch": steps * high,
        "step_low_seconds": low,
        "step_high_seconds": high,
        "ratio_low": found.ratio[0],
        "ratio_high": found.ratio[1],
        "compute_seconds": float(np.mean(found.compute)),
        "exchange_seconds": float(np.mean(found.exchange)),
    }


def other_knobs(planned: Mapping) -> Iterator[str]:
    """Yield a phrase if a configuration has other knobs than the calibrated collectives."""
    if planned["library"] and planned["other_knobs"]:
        yield f"collectives were calibrated with another {', '.join(planned['other_knobs'])}"


def with_network(calibration: Calibration, planned: Mapping) -> Calibration:
    """Return a calibration that has the network of a configuration, from its rate if need be.

    Raises
    ------
    InputError : the network was not calibrated, and nothing gives its rate.
    """
    name, rate = planned["network"], planned["bits_per_second"]
    known = name in calibration.networks or name in PRESETS
    if known or Layout.parse(planned["layout"]).nodes == 1:
        return calibration
    if rate is None:
        raise InputError(
            "network", name, "was not calibrated, and has no rate", f"set networks.{name}.rate"
        )
    network = Network(name, payload(rate), None, "rate of the experiment")
    return replace(calibration, networks={**calibration.networks, name: network})


def plan_of(calibration: Calibration, planned: Mapping, train_rows: int) -> Plan:
    """Return the plan of a configuration.

    Raises
    ------
    InputError : the work was not calibrated, or the model does not know the exchange.
    """
    layout, knobs = Layout.parse(planned["layout"]), planned["exchange"]
    rows = min(planned["rows"], train_rows)
    exchange = Exchange(
        knobs["dense_exchange"] if layout.ranks > 1 else costs.ALLREDUCE,
        fp16=knobs["compression"] == "fp16",
        sparse_as_dense=knobs["sparse_as_dense"],
        accumulation=knobs["accumulation"],
    )
    return Plan(
        planned["work"],
        layout,
        rows,
        planned["library"] or Plan.library,
        planned["cores"],
        planned["network"],
        exchange,
    )


def epoch_seconds(
    calibration: Calibration,
    plan: Plan,
    found: Prediction,
    train_rows: int,
    draws: int = DRAWS,
) -> np.ndarray:
    """Return the seconds of the training steps of an epoch, of shape (draws,).

    The last step has the rows that are left. Its draws use the same resamples.
    """
    whole, left = divmod(train_rows, plan.rows)
    seconds = whole * found.steps
    if left:
        seconds = seconds + predict(calibration, replace(plan, rows=left), draws).steps
    return seconds


def as_json(rows: Sequence[Mapping[str, Any]], machine: Mapping) -> dict:
    """Return the content of a file of predictions.

    Parameters
    ----------
    machine : that was calibrated, as in a calibration.
    """
    return {"machine": dict(machine), "configurations": [dict(row) for row in rows]}


def assumptions(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return a sentence on what is assumed in the intervals of predictions, None without it."""
    several = [row for row in rows if row["ranks"] > 1 and "step_seconds" in row]
    return ASSUMED if several else None


def line(row: Mapping[str, Any]) -> str:
    """Return the names of a configuration, its seconds per epoch, and what they rest on."""
    label = " ".join(row[name] for name in CONFIGURATION)
    reason = f" ({row['reason']})" if row["reason"] else ""
    if row["basis"] == UNAVAILABLE:
        return f"{label}: {UNAVAILABLE}{reason}"
    if row["basis"] == BOUNDS:
        low, high = (row[f"predicted_{end}_seconds_per_epoch"] for end in ("low", "high"))
        ends = f"{row['ratio_low']:.2f} to {row['ratio_high']:.2f}"
        of_one = f", {ends} of one process" if row["ranks"] > 1 else ""
        return f"{label}: {low:.3g} to {high:.3g} s per epoch{of_one}, bounds"
    median, low, high = (row[f"predicted{end}_seconds_per_epoch"] for end in ("", "_low", "_high"))
    return f"{label}: {median:.3g} s per epoch ({low:.3g}–{high:.3g}), {row['basis']}{reason}"
