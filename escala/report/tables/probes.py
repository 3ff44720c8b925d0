"""The tables of what probes captured: parts of a step, one step, resources, and energy.

An energy is measured, estimated or unavailable.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from escala.analysis.attribution import (
    WHOLE,
    clocks_files,
    moments,
    run_attribution,
    typical_step,
)
from escala.analysis.comparable import (
    CONFIGURATION,
    Measurement,
    is_fit,
    match_runs,
    newest_of_repeats,
    why_left_out,
)
from escala.analysis.statistics import (
    Interval,
    mean_interval,
    median_interval,
    next_time_interval,
    ratio_interval,
)
from escala.analysis.tables import records
from escala.analysis.traces import spans
from escala.analysis.verdicts import NO_VERDICT, leave_out_disturbed, simultaneous_level, verdict
from escala.core.errors import InputError
from escala.core.readable import with_noun
from escala.experiment.runs import (
    MAIN,
    ONE_PROCESS,
    Configuration,
    reference_number,
    references_for,
)
from escala.probes.torch_trace import trace_files
from escala.report.tables import base
from escala.report.tables.base import Evidence, Tables
from escala.report.tables.speedup import DECIMALS, Judge
from escala.report.tables.views import is_among

_NO_FILES = "the run ended ok, but left no ranks/rank*.clocks.csv: remove its folder and run again"
_NO_CLOCK = "the ranks ran on several machines, whose clocks differ"
_NOT_INSIDE = "the strategy has no moments inside the step"


def _about(run: Measurement) -> dict:
    """Return the columns on a probe run."""
    names = {key: run[key] for key in (*CONFIGURATION, "session", "status", "reason")}
    return base.data_of(run) | names


def _with_clocks(evidence: Evidence) -> tuple[list[Measurement], list[Measurement]]:
    """Return the runs with clocks that left moments, then the others, each with the reason."""
    with_moments, failed, empty = [], [], []
    for run in evidence.probe_runs("clocks"):
        if run["status"] != "ok":
            failed.append(run)
        elif clocks_files(Path(run["file"])):
            with_moments.append(run)
        else:
            empty.append(run | {"reason": _NO_FILES})
    return with_moments, [*failed, *empty]


def _parts_of_program(run: Measurement) -> pd.DataFrame | str:
    """Return the parts of the steps of a run with traces, or why there are none."""
    files, ranks = trace_files(Path(run["file"])), run["layout"].ranks
    if run["status"] != "ok":
        return run["reason"] or run["status"]
    if len(files) != ranks:
        return f"of {with_noun(ranks, 'rank')}, {len(files)} left a trace of steps of PyTorch"
    try:
        return spans.attribution(files)
    except InputError as error:
        return f"{error.where}: {error.reason}"


def attribution(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each part of a step of each rank, and one for each run without parts.

    Values are means over the runs of a configuration.
    """

    def common_columns(run: Measurement) -> dict:
        oversubscribed = run["ranks"]["oversubscribed"]
        return _about(run) | {"oversubscribed": oversubscribed, "kind": "unavailable"}

    runs, without_parts = _with_clocks(evidence)
    parts = {
        run["file"]: run_attribution(
            Path(run["file"]), run["strategy"] == ONE_PROCESS[0], run["ranks"]["one_clock"]
        )
        for run in runs
    }
    for run in evidence.probe_runs("torch-trace"):
        # Clocks divide the steps of Escala's own networks.
        if "program" in run:
            found = _parts_of_program(run)
            if isinstance(found, str):
                without_parts.append(run | {"reason": found})
            else:
                runs.append(run)
                parts[run["file"]] = found
    yield from map(common_columns, without_parts)
    parts = {file: rows.set_index(["rank", "part"]) for file, rows in parts.items()}
    by_names = base.by_configuration(runs)
    for names, of_all_sessions in by_names.items():
        number, reference = _reference(names, by_names, evidence, tables)
        reference_runs = by_names.get((*names[:2], *reference), ()) if reference else ()
        # Machines drift, so only one session counts: the one with most runs, or the newest of
        # several.
        sessions = Counter(run["session"] for run in of_all_sessions)
        session = max(sessions, key=lambda name: (sessions[name], name))
        same = [run for run in of_all_sessions if run["session"] == session]
        matches = match_runs(same, reference_runs)
        common = common_columns(same[0]) | {"runs": len(same), "matches": len(matches.runs)}
        common |= base.reference_columns(number, reference) if reference else {}
        common |= _against_timing_runs(evidence.runs, same, matches.references)
        differences = []
        for run, other in matches.pairs:
            # All ranks are compared with rank 0 of the reference.
            reference_seconds = common["reference_steps"] * parts[other["file"]].loc[0, "seconds"]
            differences.append(parts[run["file"]]["seconds"].sub(reference_seconds, level="part"))
        of_runs = [parts[run["file"]] for run in same]
        for row in _parts(of_runs, differences, evidence.level):
            yield common | row


