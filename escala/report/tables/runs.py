"""The tables of measurements, of their epochs, of configurations, and of predicted times.

Predictions stand beside measured times. No measured run is in the cost model's calibration.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from escala.analysis.comparable import (
    CONFIGURATION,
    Measurement,
    is_fit,
    other_exchange,
    other_updates,
    speed_seconds,
    unlike_machines,
    work,
)
from escala.analysis.statistics import Interval, median_interval
from escala.core.files import read_json
from escala.core.readable import name_first
from escala.experiment.runs import MAIN, Configuration, reference_number, references_for
from escala.record.disturbance import cores_of_others, earlier
from escala.report.tables import base
from escala.report.tables.base import Evidence, Tables

_TRAINING = (
    "global_batch", "rows_per_rank", "learning_rate", "optimizer", "epochs_asked", "epochs_done",
    "stopped_early", "parameters", "train_rows", "test_rows",
)  # fmt: skip

#: Core time and page faults of a step, and the fraction of core time that the kernel takes.
IN_KERNEL = ("core_seconds_per_step", "kernel_fraction", "faults_per_step")
_WITHOUT_INTERVAL = (
    *(f"{part}_seconds" for part in base.PARTS),
    "first_epoch_seconds", "program_seconds", "projected_seconds", "projected_rest_seconds",
    "wall_seconds", *IN_KERNEL, "input_fraction", "loader_workers",
)  # fmt: skip
#: What the time of a whole training is projected from.
_PROJECTED = "{epochs} epochs of {steps} steps by {told_by}"
#: What is added if what comes between epochs is not known.
NO_END = ", of which no end was seen"
#: The separator of notes on a program.
NOTES_APART = "; "


def runs(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each measurement."""
    return map(row, evidence.runs)


def row(run: Measurement) -> dict:
    """Return the row of a measurement."""
    ranks, training, machine = run["ranks"], run["training"], run["machine"]
    seconds, steps = run["seconds"] or {}, run["step_seconds"] or {}
    ok, cut = run["status"] == "ok", base.is_cut(run)
    evaluation = {} if cut else run["evaluation"] or {}
    disturbance, link = run.get("disturbance") or {}, run["link"] or {}
    # The rate of a single connection differs from job to job, so it is not the rate of a series.
    link = {} if link.get("measured_by") else link
    return {
        **base.names_of(run),
        **{key: run[key] for key in ("current", "comparable", "incomparable_because")},
        **{key: run[key] for key in ("status", "reason", "started")},
        "kind": base.kind(run),
        "fit": is_fit(run),
        "ranks": ranks["asked"],
        "oversubscribed": ranks["oversubscribed"],
        **{key: link.get(key) for key in ("mbit_per_second", "latency_ms")},
        "launcher": ranks["launcher"],
        "cores": ";".join(",".join(map(str, cores)) for cores in ranks["cores"]),
        **{key: training[key] for key in _TRAINING},
        "resumptions": len(training["resumed_after"]),
        "train_seconds": seconds.get("train"),
        "train_seconds_per_epoch": base.seconds_per_epoch(run) if ok else None,
        "step_median_seconds": steps.get("median"),
        **core_use(run),
        "samples_per_second": run["samples_per_second"],
        **{f"{part}_seconds": seconds.get(part) for part in base.PARTS},
        "wall_seconds": run["wall_seconds"],
        **_program(run),
        "disturbed": disturbance.get("disturbed"),
        "disturbed_because": disturbance.get("reason"),
        "taken_cores": cores_of_others(run),
        "kernel_slowdown": (disturbance.get("kernel") or {}).get("slowdown"),
        "earlier_attempts": len(earlier(run)),
        "accuracy": evaluation.get("accuracy"),
        "macro_f1": evaluation.get("macro", {}).get("f1"),
        **time_to_target(run),
        **base.data_of(run),
        **{key: machine[key] for key in ("cpu", "cores_available", "memory_bytes", "kernel")},
        "speed_seconds": speed_seconds(run),
        "gpus": "; ".join(machine.get("gpus", [])) or None,
        "hosts": ";".join(ranks["hosts"]),
        "weights_sha256": run["weights_sha256"],
        "source_sha256": run["source_sha256"],
        "file": run["file"],
    }


def core_use(run: Measurement, sampled: bool = False) -> dict:
    """Return the columns `IN_KERNEL`, from what the processes of a run used in training steps.

    Samples of processes are also of the time between steps. So they are taken only if steps are not
    seen, or if they must include the processes that load batches.

    Parameters
    ----------
    sampled : whether to take samples, if there are some.
    """
    columns, usage = dict.fromkeys(IN_KERNEL), run.get("usage") or []
    if (steps := base.mean_steps(run)) and not (usage and (sampled or loader_workers(run))):
        usage = [
            {
                "user_seconds": step["core_seconds"] - step["kernel_seconds"],
                "system_seconds": step["kernel_seconds"],
                "minor_faults": step["minor_faults"],
                "steps": 1,
            }
            for step in steps
        ]
    system, user = (sum(process[f"{by}_seconds"] for process in usage) for by in ("system", "user"))
    if system + user:
        columns["kernel_fraction"] = system / (system + user)
    if usage and None not in [process["steps"] for process in usage]:
        columns["core_seconds_per_step"] = sum(
            (process["system_seconds"] + process["user_seconds"]) / process["steps"]
            for process in usage
        )
        columns["faults_per_step"] = sum(
            process["minor_faults"] / process["steps"] for process in usage
        )
    return columns


