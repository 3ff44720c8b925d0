"""Collection of what the processes of a run told into its result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from escala.core.files import atomic, read_json, settle
from escala.data import reader
from escala.data.base import Arrays
from escala.probes import probe_of_plan
from escala.record import invariants
from escala.record.disturbance import disturbance
from escala.record.evaluation import score
from escala.record.invariants import invariant_fault, placement_fault, plan_epochs
from escala.record.schema import Outcome
from escala.runtime import allocation
from escala.strategies import STRATEGIES
from escala.strategies.knobs import model_knobs
from escala.training.process import PARTS, Measurements, Plan, not_finite
from escala.workloads import models, scores_module


def read_steps(folder: Path, ranks: int) -> pd.DataFrame:
    """Return the steps of all ranks, in the columns each rank wrote and `rank`."""
    return pd.concat(
        [pd.read_csv(folder / f"rank{r}.steps.csv").assign(rank=r) for r in range(ranks)],
        ignore_index=True,
    )


def summarize_steps(steps: pd.DataFrame) -> dict:
    """Summarise steady-state steps, in seconds, input included.

    A step lasts as long as its slowest rank takes: the median and the 90th percentile over steps
    are of that maximum. The first, compiling step is not among them (it is a warm-up).
    """
    seconds = (steps["input_seconds"] + steps["step_seconds"]).rename("seconds")
    table = pd.concat([steps[["rank", "epoch", "step"]], seconds], axis=1)
    slowest = table.groupby(["epoch", "step"])["seconds"].max()
    return {
        **_quantiles(slowest),
        "count": len(slowest),
        "per_rank": [
            {"rank": int(rank), **_quantiles(group["seconds"])}
            for rank, group in table.groupby("rank")
        ],
    }


def _quantiles(seconds: pd.Series) -> dict[str, float]:
    median, p90 = np.quantile(seconds, [0.5, 0.9])
    return {"median": float(median), "p90": float(p90)}


PREDICTIONS = "predictions.npy"
#: What a process tells of an epoch for checks only.
_FOR_CHECKS = ("row_moments", "began", "usage")


def collect(plan: Plan, data: Path, folder: Path) -> Outcome:
    """Return what the processes told, if the run kept the invariants of every run.

    Of a program, the epochs are those of the processes that tell best of them. An epoch takes as
    long as in the slowest process. A run whose workload gives a score that is not a finite number
    has failed, and keeps the rest.

    Parameters
    ----------
    folder : the ranks' folder, with what each process told.
    """
    told: list[Measurements] = [
        read_json(folder / f"rank{r}.json") for r in range(len(plan["places"]))
    ]
    training, trained = invariants.best_reports(told), [each for each in told if each["epochs"]]
    first, strategy, is_program = training[0], STRATEGIES[plan["strategy"]], "start" in plan
    are_all_known = training == trained
    steps_made = [epoch["steps"] for each in training for epoch in each["epochs"]]
    are_steps_known = are_all_known and None not in steps_made
    table = read_steps(folder, len(training)) if are_steps_known else pd.DataFrame()
    if is_program:
        problem = invariants.program_fault(plan, told, folder)
    else:
        arrays, planned = reader(data), plan_epochs(plan, first)
        alike = strategy.exchanges(plan["knobs"])
        problem = invariant_fault(planned, training, table, arrays.rows("test"), alike)
    if problem := placement_fault(plan, told) or problem:
        return Outcome("failed", problem)
    epochs = [
        _join_epochs(list(same)) for same in zip(*(e["epochs"] for e in training), strict=True)
    ]
    if is_program:
        scores = {name: score for e in reversed(training) for name, score in e["scores"].items()}
        evaluation = {"rows": None, "scores": scores} if scores else None
    else:
        for epoch, alone, rows in zip(epochs, first["epochs"], planned, strict=True):
            # The others wait for the first process, which also writes.
            wall = alone["epoch_wall_seconds"]
            epoch |= {"distinct_rows": rows.distinct, "epoch_wall_seconds": wall}
        evaluation = _score(plan, arrays, folder, len(training))
        _keep_model(plan, arrays.description, folder, first["weights_sha256"][0])
    if not are_all_known:
        # What the others trained on is not known.
        epochs = [epoch | {"rows": None} for epoch in epochs]
    rows = [epoch["rows"] for epoch in epochs]
    train_seconds = sum(epoch["train_seconds"] for epoch in epochs)
    # A strategy that does not wait for a step cannot measure its time.
    are_timed = strategy.waits() and not table.empty
    undefined = not_finite((evaluation or {}).get("scores", {}))
    probe, gpus = probe_of_plan(plan, folder), [each["gpus"] or [] for each in told]
    evaluated = [each["evaluated"] for each in training if each["evaluated"]]
    found = {
        "epochs": epochs,
        "seconds": {name: _slowest(training, name) for name in PARTS} | {"train": train_seconds},
        "step_seconds": summarize_steps(table) if are_timed else None,
        "samples_per_second": None if None in rows else sum(rows) / train_seconds,
        "weights_sha256": first["weights_sha256"] and first["weights_sha256"][0],
        "evaluation": None if undefined else evaluation,
        "ranks": {
            "obtained": first["ranks"],
            "fractions": first["fractions"],
            "one_clock": len({each["boot"] for each in told}) == 1,
            **({"evaluating": sum(b > a for a, b in evaluated)} if evaluated else {}),
            **({"gpus": gpus} if any(gpus) else {}),
        },
        "training": {
            "parameters": next((int(e["parameters"]) for e in training if e["parameters"]), None),
            "optimizer": first["optimizer"],
            "epochs_done": epochs[-1]["epoch"],
            "stopped_early": bool(first["stopped_early"]),
            "best_epoch": first["best_epoch"],
            "resumed_after": first["resumed_after"] or [],
            **({"dense_exchange": each} if (each := first["dense_exchange"]) else {}),
        },
        "disturbance": disturbance(told),
        "usage": [each["usage"] for each in told if each["usage"]] or None,
        **({"job": {"step": told[0]["step"]}} if allocation.number() else {}),
        **({probe.name: probe.read(told)} if probe and probe.result else {}),
        **({"program": invariants.describe_program(plan, told, folder)} if is_program else {}),
    }
    if undefined:
        remedy = "return finite numbers, and leave out a score that these rows do not define"
        reason = f"{undefined}: in `score` of the workload, {remedy}"
        return Outcome("failed", reason, found=found)
    return Outcome("ok", found=found)


def _join_epochs(same: list[dict[str, Any]]) -> dict[str, Any]:
    """Return an epoch of all processes from that of each."""
    found = {key: value for key, value in same[0].items() if key not in _FOR_CHECKS}
    for name in ("loss", "accuracy", "validation_accuracy", "validation_loss"):
        found[name] = next((epoch[name] for epoch in same if epoch[name] is not None), None)
    for name in ("train_seconds", "epoch_wall_seconds"):
        found[name] = max(epoch[name] for epoch in same)
    rows = [epoch["rows"] for epoch in same]
    return found | {"rows": None if None in rows else sum(rows)}


def _slowest(training: list[Measurements], part: str) -> float | None:
    seconds = [process["seconds"][part] for process in training]
    return None if None in seconds else max(seconds)


def _score(plan: Plan, arrays: Arrays, folder: Path, ranks: int) -> dict:
    """Keep the predictions for the test rows, and return their scores as the workload defines."""
    files = (folder / f"rank{r}.predictions.npy" for r in range(ranks))
    predictions = np.concatenate([np.load(file, allow_pickle=False) for file in files])
    with atomic(folder.parent / PREDICTIONS) as temporary:
        np.save(temporary, predictions, allow_pickle=False)
    targets = np.asarray(arrays.gather("test", slice(None))[1])
    scores = scores_module(plan["workload"])
    if scores is None:
        return score(targets, predictions, arrays.description)
    score_of_rows = scores.score(targets, predictions, arrays.description)
    return {"rows": len(targets), "scores": score_of_rows}


def _keep_model(plan: Plan, description: dict, folder: Path, weights_sha256: str) -> None:
    """Move the model that rank 0 saved, if any, alongside run.json, and describe it there."""
    saved = folder / models.WEIGHTS
    if saved.exists():
        settle(saved, folder.parent / saved.name)
        workload, knobs = plan["workload"], model_knobs(plan["knobs"], plan["workload"])
        models.describe(
            folder.parent, workload, knobs, plan["training"], description, weights_sha256,
            plan["engine"],
        )  # fmt: skip
