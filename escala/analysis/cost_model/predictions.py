"""Predict the configurations of an experiment from a calibration, without any of their runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from escala.analysis.comparable import CONFIGURATION
from escala.analysis.cost_model.calibration import (
    MODEL_DEVIATION,
    PRESETS,
    Calibration,
    Network,
    payload,
)
from escala.analysis.cost_model.exchange import Exchange
from escala.analysis.cost_model.predict import DRAWS, TERMS, Prediction, Setup, interval, predict
from escala.analysis.cost_model.programs import step_bounds
from escala.core.errors import InputError
from escala.core.readable import with_interval

#: The intervals contain an error of the model that was not measured on the predicted machine. This
#: sentence says so.
ASSUMED = (
    f"Assumed in the intervals with several ranks: an error of the model of {MODEL_DEVIATION:.0%}, "
    "as in 24 predictions on one node of another machine."
)
#: The basis of a row. Programs have `BOUNDS`, and no value between the bounds is more likely.
PREDICTED, EXTRAPOLATED, UNAVAILABLE = "predicted", "extrapolated", "unavailable"
BOUNDS = "bounds"


def predict_rows(
    calibration: Calibration, planned: Sequence[Mapping], train_rows: Mapping[str, int]
) -> Iterator[dict]:
    """Yield a row of the table `predictions` for each configuration, without measured columns.

    Parameters
    ----------
    planned : configurations, as `escala.analysis.cost_model.works.plan_works` returns them.
    train_rows : number of training rows of each dataset.
    """
    for plan in planned:
        try:
            if plan["unavailable"]:
                columns = {"basis": UNAVAILABLE, "reason": plan["unavailable"]}
            elif "program" in plan:
                columns = bounds(calibration, plan)
            else:
                epoch_rows = plan.get("epoch_rows") or train_rows[plan["dataset"]]
                predicted = predict_plan(calibration, plan, epoch_rows)
                notes, prediction = predicted.notes, predicted.prediction
                seconds, ranks = predicted.epoch_seconds, prediction.setup.layout.ranks
                columns = {
                    "basis": EXTRAPOLATED if notes else PREDICTED,
                    "reason": "; ".join(notes) or None,
                    "global_batch": prediction.setup.rows,
                    **interval(seconds, ranks).columns("predicted", "_seconds_per_epoch"),
                    **interval(prediction.steps, ranks).columns("step", "_seconds"),
                    **{
                        f"{term}_seconds": float(np.median(prediction.terms[term]))
                        for term in TERMS
                    },
                }
        except InputError as error:
            columns = {"basis": UNAVAILABLE, "reason": str(error)}
        yield (
            {name: plan[name] for name in CONFIGURATION}
            | {
                "ranks": plan["layout"].ranks,
                "kind": UNAVAILABLE if columns["basis"] == UNAVAILABLE else "estimated",
            }
            | columns
        )


def bounds(calibration: Calibration, plan: Mapping) -> dict:
    """Return the columns of a program on a layout, with bounds for a step and an epoch.

    Raises
    ------
    InputError : a value that the bounds need was not measured; the message names the value.
    """
    program = calibration.programs.get(plan["program"])
    if program is None:
        raise InputError("program", plan["program"], "was not calibrated", "calibrate again")
    limits = step_bounds(program, plan["layout"], plan["network"], plan["rows"])
    low, high = limits.step
    steps = -(-program["epoch_rows"] // plan["rows"])
    return {
        "basis": BOUNDS,
        "reason": None,
        "global_batch": plan["rows"],
        "predicted_low_seconds_per_epoch": steps * low,
        "predicted_high_seconds_per_epoch": steps * high,
        "step_low_seconds": low,
        "step_high_seconds": high,
        "ratio_low": limits.ratio[0],
        "ratio_high": limits.ratio[1],
        "compute_seconds": float(np.mean(limits.compute)),
        "exchange_seconds": float(np.mean(limits.exchange)),
    }


class PlanPrediction(NamedTuple):
    """The prediction of a planned configuration.

    Attributes
    ----------
    calibration : the calibration with the network of the configuration. Of this network, only the
        rate may be known.
    epoch_seconds : seconds of the training steps of an epoch, of shape (draws,). The last step may
        have fewer rows. Its draws use the same resamples as those of the other steps.
    notes : phrases on values that were not calibrated.
    """

    calibration: Calibration
    prediction: Prediction
    epoch_seconds: np.ndarray
    notes: list[str]


def predict_plan(
    calibration: Calibration,
    plan: Mapping,
    train_rows: int,
    rows: int | None = None,
    draws: int = DRAWS,
) -> PlanPrediction:
    """Predict a planned configuration.

    Parameters
    ----------
    train_rows : rows of an epoch.
    rows : rows of a step of all ranks together; None for the rows of the configuration.

    Raises
    ------
    InputError : a value that the prediction needs was not calibrated.
    """
    name, rate, layout = plan["network"], plan["bits_per_second"], plan["layout"]
    if layout.nodes > 1 and name not in calibration.networks and name not in PRESETS:
        if rate is None:
            remedy = f"set networks.{name}.rate"
            raise InputError("network", name, "was not calibrated, and has no rate", remedy)
        network = Network(name, payload(rate), None, "rate of the experiment")
        calibration = replace(calibration, networks={**calibration.networks, name: network})
    knobs = plan["exchange"]
    exchange = Exchange(
        knobs["dense_exchange"],
        fp16=knobs["compression"] == "fp16" or knobs["communication_hook"] in ("fp16", "bf16"),
        sparse_as_dense=knobs["sparse_as_dense"],
        accumulation=knobs["accumulation"],
        bucket_mib=knobs["bucket_cap_mb"],
    )
    rows, library = min(rows or plan["rows"], train_rows), plan["library"] or Setup.library
    setup = Setup(plan["work"], layout, rows, library, plan["cores"], name, exchange)
    prediction = predict(calibration, setup, draws)
    whole_steps, last_rows = divmod(train_rows, setup.rows)
    seconds = whole_steps * prediction.steps
    if last_rows:
        seconds = seconds + predict(calibration, replace(setup, rows=last_rows), draws).steps
    notes = [*prediction.extrapolated]
    if plan["library"] and plan["other_knobs"]:
        others = ", ".join(plan["other_knobs"])
        notes.append(f"collectives were calibrated with another {others}")
    return PlanPrediction(calibration, prediction, seconds, notes)


def lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line on each row of the table, and a line on the assumption of the intervals."""
    yield from map(line, rows)
    if any(row["ranks"] > 1 and row.get("step_low_seconds") is not None for row in rows):
        yield ASSUMED


def line(row: Mapping[str, Any]) -> str:
    """Return the names of a configuration, its seconds per epoch, and their basis."""
    label = " ".join(row[name] for name in CONFIGURATION)
    reason = f" ({row['reason']})" if row["reason"] else ""
    if row["basis"] == UNAVAILABLE:
        return f"{label}: {UNAVAILABLE}{reason}"
    low, high = (row[f"predicted_{end}_seconds_per_epoch"] for end in ("low", "high"))
    if row["basis"] == BOUNDS:
        ends = f"{row['ratio_low']:.2f} to {row['ratio_high']:.2f}"
        ratio = f", {ends} of one process" if row["ranks"] > 1 else ""
        return f"{label}: {low:.3g} to {high:.3g} s per epoch{ratio}, bounds"
    median = row["predicted_seconds_per_epoch"]
    seconds = with_interval(median, low, high, ".3g", " s per epoch")
    return f"{label}: {seconds}, {row['basis']}{reason}"