def input_fraction(run: Measurement) -> float | None:
    """Return the part of a step in which a program waits for its next batch; None if unknown."""
    waits = (
        step["input_seconds"] / step["step_seconds"]
        for step in base.mean_steps(run)
        if step["input_seconds"] is not None
    )
    return max(waits, default=None)


def loader_workers(run: Measurement) -> int | None:
    """Return the most processes that load batches for a process of a program; None if unknown."""
    workers = [step["workers"] for step in base.mean_steps(run) if step["workers"] is not None]
    return max(workers, default=None)


def _program(run: Measurement) -> dict:
    """Return the columns on a program; none for other workloads."""
    program = run.get("program")
    if not program:
        return {}
    notes, projected = list(program["notes"]), program.get("projected") or {}
    rest = projected.get("rest_seconds", 0.0)  # Older results do not tell it.
    if read := program.get("read"):
        notes.append(
            f"it read {name_first(read)}, which are not among its files, so a change in them "
            "is not noticed. Remedy: name these files under files, or large data under paths "
            "of the dataset"
        )
    words = []
    for word in program["command"]:
        # Words are quoted for a shell. Braces of placeholders alone need no quotes.
        without_braces = re.sub(r"[{}]", "_", word)
        needs_quotes = shlex.quote(without_braces) != without_braces
        words.append(shlex.quote(word) if needs_quotes else word)
    return {
        "command": " ".join(words),
        "known_by": program["known_by"],
        "named": ";".join(program["named"]),
        "program_files": ";".join(program["files"]) or None,
        "program_variables": ";".join(program.get("variables", ())) or None,
        "first_epoch_seconds": program["first_epoch_seconds"],
        "program_seconds": program["whole_seconds"],
        "projected_seconds": projected.get("seconds"),
        "projected_from": _PROJECTED.format(**projected) + NO_END * (rest is None)
        if projected
        else None,
        "projected_rest_seconds": projected.get("rest_seconds"),
        "input_fraction": input_fraction(run),
        "loader_workers": loader_workers(run),
        "program_notes": NOTES_APART.join(notes) or None,
    }


def time_to_target(run: Measurement) -> dict:
    """Return the columns on the training time until the target accuracy.

    A run that did not reach the target has all its training seconds, and is `censored`.
    """
    target = run["training"]["target_accuracy"]
    columns = {"target_accuracy": target, "time_to_target_seconds": None}
    if run["status"] != "ok" or target is None:
        return columns | {"time_to_target_kind": "unavailable"}
    needed = base.epochs_to_target(run)
    return columns | {
        "time_to_target_seconds": sum(epoch["train_seconds"] for epoch in run["epochs"][:needed]),
        "time_to_target_kind": "censored" if needed is None else "measured",
    }