def _reference(
    names: tuple, clocked: Collection[tuple], evidence: Evidence, tables: Tables
) -> tuple[int | None, Configuration | None]:
    """Return the reference that a step is compared with: its number and its configuration.

    A best use is compared with its closest alternative, if that is in `clocked`. Any other
    configuration is compared with its main reference. Without a reference, both values are None.
    """
    table = tables["best_use"]
    deciding = table[table["closest"]]
    for row in records(deciding[is_among(deciding, {names})]):
        rival = Configuration(*(row[f"alternative_{part}"] for part in Configuration._fields))
        if (*names[:2], *rival) in clocked:
            return reference_number(rival, evidence.references), rival
    return next(references_for(Configuration(*names[2:]), evidence.references), (None, None))


def _parts(
    runs: Sequence[pd.DataFrame], differences: Sequence[pd.Series], level: float
) -> Iterator[dict]:
    """Yield the columns on each part of each rank, from runs of one configuration.

    Parameters
    ----------
    runs : results of `run_attribution`, by rank and part.
    differences : seconds of runs by rank and part, minus the seconds of the reference's run in
        the same pair.
    """
    for rank, part in runs[0].index:
        rows = pd.DataFrame([run.loc[(rank, part)] for run in runs])
        seconds = rows["seconds"].dropna().to_numpy(float)
        # The range, because Student's interval of a few times may contain negative times.
        low, high = (seconds.min(), seconds.max()) if len(seconds) > 1 else (None, None)
        of_part = pd.Series([by_part[rank, part] for by_part in differences], dtype=float)
        whole = np.mean([run.at[(rank, WHOLE), "seconds"] for run in runs])
        yield {
            "rank": rank,
            "part": part,
            "seconds": seconds.mean() if len(seconds) else None,
            "low_seconds": low,
            "high_seconds": high,
            "fraction": seconds.mean() / whole if len(seconds) else None,
            **mean_interval(of_part.dropna(), level).columns("difference", "_seconds"),
            **{name: rows[name].mean() if name in rows else None for name in spans.RATES},
            "steps": int(rows["steps"].sum()),
            "source": rows["source"].iloc[0],
            "kind": base.least_certain(rows["kind"]),
        }


def _against_timing_runs(
    timing_runs: Sequence[Measurement],
    runs: Sequence[Measurement],
    references: Sequence[Measurement],
) -> dict:
    """Return the columns that compare runs with clocks with timing runs of their session.

    Parameters
    ----------
    runs : runs with clocks, of one configuration and session.
    references : the runs of the reference that these runs are paired with.
    """

    def timing_seconds(clocked: Measurement) -> float:
        alike = [
            _step_seconds(run)
            for run in timing_runs
            if base.is_timed(run)
            and all(run[key] == clocked[key] for key in (*CONFIGURATION, "session"))
        ]
        return float(np.median(alike)) if alike else math.nan

    seconds = timing_seconds(runs[0])
    columns = {"slowdown": np.mean([_step_seconds(run) for run in runs]) / seconds}
    if references:
        steps = columns["reference_steps"] = _steps(references[0]) / _steps(runs[0])
        columns["timed_difference_seconds"] = seconds - steps * timing_seconds(references[0])
    return {name: None if math.isnan(value) else value for name, value in columns.items()}


def _step_seconds(run: Measurement) -> float:
    """Return the training seconds divided by the number of steps; NaN if that is not known."""
    made = [epoch["steps"] for epoch in run["epochs"]]
    return math.nan if None in made else run["seconds"]["train"] / sum(made)


def _steps(run: Measurement) -> float:
    """Return a number in proportion to the steps of an epoch of a run; NaN if it is not known."""
    if "program" not in run:
        return 1 / run["training"]["global_batch"]
    made = run["epochs"][-1]["steps"] if run["epochs"] else None
    return run["training"]["steps_per_epoch"] or made or math.nan


