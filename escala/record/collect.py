"""Collection of the ranks' measurements into the result of a run."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np

from escala.core.files import atomic, read_json, settle
from escala.data import reader
from escala.data.base import Arrays
from escala.probes import of_run
from escala.record import steps
from escala.record.collect_program import collect_program
from escala.record.disturbance import disturbance
from escala.record.invariants import broken_promise, misplaced, planned_epochs
from escala.record.outcome import Outcome
from escala.record.supervise import EVALUATION
from escala.strategies import STRATEGIES
from escala.strategies.knobs import of_model
from escala.training.data import not_finite
from escala.workloads import models, scores_module

PREDICTIONS = "predictions.npy"


def collect(plan: dict, data: Path, folder: Path, result: dict) -> Outcome:
    """Write the ranks' measurements into `result`, if the run kept the invariants of every run.

    A run whose workload gives a score that is no finite number has failed, and keeps the rest.
    """
    everyone = [read_json(folder / f"rank{r}.json") for r in range(len(plan["places"]))]
    if plan["kind"] == "command":
        return collect_program(plan, everyone, folder, result)
    ranks = [each for each in everyone if "epochs" in each]
    arrays = reader(data)
    table = steps.read(folder, len(ranks))
    planned = planned_epochs(plan, ranks[0])
    problem = misplaced(plan, everyone) or broken_promise(
        planned, ranks, table, arrays.rows("test")
    )
    if problem:
        return Outcome("failed", problem)
    predictions = np.concatenate(
        [
            np.load(folder / f"rank{r}.predictions.npy", allow_pickle=False)
            for r in range(len(ranks))
        ]
    )
    with atomic(folder.parent / PREDICTIONS) as temporary:
        np.save(temporary, predictions, allow_pickle=False)
    weights_sha256 = ranks[0]["weights_sha256"][0]
    _keep_model(plan, arrays.description, folder, weights_sha256)
    epochs = [
        {key: value for key, value in epoch.items() if key not in ("row_moments", "began")}
        | {
            "distinct_rows": planned[i].distinct,
            "train_seconds": max(r["epochs"][i]["train_seconds"] for r in ranks),
        }
        for i, epoch in enumerate(ranks[0]["epochs"])
    ]
    evaluation = _scored(plan, arrays, predictions)
    undefined = not_finite(evaluation.get("scores", {}))
    train_seconds = sum(epoch["train_seconds"] for epoch in epochs)
    # A strategy that does not wait for a step cannot measure its time.
    asynchronous = STRATEGIES[plan["strategy"]].asynchronous
    parts = {name: max(r["seconds"][name] for r in ranks) for name in ranks[0]["seconds"]}
    result |= {
        "epochs": epochs,
        "seconds": parts | {"train": train_seconds},
        "step_seconds": None if asynchronous else steps.summary(table),
        "samples_per_second": sum(epoch["rows"] for epoch in epochs) / train_seconds,
        "evaluation": None if undefined else evaluation,
        "weights_sha256": weights_sha256,
    }
    result["disturbance"] = disturbance(everyone)
    probe = of_run(plan, folder)
    if probe and probe.result:
        result[probe.name] = probe.read(everyone)
    result["ranks"] |= {
        "obtained": ranks[0]["ranks"],
        "one_clock": len({each["boot"] for each in everyone}) == 1,
        "shares": ranks[0]["shares"],
        "evaluating": sum(stop > start for start, stop in (r["evaluated"] for r in ranks)),
    }
    if any(gpus := [process.get("gpus", []) for process in everyone]):
        result["ranks"]["gpus"] = gpus
    result["training"] |= {
        "optimizer": ranks[0]["optimizer"],
        "parameters": ranks[0]["parameters"],
        "epochs_done": len(epochs),
        "stopped_early": ranks[0]["stopped_early"],
        "best_epoch": ranks[0]["best_epoch"],
        "resumed_after": ranks[0]["resumed_after"],
    }
    if exchanges := ranks[0].get("dense_exchange"):
        result["training"]["dense_exchange"] = exchanges
    if undefined:
        remedy = "return finite numbers, and leave out a score that these rows do not define"
        return Outcome("failed", f"{undefined}: in `score` of the workload, {remedy}")
    return Outcome("ok")


def _scored(plan: dict, arrays: Arrays, predictions: np.ndarray) -> dict:
    """Return the scores of the predictions for the test rows, as the workload defines them."""
    targets, own = (
        np.asarray(arrays.gather("test", slice(None))[1]),
        scores_module(plan["workload"]),
    )
    if own is None:
        return import_module(EVALUATION).score(targets, predictions, arrays.description)
    scores = own.score(targets, predictions, arrays.description)
    return {"rows": len(targets), "scores": scores}


def _keep_model(plan: dict, description: dict, folder: Path, weights_sha256: str) -> None:
    """Move the model that rank 0 saved, if any, beside run.json, and describe it there."""
    saved = folder / models.WEIGHTS
    if saved.exists():
        settle(saved, folder.parent / saved.name)
        models.describe(
            folder.parent,
            plan["workload"],
            of_model(plan["knobs"], plan["workload"]),
            plan["training"],
            description,
            weights_sha256,
        )