def epochs(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each epoch of every measurement."""
    for run in evidence.runs:
        about = {"validated_on": run["training"]["validated_on"], **base.data_of(run)}
        for epoch in run["epochs"]:
            yield (
                base.names_of(run)
                | {key: run[key] for key in ("current", "status")}
                | {key: value for key, value in epoch.items() if key != "scores"}
                | about
            )


def configurations(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each configuration, with the medians over its measurements."""
    current_runs = {
        tuple(run[key] for key in CONFIGURATION): run for run in evidence.runs if run["current"]
    }
    for names, group in tables["runs"].groupby(list(CONFIGURATION), sort=False):
        current, timed = group[group["current"]], base.select_timed(group)
        is_ok = current["status"] == "ok"
        ok, failed = current[is_ok], current[~is_ok]
        whole, level = timed[timed["kind"] == "measured"], evidence.level
        per_epoch = base.median_of("train_seconds_per_epoch", timed, level)
        yield {
            **base.name_columns(names),
            "reference": reference_number(Configuration(*names[2:]), evidence.references),
            "fit": group["fit"].iloc[0],
            "other_model": _other_model(names, current_runs, evidence),
            "ranks": group["ranks"].iloc[0],
            "oversubscribed": bool(group["oversubscribed"].any()),
            "runs_ok": len(ok),
            "runs_failed": len(failed),
            "measurements": len(timed),
            "sessions": timed["session"].nunique(),
            "hosts": ";".join(sorted(set(";".join(timed["hosts"]).split(";")) - {""})),
            "kind": base.least_certain(timed["kind"]),
            "reason": None if len(timed) else base.reasons(failed),
            **per_epoch.columns("train", "_seconds_per_epoch"),
            "total_train_seconds": base.median_of("train_seconds", whole).estimate,
            **base.median_of("step_median_seconds", timed, level).columns("step", "_seconds"),
            **base.median_of("samples_per_second", timed, level).columns("samples_per_second"),
            **base.median_of("accuracy", ok, level).columns("accuracy"),
            **median_to_target(timed, level),
            **{key: base.median_of(key, timed).estimate for key in _WITHOUT_INTERVAL},
            "projected_from": next(iter(timed["projected_from"].dropna()), None),
            **{key: group[key].iloc[0] for key in base.ABOUT},
        }


def _other_model(names: tuple, runs: Mapping[tuple, Measurement], evidence: Evidence) -> str | None:
    """Return why a configuration trains another model than its main reference does.

    If the main reference was not run, the first main reference of the dataset and workload replaces
    it.

    Parameters
    ----------
    runs : a current run of each configuration.
    """
    run = runs.get(names)
    if run is None or is_fit(run):
        return None
    if reason := other_exchange(run):
        return reason
    references = dict(references_for(Configuration(*names[2:]), evidence.references))
    if MAIN not in references:
        return None
    main_references = (
        candidate
        for other, candidate in runs.items()
        if other[:2] == names[:2]
        and reference_number(Configuration(*other[2:]), evidence.references) == MAIN
    )
    reference = runs.get((*names[:2], *references[MAIN])) or next(main_references, None)
    if reference is None:
        return None
    as_good = run["training"]["target_accuracy"] is not None and work(run, reference) == 1
    return None if as_good else other_updates(run, reference)


def median_to_target(timed: pd.DataFrame, level: float) -> dict:
    """Return the columns on the median time to the target accuracy of a configuration.

    Runs that did not reach the target would have taken longer than they ran. If they make the
    median unknown, the value is a lower bound and its kind is `censored`.

    Parameters
    ----------
    timed : its rows of the table `runs` whose times count.
    """
    known = timed[timed["time_to_target_kind"] != "unavailable"]
    reached = known["time_to_target_kind"] == "measured"
    if known.empty:
        return {"time_to_target_kind": "unavailable"}
    seconds = known["time_to_target_seconds"]
    is_unknown = np.isinf(np.median(seconds.where(reached, np.inf)))
    interval = (
        median_interval(seconds, level=level) if reached.all() else Interval(None, None, None)
    )
    return {
        "target_accuracy": known["target_accuracy"].iloc[0],
        "time_to_target_seconds": float(seconds.median()),
        "time_to_target_low_seconds": interval.low,
        "time_to_target_high_seconds": interval.high,
        "time_to_target_kind": "censored" if is_unknown else "measured",
    }


def predictions(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each configuration of the predictions; none without predictions.

    The epochs to the target accuracy are from runs of one process with the same rows in a step.
    Several ranks with the same updates need the same number of epochs. With dropout, with
    normalisation of each rank's rows or with fp16, ranks make other updates.
    """
    if evidence.predictions_file is None:
        return
    content, table = read_json(evidence.predictions_file), tables["runs"]
    by_names = base.by_configuration(evidence.runs)
    for row in content["configurations"]:
        # Predictions are compared only with times of machines that are like the calibrated machine.
        alike, uncompared = [], []
        for run in by_names.get(tuple(row[key] for key in CONFIGURATION), ()):
            why = unlike_machines([content["machine"]], run["ranks"]["machines"][:1])
            alike += [run["file"]] * (why is None)
            uncompared += [why] * (why is not None)
        timed = base.select_timed(table[table["file"].isin(alike)])
        time = base.median_of("train_seconds_per_epoch", timed, evidence.level)
        measured = {
            "runs": len(timed),
            **time.columns("measured", "_seconds_per_epoch"),
            "uncompared": "; ".join(dict.fromkeys(uncompared)) or None,
        }
        seconds, low, high = (
            row.get(f"predicted{end}_seconds_per_epoch") for end in ("", "_low", "_high")
        )
        if time.estimate is not None:
            times = timed["train_seconds_per_epoch"]
            measured["error"] = None if seconds is None else seconds / time.estimate - 1
            measured["covered"] = None if low is None else int(times.between(low, high).sum())
        needed = [
            base.epochs_to_target(run) or np.inf
            for run in evidence.evaluated
            if run["ranks"]["asked"] == 1
            and run["training"]["target_accuracy"] is not None
            and run["training"]["global_batch"] == row.get("global_batch")
            and all(run[key] == row[key] for key in ("dataset", "workload", "variant"))
        ]
        epochs = float(np.median(needed)) if needed else np.inf
        if row["ranks"] > 1 and seconds is not None and np.isfinite(epochs):
            measured["predicted_seconds_to_target"] = epochs * seconds
        yield row | measured