def step(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each segment of the typical step of each run with clocks, by rank."""
    runs, without_moments = _with_clocks(evidence)
    yield from (_about(run) | {"kind": "unavailable"} for run in without_moments)
    for run in runs:
        row = _about(run) | {"kind": "unavailable"}
        if not run["ranks"]["one_clock"]:
            yield row | {"reason": _NO_CLOCK}
            continue
        segments = typical_step(*moments(Path(run["file"]), one_clock=True))
        if segments.empty:
            yield row | {"reason": _NOT_INSIDE}
        # The segment replaces the kind of the row.
        for segment in segments.to_dict("records"):
            yield row | segment


def resources(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each process of each run whose resources were sampled."""
    for run in evidence.probe_runs("resources"):
        row = _about(run) | {"oversubscribed": run["ranks"]["oversubscribed"]}
        for process in run["resources"] or [{}]:
            yield row | process


JOULES_PER_KWH = 3.6e6
_SECONDS_PER_HOUR = 3600
#: The source of an energy that is estimated by the user's model.
MODEL = "power_model"
#: Which energy counts: of all devices, of devices that computed, or of all devices above idle.
USED, ABOVE_IDLE = "used devices", "above idle"
BASES = ("all devices", USED, ABOVE_IDLE)


class _EnergyRuns(NamedTuple):
    """The runs of a configuration whose energy is known, and how it is known.

    Attributes
    ----------
    runs : energy runs, or timing runs if the energy is estimated by the user's model.
    kind : `measured` or `estimated`.
    source : the counters that were read, each name once, joined by `;`; or `MODEL`.
    devices : the devices whose energy was read, in the same format; None for the model.
    """

    runs: list[Measurement]
    kind: str
    source: str
    devices: str | None


def energy(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each configuration and each basis on which devices are counted."""
    settings = evidence.probe_settings.get("energy", {})
    model, grams = settings.get("power_model"), settings.get("grams_co2_per_kwh")
    captured = base.by_configuration(evidence.probe_runs("energy"))
    timed = base.by_configuration(filter(base.is_timed, evidence.runs))
    trained = base.by_configuration(run for run in evidence.runs if not is_fit(run))
    known = {
        names: with_energy
        for names in {**trained, **captured}
        if (with_energy := _energy_runs(captured.get(names, ()), timed.get(names, ()), model))
    }
    judge = Judge(evidence, tables)
    configurations = Counter(names[:2] for names in known)
    for names in {**(trained if model else {}), **captured}:
        any_run = (captured.get(names) or trained[names])[0]
        configuration = Configuration(*names[2:])
        # The main reference, which may be the configuration itself.
        number, reference = next(
            references_for(configuration, evidence.references), (MAIN, configuration)
        )
        common = {
            **base.name_columns(names),
            **base.reference_columns(number, reference),
            "nodes": any_run["layout"].nodes,
            "cores": base.cores_of(any_run),
            **_core_hours(names, any_run, tables["runs"], evidence.level),
            **base.data_of(any_run, base.ABOUT),
        }
        failed = [run for run in captured.get(names, ()) if run["status"] != "ok"]
        failures = base.reasons(pd.DataFrame(failed)) if failed else None
        mine, theirs = known.get(names), known.get((*names[:2], *reference))
        for basis in BASES:
            row = common | {"basis": basis, "kind": "unavailable", "runs": 0, "matches": 0}
            if mine is None:
                yield row | {"reason": failures or "no energy run, and no power model is stated"}
                continue
            row |= _basis_columns(mine, basis, model, evidence.level)
            reasons = [failures, row["reason"]]
            if row["kind"] != "unavailable":
                if reference == configuration:
                    ratios = {"energy_ratio": 1.0, "edp_ratio": 1.0, "matches": len(mine.runs)}
                else:
                    level = simultaneous_level(configurations[names[:2]] - 1, evidence.level)
                    joules_of = partial(_joules, source=mine.source, basis=basis, model=model)
                    ratios = _ratios(mine, theirs, joules_of, judge.deviation, level)
                reasons.append(ratios.pop("reason", None))
                row |= ratios | _to_target(row["joules_per_epoch"], timed.get(names, ()))
                if grams is not None:
                    row["grams_co2_per_epoch"] = row["joules_per_epoch"] / JOULES_PER_KWH * grams
            yield row | {"reason": "; ".join(filter(None, reasons)) or None}


def _energy_runs(
    captured: Sequence[Measurement], timed: Sequence[Measurement], model: Mapping | None
) -> _EnergyRuns | None:
    """Return the energy runs of a configuration, or for a model the timing runs."""
    ok = [run for run in captured if run["status"] == "ok"]
    if ok:
        devices = [device for run in ok for device, _ in _devices(run)]
        source, names = (
            ";".join(dict.fromkeys(device[key] for device in devices))
            for key in ("source", "device")
        )
        kind = "estimated" if any(map(base.is_cut, ok)) else "measured"
        return _EnergyRuns(ok, kind, source, names)
    return _EnergyRuns(list(timed), "estimated", MODEL, None) if model and timed else None


def _devices(run: Measurement) -> list[tuple[dict, float]]:
    """Return the devices of the nodes of an energy run, each with its seconds of training."""
    return [(device, node["seconds"]) for node in run["energy"] for device in node["devices"]]


def _joules(run: Measurement, source: str, basis: str, model: Mapping | None) -> float | str:
    """Return the joules of an epoch of a run, or the reason why they are unknown."""
    if source == MODEL:
        watts = base.cores_of(run) * model["core_watts"]
        if basis != ABOVE_IDLE:
            watts += run["layout"].nodes * model["node_watts"]
        return watts * base.seconds_per_epoch(run)
    devices, idle = _devices(run), 0.0
    if basis == ABOVE_IDLE:
        for node in run["energy"]:
            if node["idle_reason"]:
                return f"the idle power was not measured: {node['idle_reason']}"
        idle = sum(device["idle_watts"] * seconds for device, seconds in devices)
    if basis == USED:
        for device, _ in devices:
            if device["used"] is None:
                return f"{device['device']}: it is not known whether it computed"
    counted = [device["joules"] for device, _ in devices if basis != USED or device["used"]]
    return (sum(counted) - idle) * base.seconds_per_epoch(run) / run["seconds"]["train"]


def _basis_columns(known: _EnergyRuns, basis: str, model: Mapping | None, level: float) -> dict:
    """Return the columns on the energy, without ratios."""
    joules_or_reasons = [_joules(run, known.source, basis, model) for run in known.runs]
    about = {"source": known.source, "devices": known.devices, "runs": len(known.runs)}
    for reason in joules_or_reasons:
        if isinstance(reason, str):
            return about | {"kind": "unavailable", "reason": reason}
    joules = np.array(joules_or_reasons)
    seconds = np.array([*map(base.seconds_per_epoch, known.runs)])
    return about | {
        "kind": known.kind,
        "reason": None,
        **median_interval(joules, level=level).columns("joules_per_epoch"),
        "seconds_per_epoch": float(np.median(seconds)),
        "watts": float(np.median(joules / seconds)),
        "energy_delay_product": float(np.median(joules * seconds)),
    }


def _ratios(
    mine: _EnergyRuns,
    theirs: _EnergyRuns | None,
    joules_of: Callable[[Measurement], float | str],
    deviation: tuple[float, int],
    level: float,
) -> dict:
    """Return the ratios of energy and of energy × time to the main reference, over paired runs.

    Parameters
    ----------
    mine, theirs : the energy runs of a configuration, and those of its main reference.
    joules_of : returns the joules of an epoch of a run, or the reason why they are unknown.
    deviation : how sessions differ (`escala.analysis.statistics.deviation_of_sessions`).
    level : of the intervals.
    """
    if theirs is None or theirs.source != mine.source:
        other = "of another source" if theirs else "not known"
        return {"reason": f"no ratio: the energy of the reference is {other}"}
    every = match_runs(mine.runs, theirs.runs)
    # A repeat has energy runs of one session, but timing runs of several sessions.
    quiet = leave_out_disturbed(newest_of_repeats(every) if mine.source == MODEL else every)
    matches = quiet.matches
    joules = [*map(joules_of, matches.runs)]
    reference_joules = [*map(joules_of, matches.references)]
    if any(isinstance(value, str) for value in reference_joules):
        return {"reason": "no ratio: the energy of the reference is not known"}
    if not matches.runs:
        return {"reason": f"no ratio: {matches.why_none()}"}
    ratios = np.array(joules) / np.array(reference_joules) / base.works(matches)
    ratio, product = (
        next_time_interval(ratio_interval(values, level=level), *deviation, level)
        for values in (ratios, ratios * base.ratios(matches))
    )
    kind = verdict(ratio, len(ratios), None, DECIMALS).kind
    return {
        "matches": len(ratios),
        "reason": why_left_out(len(ratios), matches.refused),
        "verdict": NO_VERDICT if quiet.stays_disturbed else kind,
        **ratio.columns("energy_ratio"),
        **product.columns("edp_ratio"),
    }


def _to_target(joules_per_epoch: float, timed: Sequence[Measurement]) -> dict[str, Any]:
    """Return the energy until the target accuracy, from the epochs that timing runs needed.

    A run that did not reach the target counts as a run that never reaches it.
    """
    target = next((run["training"]["target_accuracy"] for run in timed), None)
    whole = [run for run in timed if not base.is_cut(run)] if target else []
    epochs = [base.epochs_to_target(run) or np.inf for run in whole]
    needed = float(np.median(epochs)) if epochs else np.inf
    joules = None if np.isinf(needed) else joules_per_epoch * needed
    return {"target_accuracy": target, "joules_to_target": joules}


def _core_hours(names: tuple, run: Measurement, runs: pd.DataFrame, level: float) -> dict:
    """Return the columns on the core-hours of an epoch.

    Parameters
    ----------
    runs : the table `runs`, which has the seconds of the timing runs.
    """
    timed = base.select_timed(runs[is_among(runs, {names})])
    factor = base.cores_of(run) / _SECONDS_PER_HOUR
    seconds = base.median_of("train_seconds_per_epoch", timed, level)
    core_hours = Interval(*(value and value * factor for value in seconds))
    return core_hours.columns("core_hours_per_epoch")
