"""Make the result of a run from the reports of its processes, with its scores on the test rows."""

from __future__ import annotations

from collections.abc import Sequence
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
from escala.record.invariants import invariant_fault, placement_fault, plan_epochs
from escala.record.schema import Outcome
from escala.runtime import allocation
from escala.strategies import STRATEGIES
from escala.strategies.knobs import model_knobs
from escala.training.process import PARTS, Measurements, Plan, not_finite
from escala.workloads import models, scores_module


def read_steps(folder: Path, ranks: int) -> pd.DataFrame:
    """Return the steps of all ranks, with the columns that each rank wrote, and `rank`."""
    return pd.concat(
        [pd.read_csv(folder / f"rank{r}.steps.csv").assign(rank=r) for r in range(ranks)],
        ignore_index=True,
    )


def summarize_steps(steps: pd.DataFrame) -> dict:
    """Summarise steady-state steps, in seconds, input included.

    A step lasts as long as its slowest rank takes. The first step compiles code, and is not among
    `steps`.

    Returns
    -------
    `median` and `p90` of the steps, their `count`, and `per_rank` the same quantiles of each rank.
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
#: Keys of the report of an epoch that only the checks of invariants need.
_FOR_CHECKS = ("row_moments", "began", "usage")


def collect(plan: Plan, data: Path, folder: Path) -> Outcome:
    """Return the outcome of a run whose processes ended ok, with what was measured.

    A run that broke an invariant has failed, and its outcome has no measurement. A run with a score
    that is not a finite number has failed, but its outcome has the other measurements. The epochs
    of a program are from the processes whose steps are known in the best way: by the hook, then as
    seen, then by the output (`invariants.best_reports`). The time of an epoch is that of the
    slowest process.

    Parameters
    ----------
    folder : the ranks' folder, with the report of each process.
    """
    ranks = range(len(plan["places"]))
    reports: list[Measurements] = [read_json(folder / f"rank{rank}.json") for rank in ranks]
    training = invariants.best_reports(reports)
    first, strategy, is_program = training[0], STRATEGIES[plan["strategy"]], "start" in plan
    # Whether this is so for all processes that trained.
    are_all_known = training == [report for report in reports if report["epochs"]]
    steps_made = [epoch["steps"] for report in training for epoch in report["epochs"]]
    are_steps_known = are_all_known and None not in steps_made
    table = read_steps(folder, len(training)) if are_steps_known else pd.DataFrame()
    if is_program:
        fault = invariants.program_fault(plan, reports, folder)
    else:
        arrays, planned = reader(data), plan_epochs(plan, first)
        exchange = strategy.exchanges(plan["knobs"])
        fault = invariant_fault(planned, training, table, arrays.rows("test"), exchange)
    if fault := placement_fault(plan, reports) or fault:
        return Outcome("failed", fault)
    same_epochs = zip(*(report["epochs"] for report in training), strict=True)
    epochs = [_join_epochs(list(same), bool(first["epoch_steps"])) for same in same_epochs]
    if is_program:
        scores = {}
        for report in reversed(training):
            scores |= report["scores"]
        evaluation = {"rows": None, "scores": scores} if scores else None
    else:
        for epoch, of_first, rows in zip(epochs, first["epochs"], planned, strict=True):
            # The first process also writes, and the other processes wait for that.
            wall = of_first["epoch_wall_seconds"]
            epoch |= {"distinct_rows": rows.distinct, "epoch_wall_seconds": wall}
        evaluation = _score(plan, arrays, folder, len(training))
        saved = folder / models.WEIGHTS  # Rank 0 saves a model that is to be kept.
        if saved.exists():
            settle(saved, folder.parent / saved.name)
            workload, knobs = plan["workload"], model_knobs(plan["knobs"], plan["workload"])
            models.write_description(
                folder.parent, workload, knobs, plan["training"], arrays.description,
                first["weights_sha256"][0], plan["engine"],
            )  # fmt: skip
    if not are_all_known:
        # The rows of the other processes are not known.
        epochs = [epoch | {"rows": None} for epoch in epochs]
    rows = [epoch["rows"] for epoch in epochs]
    train_seconds = sum(epoch["train_seconds"] for epoch in epochs)
    # A strategy that does not wait for a step cannot measure its time.
    are_timed = strategy.waits() and not table.empty
    undefined = not_finite((evaluation or {}).get("scores", {}))
    probe, gpus = probe_of_plan(plan, folder), [report["gpus"] or [] for report in reports]
    evaluated = [report["evaluated"] for report in training if report["evaluated"]]
    parameters = [report["parameters"] for report in training]
    evaluating = sum(stop > start for start, stop in evaluated)
    parts = {name: [report["seconds"][name] for report in training] for name in PARTS}
    slowest = {name: None if None in part else max(part) for name, part in parts.items()}
    measured = {
        "epochs": epochs,
        "seconds": slowest | {"train": train_seconds},
        "step_seconds": summarize_steps(table) if are_timed else None,
        "samples_per_second": None if None in rows else sum(rows) / train_seconds,
        "weights_sha256": first["weights_sha256"] and first["weights_sha256"][0],
        "evaluation": None if undefined else evaluation,
        "ranks": {
            "obtained": first["ranks"],
            "fractions": first["fractions"],
            "one_clock": len({report["boot"] for report in reports}) == 1,
            **({"evaluating": evaluating} if evaluated else {}),
            **({"gpus": gpus} if any(gpus) else {}),
        },
        "training": {
            "parameters": next(map(int, filter(None, parameters)), None),
            "optimizer": first["optimizer"],
            "epochs_done": epochs[-1]["epoch"],
            **({"steps_per_epoch": first["epoch_steps"]} if first["epoch_steps"] else {}),
            "stopped_early": bool(first["stopped_early"]),
            "best_epoch": first["best_epoch"],
            "resumed_after": first["resumed_after"] or [],
            **({"dense_exchange": sent} if (sent := first["dense_exchange"]) else {}),
        },
        "disturbance": disturbance(reports),
        "usage": [report["usage"] for report in reports if report["usage"]] or None,
        **({"job": {"step": reports[0]["step"]}} if allocation.job_number() else {}),
        **({probe.name: probe.read(reports)} if probe and probe.result else {}),
        **({"program": invariants.describe_program(plan, reports, folder)} if is_program else {}),
    }
    if undefined:
        remedy = "return finite numbers, and leave out a score that these rows do not define"
        reason = f"{undefined}: in `score` of the workload, {remedy}"
        return Outcome("failed", reason, measured=measured)
    return Outcome("ok", measured=measured)


def _join_epochs(same: list[dict[str, Any]], is_window: bool) -> dict[str, Any]:
    """Return an epoch of the whole run from the reports of the same epoch by all processes.

    Parameters
    ----------
    is_window : whether the epoch holds some steady steps, of which processes may count different
        numbers. Their seconds and rows are then for the number of steps of the first process.
    """
    if is_window:
        same = [_scale(epoch, same[0]["steps"] / epoch["steps"]) for epoch in same]
    joined = {key: value for key, value in same[0].items() if key not in _FOR_CHECKS}
    for name in ("loss", "accuracy", "validation_accuracy", "validation_loss"):
        joined[name] = next((epoch[name] for epoch in same if epoch[name] is not None), None)
    for name in ("train_seconds", "epoch_wall_seconds"):
        joined[name] = max(epoch[name] for epoch in same)
    rows = [epoch["rows"] for epoch in same]
    return joined | {"rows": None if None in rows else sum(rows)}


def _scale(epoch: dict[str, Any], factor: float) -> dict[str, Any]:
    """Return an epoch with the seconds and rows of another number of steps."""
    rows = epoch["rows"] and round(factor * epoch["rows"])
    return epoch | {"train_seconds": factor * epoch["train_seconds"], "rows": rows}


def _score(plan: Plan, arrays: Arrays, folder: Path, ranks: int) -> dict:
    """Keep the predictions for the test rows, and return the scores that the workload defines."""
    files = (folder / f"rank{r}.predictions.npy" for r in range(ranks))
    predictions = np.concatenate([np.load(file, allow_pickle=False) for file in files])
    with atomic(folder.parent / PREDICTIONS) as temporary:
        np.save(temporary, predictions, allow_pickle=False)
    targets = np.asarray(arrays.gather("test", slice(None))[1])
    scores = scores_module(plan["workload"])
    if scores is None:
        return evaluate(targets, predictions, arrays.description["classes"])
    by_name = scores.score(targets, predictions, arrays.description)
    return {"rows": len(targets), "scores": by_name}


#: With more classes, scores by class and the confusion matrix are left out.
MOST_CLASSES = 100


def evaluate(labels: np.ndarray, predictions: np.ndarray, classes: list[str]) -> dict:
    """Score predictions against labels, both int arrays of shape (rows,).

    Returns
    -------
    Accuracy; precision, recall, F1 and support per class; their macro and weighted averages; the
    confusion matrix with true classes in rows and predicted ones in columns. A class that is never
    predicted has precision 0. A class without test rows has no scores (None), and averages are over
    the other classes. With more than `MOST_CLASSES` classes there are no scores by class and no
    matrix.
    """
    # Imported here, because it takes a second that other processes need not spend.
    from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

    numbers = range(len(classes))
    tested = np.flatnonzero(np.bincount(labels, minlength=len(classes)))

    def scores(average: str | None, among: Sequence[int]) -> tuple:
        return precision_recall_fscore_support(
            labels, predictions, labels=among, average=average, zero_division=0
        )

    evaluation = {
        "rows": len(labels),
        "accuracy": float(np.mean(labels == predictions)),
        "classes": classes,
        "macro": _scores_by_name(*scores("macro", tested)[:3], len(labels)),
        "weighted": _scores_by_name(*scores("weighted", tested)[:3], len(labels)),
    }
    if len(classes) <= MOST_CLASSES:
        per_class = zip(classes, zip(*scores(None, numbers), strict=True), strict=True)
        matrix = confusion_matrix(labels, predictions, labels=numbers)
        evaluation["per_class"] = {name: _scores_by_name(*row) for name, row in per_class}
        evaluation["confusion_matrix"] = matrix.tolist()
    return evaluation


def _scores_by_name(precision: float, recall: float, f1: float, support: int) -> dict:
    scores = {"precision": float(precision), "recall": float(recall), "f1": float(f1)}
    return (scores if support else dict.fromkeys(scores)) | {"support": int(support)}
