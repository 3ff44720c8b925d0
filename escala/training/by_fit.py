"""Fit a workload in this process by one call, without the steps of a framework.

A fit is recorded as one epoch of one step over all training rows. Its `train_seconds` cover
everything from the inputs to the weights. Loss and accuracy on the training rows are computed
afterwards.
"""

from __future__ import annotations

import csv
import logging
import math
import time
from pathlib import Path

import numpy as np
from sklearn.metrics import log_loss
from threadpoolctl import threadpool_info, threadpool_limits

from escala.core import proc
from escala.core.errors import Diverged
from escala.core.load import Load
from escala.data import reader
from escala.probes import Probe
from escala.strategies.base import Place
from escala.training.process import (
    STEP_COLUMNS,
    VALIDATION,
    Clock,
    digest,
    startup_seconds,
)
from escala.training.shards import row_moments
from escala.workloads import models, workload

log = logging.getLogger("escala")


def run(plan: dict, folder: Path, place: Place, _: Probe | None, load: Load) -> dict:
    """Fit, and return the `escala.training.process.Measurements`.

    `folder` is the run's `ranks/`, and receives the step's time, the predictions and the model.
    `load` measures the load of the machine during the fit.

    A loss on the training rows that is not finite is `Diverged`. A dataset without exactly one
    class for each row is an `InputError`.
    """
    clock, work = Clock(), workload(plan["workload"])
    # The workload's libraries are imported now, so their pools of threads exist.
    with threadpool_limits(plan["knobs"]["threads"]["intra_op"]):
        clock.seconds["startup"] = startup_seconds(place.process, 1)
        with clock.time("loading"):
            data = reader(plan["data"])
            models.require_classes(work, data.description)
            data.touch()
        (inputs, targets), rows = data.gather("train", slice(None)), data.rows("train")
        # The rows of each class before oversampling.
        counts = plan["train_counts"]
        if counts is None:
            counts = np.bincount(targets, minlength=len(data.description["classes"]))
        load.begin()
        began, used_before = time.monotonic(), proc.usage_of_self()
        start = time.perf_counter()
        weights = work.fit(inputs, targets, np.array(counts), plan["training"])
        train_seconds = time.perf_counter() - start
        used = proc.usage_of_self().since(used_before)
        load.end()
        probabilities = work.probabilities(weights, inputs)
        correct = int((probabilities.argmax(axis=1) == targets).sum())
        classes = range(len(counts))
        loss_sum = float(log_loss(targets, probabilities, normalize=False, labels=classes))
        if not math.isfinite(loss_sum):
            raise Diverged(f"the loss is {loss_sum} after the fit")
        message = "fitted to %d rows: loss %.4f, accuracy %.4f, %.2f s"
        log.info(message, rows, loss_sum / rows, correct / rows, train_seconds)
        epoch = dict.fromkeys(VALIDATION) | {
            "epoch": 1,
            "steps": 1,
            "rows": rows,
            "began": began,
            "train_seconds": train_seconds,
            "epoch_wall_seconds": time.perf_counter() - start,
            "loss": loss_sum / rows,
            "accuracy": correct / rows,
            "scores": {},
            "row_moments": row_moments(np.arange(rows)),
            "usage": used,
        }
        with open(folder / "rank0.steps.csv", "w", newline="", encoding="utf-8") as handle:
            step = 1, 1, rows, 0.0, train_seconds, loss_sum, correct
            csv.writer(handle).writerows([STEP_COLUMNS, step])
        with clock.time("evaluation"):
            inputs, _ = data.gather("test", slice(None))
            predictions = work.probabilities(weights, inputs).argmax(axis=1)
        np.save(folder / "rank0.predictions.npy", predictions)
        with clock.time("save"):
            if plan["training"].get("save_model"):
                np.savez(folder / models.WEIGHTS, **weights)
        threads = max(pool["num_threads"] for pool in threadpool_info())
    return {
        "epochs": [epoch],
        "seconds": clock.seconds,
        "ranks": 1,
        "threads": {"intra_op": threads, "inter_op": 1},
        "evaluated": [0, data.rows("test")],
        "fractions": [1.0],
        "weights_sha256": [digest(weights.values())],
        "parameters": sum(w.size for w in weights.values() if w.dtype.kind == "f"),
        "optimizer": work.OPTIMIZER,
        "usage": used._asdict() | {"steps": 1},
    }
