"""Predict the configurations of an experiment from a calibration, without any of their runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

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

#: The error of the model is not measured on the machine that is predicted.
ASSUMED = (
    f"Assumed in the intervals with several ranks: an error of the model of {MODEL_DEVIATION:.0%}, "
    "that of 24 predictions on one node of another machine."
)
PREDICTED, EXTRAPOLATED, UNAVAILABLE = "predicted", "extrapolated", "unavailable"
#: Of a program: the truth is expected between the ends, and nowhere in particular there.
BOUNDS = "bounds"


def rows(
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
            row = _row(calibration, plan, train_rows)
        except InputError as error:
            row = {"basis": UNAVAILABLE, "reason": str(error)}
        yield (
            {name: plan[name] for name in CONFIGURATION}
            | {
                "ranks": plan["layout"].ranks,
                "kind": UNAVAILABLE if row["basis"] == UNAVAILABLE else "estimated",
            }
            | row
        )


def _row(calibration: Calibration, planned: Mapping, train_rows: Mapping[str, int]) -> dict:
    if planned["unavailable"]:
        return {"basis": UNAVAILABLE, "reason": planned["unavailable"]}
    if "program" in planned:
        return bounds(calibration, planned)
    calibration = with_network(calibration, planned)
    epoch_rows = planned.get("epoch_rows") or train_rows[planned["dataset"]]
    setup = setup_of(planned, epoch_rows)
    prediction = predict(calibration, setup)
    seconds = epoch_seconds(calibration, prediction, epoch_rows)
    notes = [*prediction.extrapolated, *other_knobs(planned)]
    return {
        "basis": EXTRAPOLATED if notes else PREDICTED,
        "reason": "; ".join(notes) or None,
        "global_batch": setup.rows,
        **interval(seconds, setup.layout.ranks).columns("predicted", "_seconds_per_epoch"),
        **interval(prediction.steps, setup.layout.ranks).columns("step", "_seconds"),
        **{f"{term}_seconds": float(np.median(prediction.terms[term])) for term in TERMS},
    }


def bounds(calibration: Calibration, planned: Mapping) -> dict:
    """Return the bounds of a program on a layout, for a step and an epoch.

    Raises
    ------
    InputError : something that they need was not measured, and what.
    """
    program = calibration.programs.get(planned["program"])
    if program is None:
        raise InputError("program", planned["program"], "was not calibrated", "calibrate again")
    limits = step_bounds(program, planned["layout"], planned["network"], planned["rows"])
    low, high = limits.step
    steps = -(-program["epoch_rows"] // planned["rows"])
    return {
        "basis": BOUNDS,
        "reason": None,
        "global_batch": planned["rows"],
        "predicted_low_seconds_per_epoch": steps * low,
        "predicted_high_seconds_per_epoch": steps * high,
        "step_low_seconds": low,
        "step_high_seconds": high,
        "ratio_low": limits.ratio[0],
        "ratio_high": limits.ratio[1],
        "compute_seconds": float(np.mean(limits.compute)),
        "exchange_seconds": float(np.mean(limits.exchange)),
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
    if known or planned["layout"].nodes == 1:
        return calibration
    if rate is None:
        raise InputError(
            "network", name, "was not calibrated, and has no rate", f"set networks.{name}.rate"
        )
    network = Network(name, payload(rate), None, "rate of the experiment")
    return replace(calibration, networks={**calibration.networks, name: network})


def setup_of(planned: Mapping, train_rows: int, rows: int | None = None) -> Setup:
    """Return the setup of a configuration.

    Parameters
    ----------
    rows : of a step of all ranks together; default: those of the configuration.
    """
    knobs = planned["exchange"]
    return Setup(
        planned["work"],
        planned["layout"],
        min(rows or planned["rows"], train_rows),
        planned["library"] or Setup.library,
        planned["cores"],
        planned["network"],
        Exchange(
            knobs["dense_exchange"],
            fp16=knobs["compression"] == "fp16" or knobs["communication_hook"] in ("fp16", "bf16"),
            sparse_as_dense=knobs["sparse_as_dense"],
            accumulation=knobs["accumulation"],
            bucket_mib=knobs["bucket_cap_mb"],
        ),
    )


def epoch_seconds(
    calibration: Calibration, prediction: Prediction, train_rows: int, draws: int = DRAWS
) -> np.ndarray:
    """Return the seconds of the training steps of an epoch, of shape (draws,).

    The last step has the rows that are left. Its draws use the same resamples.
    """
    whole, left = divmod(train_rows, prediction.setup.rows)
    seconds = whole * prediction.steps
    if left:
        seconds = seconds + predict(calibration, replace(prediction.setup, rows=left), draws).steps
    return seconds


def lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the seconds per epoch of each configuration, and what is assumed in their intervals."""
    yield from map(line, rows)
    if any(row["ranks"] > 1 and row.get("step_low_seconds") is not None for row in rows):
        yield ASSUMED


def line(row: Mapping[str, Any]) -> str:
    """Return the names of a configuration, its seconds per epoch, and what they rest on."""
    label = " ".join(row[name] for name in CONFIGURATION)
    reason = f" ({row['reason']})" if row["reason"] else ""
    if row["basis"] == UNAVAILABLE:
        return f"{label}: {UNAVAILABLE}{reason}"
    low, high = (row[f"predicted_{end}_seconds_per_epoch"] for end in ("low", "high"))
    if row["basis"] == BOUNDS:
        ends = f"{row['ratio_low']:.2f} to {row['ratio_high']:.2f}"
        one_clause = f", {ends} of one process" if row["ranks"] > 1 else ""
        return f"{label}: {low:.3g} to {high:.3g} s per epoch{one_clause}, bounds"
    median = row["predicted_seconds_per_epoch"]
    seconds = with_interval(median, low, high, ".3g", " s per epoch")
    return f"{label}: {seconds}, {row['basis']}{reason}"
