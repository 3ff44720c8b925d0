"""Build the table of the energy of each configuration: measured, estimated or unavailable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from escala.analysis.statistics import Interval, median_interval, ratio_interval
from escala.experiment.references import Configuration, compared_with
from escala.record.comparable import CONFIGURATION, Measurement, left_out, paired
from escala.report.tables.base import (
    Evidence,
    by_configuration,
    dtypes,
    epochs_to_target,
    is_cut,
    is_timed,
    over,
    reasons,
    reference_columns,
)
from escala.runtime.layout import Layout

JOULES_PER_KWH = 3.6e6
_SECONDS_PER_HOUR = 3600
#: The source of an energy that is estimated by the user's model.
MODEL = "power_model"


class Energies(NamedTuple):
    """The energy of each run of a configuration, in the order of the runs.

    Attributes
    ----------
    runs : energy runs, or timing runs if the energy is estimated by the user's model.
    kind : `measured` or `estimated`.
    source, devices : what was read, each name once, joined by `;`.
    """

    runs: list[Measurement]
    kind: str
    source: str
    devices: str | None


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each configuration and each basis on which devices are counted."""
    settings = evidence.probe_settings.get("energy", {})
    model, grams = settings.get("power_model"), settings.get("grams_co2_per_kwh")
    captured = by_configuration(evidence.of_probe("energy"))
    timed = by_configuration(run for run in evidence.found if is_timed(run))
    named = by_configuration(run for run in evidence.found if run["training"]["kind"] != "fit")
    known = {
        names: found
        for names in {**named, **captured}
        if (found := _energies(captured.get(names, ()), timed.get(names, ()), model))
    }
    for names in {**(named if model else {}), **captured}:
        any_run = (captured.get(names) or named[names])[0]
        number, reference = _main_reference(names, evidence)
        common = dict.fromkeys(dtypes("energy")) | {
            **dict(zip(CONFIGURATION, names, strict=True)),
            **reference_columns(number, Configuration(*reference[2:])),
            **_size(any_run),
            **_core_hours(names, any_run, evidence.runs),
            "provenance": any_run["data"]["provenance"],
            "leaky": any_run["data"]["leaky"],
        }
        failed = [run for run in captured.get(names, ()) if run["status"] != "ok"]
        why = reasons(pd.DataFrame(failed)) if failed else None
        for basis, of_basis in BASES.items():
            row = common | {"basis": basis, "kind": "unavailable", "runs": 0, "pairs": 0}
            mine, theirs = known.get(names), known.get(reference)
            if mine is None:
                yield row | {"reason": why or "no energy run, and no power model is stated"}
                continue
            row |= _of_basis(mine, of_basis, model)
            unknown = [why, row["reason"]]
            if row["kind"] != "unavailable":
                ratios = _ratios(mine, theirs, of_basis, model, names == reference)
                unknown.append(ratios.pop("reason", None))
                row |= ratios
                row |= _to_target(row, evidence.runs, names, timed.get(names, ()))
                if grams is not None:
                    row["grams_co2_per_epoch"] = row["joules_per_epoch"] / JOULES_PER_KWH * grams
            yield row | {"reason": "; ".join(filter(None, unknown)) or None}


def _energies(
    captured: Sequence[Measurement], timed: Sequence[Measurement], model: Mapping | None
) -> Energies | None:
    """Return the measured energies of a configuration, or else those of the model, or None."""
    ok = [run for run in captured if run["status"] == "ok"]
    if ok:
        devices = [each for run in ok for node in run["energy"] for each in node["devices"]]
        source, names = (
            ";".join(dict.fromkeys(each[key] for each in devices)) for key in ("source", "device")
        )
        kind = "estimated" if any(map(is_cut, ok)) else "measured"
        return Energies(ok, kind, source, names)
    if model and timed:
        return Energies(list(timed), "estimated", MODEL, None)
    return None


def _seconds(run: Measurement) -> float:
    """Return the training seconds of an epoch."""
    return run["seconds"]["train"] * _epochs(run)


def _epochs(run: Measurement) -> float:
    """Return the factor from what a run trained to one epoch."""
    if is_cut(run):
        steps = sum(epoch["steps"] for epoch in run["epochs"])
        return run["training"]["steps_per_epoch"] / steps
    return 1 / len(run["epochs"])


def _devices(run: Measurement) -> list[tuple[dict, float]]:
    """Return the devices of the nodes of an energy run, each with its seconds of training."""
    return [(each, node["seconds"]) for node in run["energy"] for each in node["devices"]]


def _all_devices(run: Measurement) -> float | str:
    return sum(each["joules"] for each, _ in _devices(run))


def _used_devices(run: Measurement) -> float | str:
    devices = [each for each, _ in _devices(run)]
    for each in devices:
        if each["used"] is None:
            return f"{each['device']}: it is not known whether it computed"
    return sum(each["joules"] for each in devices if each["used"])


def _above_idle(run: Measurement) -> float | str:
    for node in run["energy"]:
        if node["idle_reason"]:
            return f"the idle power was not measured: {node['idle_reason']}"
    return sum(each["joules"] - each["idle_watts"] * s for each, s in _devices(run))


