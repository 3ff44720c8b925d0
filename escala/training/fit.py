"""The fit of a workload without steps, in one process and without TensorFlow."""

from __future__ import annotations

import csv
import logging
import math
import time
from pathlib import Path

import numpy as np
from sklearn.metrics import log_loss

from escala.core.errors import Diverged
from escala.core.load import Load
from escala.data import reader
from escala.data.base import Arrays
from escala.training.data import STEP_COLUMNS, Clock, digest
from escala.training.shards import row_moments
from escala.workloads import models, offers, workload

log = logging.getLogger("escala")

#: Results that a fit does not have: it compiles no graph and has no other ranks.
_ABSENT = ("build", "first_step", "first_prediction", "broadcast", "checkpoint", "averaging")


def fit(request: dict, folder: Path, load: Load) -> dict:
    """Fit and evaluate a workload; return the measurements in the form of `escala.training.train`.

    A fit is recorded as one epoch of one step over all training rows. Its `train_seconds` cover
    everything from the codes to the weights. Loss and accuracy on the training rows are computed
    afterwards.

    Parameters
    ----------
    request : the run's plan (`escala.record.plan`).
    folder : the run's `ranks/` folder; receives the step's time, the predictions and the model.
    load : reads what the machine does during the fit.

    Raises
    ------
    Diverged : the loss on the training rows is infinite or not a number.
    InputError : the dataset does not have one class for each row.
    """
    settings, clock = request["training"], Clock()
    work = workload(request["workload"])
    with clock.time("loading"):
        data = reader(request["data"])
        offers.require_classes(work, data.description)
        data.touch()
    (inputs, targets), rows = data.gather("train", slice(None)), data.rows("train")
    counts = _counts(request, data, targets)

    load.begin()
    began, start = time.monotonic(), time.perf_counter()
    weights = work.fit(inputs, targets, counts, settings)
    train_seconds = time.perf_counter() - start
    load.end()
    probabilities = work.probabilities(weights, inputs)
    correct = int((probabilities.argmax(axis=1) == targets).sum())
    loss_sum = float(log_loss(targets, probabilities, normalize=False, labels=range(len(counts))))
    if not math.isfinite(loss_sum):
        raise Diverged(f"the loss is {loss_sum} after the fit")
    epoch = {
        "epoch": 1,
        "steps": 1,
        "rows": rows,
        "began": began,
        "train_seconds": train_seconds,
        "epoch_wall_seconds": time.perf_counter() - start,
        "validation_seconds": None,
        "loss": loss_sum / rows,
        "accuracy": correct / rows,
        "validation_accuracy": None,
        "validation_loss": None,
        "scores": {},
        "row_moments": row_moments(np.arange(rows)),
    }
    with open(folder / "rank0.steps.csv", "w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(STEP_COLUMNS)
        writer.writerow((1, 1, rows, 0.0, train_seconds, loss_sum, correct))
    log.info(
        "fitted to %d rows: loss %.4f, accuracy %.4f, %.2f s",
        rows,
        epoch["loss"],
        epoch["accuracy"],
        train_seconds,
    )

    with clock.time("evaluation"):
        inputs, _ = data.gather("test", slice(None))
        predictions = work.probabilities(weights, inputs).argmax(axis=1)
    np.save(folder / "rank0.predictions.npy", predictions)
    with clock.time("save"):
        if settings["save_model"]:
            np.savez(folder / models.WEIGHTS, **weights)
    return {
        "epochs": [epoch],
        "stopped_early": False,
        "best_epoch": None,
        "resumed_after": [],
        "seconds": clock.seconds | dict.fromkeys(_ABSENT),
        "evaluated": [0, data.rows("test")],
        "shares": [1.0],
        "weights_sha256": [digest(weights.values())],
        "parameters": sum(w.size for w in weights.values() if w.dtype.kind == "f"),
        "optimizer": work.OPTIMIZER,
        "train_rows": rows,
    }


def _counts(request: dict, data: Arrays, targets: np.ndarray) -> np.ndarray:
    """Return the training rows of each class before oversampling, int64 (classes,)."""
    if request["train_counts"] is not None:
        return np.array(request["train_counts"])
    return np.bincount(targets, minlength=len(data.description["classes"]))
