"""Collection of the ranks' measurements into the result of a run."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np

from escala.core.files import atomic, read_json, settle
from escala.data import reader
from escala.data.base import Arrays
from escala.engines import engine_name
from escala.record import steps
from escala.record.collect_program import collect_program, common
from escala.record.invariants import broken_promise, misplaced, planned_epochs
from escala.record.outcome import Outcome, merge
from escala.record.supervise import EVALUATION
from escala.strategies import STRATEGIES
from escala.strategies.knobs import model_knobs
from escala.training.plan import Plan
from escala.training.process import not_finite
from escala.workloads import WORKLOADS, models, scores_module

PREDICTIONS = "predictions.npy"


def collect(plan: Plan, data: Path, folder: Path) -> Outcome:
    """Return the ranks' measurements, if the run kept the invariants of every run.

    A run whose workload gives a score that is not a finite number has failed, and keeps the rest.
    """
    everyone = [read_json(folder / f"rank{r}.json") for r in range(len(plan["places"]))]
    if plan["kind"] == "command":
        return collect_program(plan, everyone, folder)
    ranks = [each for each in everyone if "epochs" in each]
    first, arrays = ranks[0], reader(data)
    table = steps.read(folder, len(ranks))
    planned = planned_epochs(plan, first)
    alike = STRATEGIES[plan["strategy"]].exchanges(plan["knobs"])
    problem = misplaced(plan, everyone) or broken_promise(
        planned, ranks, table, arrays.rows("test"), alike
    )
    if problem:
        return Outcome("failed", problem)
    files = (folder / f"rank{r}.predictions.npy" for r in range(len(ranks)))
    predictions = np.concatenate([np.load(file, allow_pickle=False) for file in files])
    with atomic(folder.parent / PREDICTIONS) as temporary:
        np.save(temporary, predictions, allow_pickle=False)
    _keep_model(plan, arrays.description, folder, first["weights_sha256"][0])
    epochs = [
        {key: value for key, value in epoch.items() if key not in ("row_moments", "began", "usage")}
        | {
            "distinct_rows": planned[i].distinct,
            "train_seconds": max(r["epochs"][i]["train_seconds"] for r in ranks),
        }
        for i, epoch in enumerate(first["epochs"])
    ]
    evaluation = _scored(plan, arrays, predictions)
    undefined = not_finite(evaluation.get("scores", {}))
    found = merge(_told(everyone, ranks, epochs), common(plan, folder, everyone))
    found["evaluation"] = None if undefined else evaluation
    # A strategy that does not wait for a step cannot measure its time.
    if STRATEGIES[plan["strategy"]].waits():
        found["step_seconds"] = steps.summary(table)
    if undefined:
        remedy = "return finite numbers, and leave out a score that these rows do not define"
        reason = f"{undefined}: in `score` of the workload, {remedy}"
        return Outcome("failed", reason, found=found)
    return Outcome("ok", found=found)


def _told(everyone: list[dict], ranks: list[dict], epochs: list[dict]) -> dict:
    """Return times, and what the first rank says of all."""
    first = ranks[0]
    said = ("optimizer", "parameters", "stopped_early", "best_epoch", "resumed_after")
    exchanges, gpus = first.get("dense_exchange"), [each.get("gpus", []) for each in everyone]
    train_seconds = sum(epoch["train_seconds"] for epoch in epochs)
    parts = {name: max(r["seconds"][name] for r in ranks) for name in first["seconds"]}
    return {
        "epochs": epochs,
        "seconds": parts | {"train": train_seconds},
        "samples_per_second": sum(epoch["rows"] for epoch in epochs) / train_seconds,
        "weights_sha256": first["weights_sha256"][0],
        "ranks": {
            "obtained": first["ranks"],
            "fractions": first["fractions"],
            "evaluating": sum(stop > start for start, stop in (r["evaluated"] for r in ranks)),
            **({"gpus": gpus} if any(gpus) else {}),
        },
        "training": {
            **{name: first[name] for name in said},
            "epochs_done": len(epochs),
            **({"dense_exchange": exchanges} if exchanges else {}),
        },
    }


def _scored(plan: Plan, arrays: Arrays, predictions: np.ndarray) -> dict:
    """Return the scores of the predictions for the test rows, as the workload defines them."""
    targets = np.asarray(arrays.gather("test", slice(None))[1])
    scores = scores_module(plan["workload"])
    if scores is None:
        return import_module(EVALUATION).score(targets, predictions, arrays.description)
    found = scores.score(targets, predictions, arrays.description)
    return {"rows": len(targets), "scores": found}


def _keep_model(plan: Plan, description: dict, folder: Path, weights_sha256: str) -> None:
    """Move the model that rank 0 saved, if any, alongside run.json, and describe it there."""
    saved = folder / models.WEIGHTS
    if saved.exists():
        settle(saved, folder.parent / saved.name)
        workload, knobs = plan["workload"], model_knobs(plan["knobs"], plan["workload"])
        by_steps = WORKLOADS[workload].kind == "steps"
        engine = engine_name(plan["strategy"]) if by_steps else None
        models.describe(
            folder.parent, workload, knobs, plan["training"], description, weights_sha256, engine
        )