class Basis(NamedTuple):
    """Which energy counts.

    Attributes
    ----------
    measured : returns the joules of an energy run, or why they are not known.
    of_nodes : whether the idle power of the nodes counts in an estimate.
    """

    measured: Callable[[Measurement], float | str]
    of_nodes: bool


BASES = {
    "all devices": Basis(_all_devices, True),
    "used devices": Basis(_used_devices, True),
    "above idle": Basis(_above_idle, False),
}


def _joules(run: Measurement, source: str, basis: Basis, model: Mapping | None) -> float | str:
    """Return the joules of an epoch of a run, or why they are not known."""
    if source != MODEL:
        found = basis.measured(run)
        return found if isinstance(found, str) else found * _epochs(run)
    watts = _size(run)["cores"] * model["core_watts"]
    if basis.of_nodes:
        watts += _size(run)["nodes"] * model["node_watts"]
    return watts * _seconds(run)


def _of_basis(mine: Energies, basis: Basis, model: Mapping | None) -> dict:
    """Return the columns of the energy itself."""
    found = [_joules(run, mine.source, basis, model) for run in mine.runs]
    unknown = next((each for each in found if isinstance(each, str)), None)
    about = {"source": mine.source, "devices": mine.devices, "runs": len(mine.runs)}
    if unknown:
        return about | {"kind": "unavailable", "reason": unknown}
    seconds = np.array([_seconds(run) for run in mine.runs])
    joules = np.array(found)
    return about | {
        "kind": mine.kind,
        "reason": None,
        **median_interval(joules).columns("joules_per_epoch"),
        "seconds_per_epoch": float(np.median(seconds)),
        "watts": float(np.median(joules / seconds)),
        "energy_delay_product": float(np.median(joules * seconds)),
    }


def _ratios(
    mine: Energies, theirs: Energies | None, basis: Basis, model: Mapping | None, same: bool
) -> dict:
    """Return the ratios of energy and of energy × time to the main reference, over pairs."""
    if same:
        return {"energy_ratio": 1.0, "edp_ratio": 1.0, "pairs": len(mine.runs)}
    if theirs is None or theirs.source != mine.source:
        other = "of another source" if theirs else "not known"
        return {"reason": f"no ratio: the energy of the reference is {other}"}
    pairs = paired(mine.runs, theirs.runs)
    sides = [
        [_joules(run, mine.source, basis, model) for run in side]
        for side in (pairs.runs, pairs.references)
    ]
    if any(isinstance(each, str) for each in sides[1]):
        return {"reason": "no ratio: the energy of the reference is not known"}
    if not pairs.runs:
        why = "; ".join(dict.fromkeys(pairs.refused)) or "no two runs share session and repeat"
        return {"reason": f"no ratio: {why}"}
    joules = np.divide(*map(np.array, sides))
    seconds = np.divide(
        *(np.array([_seconds(r) for r in side]) for side in (pairs.runs, pairs.references))
    )
    return {
        "pairs": len(pairs.runs),
        "reason": left_out(len(pairs.runs), pairs.refused),
        **ratio_interval(joules).columns("energy_ratio"),
        **ratio_interval(joules * seconds).columns("edp_ratio"),
    }


def _to_target(
    row: dict, runs: pd.DataFrame, names: tuple, timed: Sequence[Measurement]
) -> dict[str, Any]:
    """Return the energy until the target accuracy, from the epochs that timing runs needed.

    A run that did not reach it counts as one that never does.
    """
    target = next((run["training"].get("target_accuracy") for run in timed), None)
    whole = [run for run in timed if not is_cut(run)] if target else []
    epochs = [epochs_to_target(run) or np.inf for run in whole]
    needed = float(np.median(epochs)) if epochs else np.inf
    return {
        "target_accuracy": target,
        "epochs_to_target": needed if np.isfinite(needed) else None,
        "joules_to_target": row["joules_per_epoch"] * needed if np.isfinite(needed) else None,
    }


def _main_reference(names: tuple, evidence: Evidence) -> tuple[int, tuple]:
    """Return number and names of the main reference of a configuration, perhaps itself."""
    own = Configuration(*names[2:])
    number, reference = next(compared_with(own, evidence.references), (1, own))
    return number, (*names[:2], *reference)


def _size(run: Measurement) -> dict:
    layout = Layout.parse(run["layout"])
    cores = run["ranks"]["asked"] * run["knobs"]["cores_per_process"]
    return {"nodes": layout.nodes, "cores": cores}


def _core_hours(names: tuple, run: Measurement, runs: pd.DataFrame) -> dict:
    """Return the core-hours of an epoch, by the timing runs."""
    same = (runs[list(CONFIGURATION)] == list(names)).all(axis=1)
    timed = runs[same & (runs["status"] == "ok") & runs["comparable"] & (runs["resumptions"] == 0)]
    factor = _size(run)["cores"] / _SECONDS_PER_HOUR
    found = over(timed, "train_seconds_per_epoch")
    return Interval(*(each and each * factor for each in found)).columns("core_hours_per_epoch")
