"""The training of one rank: warm-up, epochs, evaluation, each timed under its own name."""

from __future__ import annotations

import csv
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import tensorflow as tf

from escala.errors import Diverged
from escala.parallel.data import STEP_COLUMNS, Clock, Data, digest
from escala.parallel.shards import (
    batches,
    epoch_order,
    evaluation_rows,
    row_moments,
    steps_per_epoch,
)
from escala.parallel.strategies import Strategy
from escala.workloads import models, workload

log = logging.getLogger("escala")

PROGRESS_SECONDS = 2.0


def train(request: dict, strategy: Strategy, rank: int, ranks: int, folder: Path) -> dict:
    """Train and evaluate one rank's share, and return what was measured.

    Parameters
    ----------
    request : what `escala.measure.run` wrote.
    strategy : already started.
    folder : the run's `ranks/` folder; receives step times, predictions and the model.

    Raises
    ------
    Diverged : the loss became infinite or not a number.
    """
    settings, clock = request["training"], Clock()
    work = workload(request["workload"])
    with clock.time("loading"):
        data = Data.load(request["data"])
        data.touch()
    with clock.time("build"):
        # Every rank draws its own weights: that they agree afterwards is the broadcast's doing.
        tf.keras.utils.set_random_seed(request["seed"] + rank)
        model = work.model(data.train.shape[1], len(request["classes"]))
        optimizer = work.optimizer(request["learning_rate"])
        optimizer.build(model.trainable_variables)
        step = _train_step(model, optimizer, work.row_losses, strategy)
        predict = _predictor(model)
    variables = [*model.variables, *optimizer.variables]
    with clock.time("first_step"):
        _warm_up(step, variables, data, request["global_batch"], rank, ranks)
    with clock.time("first_prediction"):
        predict(data.test[:1])
    with clock.time("broadcast"):
        strategy.broadcast(variables)

    stopper = EarlyStopping(settings.get("early_stopping"))
    board = _tensorboard(folder.parent / "tensorboard", settings["tensorboard"] and rank == 0)
    epochs: list[dict] = []
    with open(folder / f"rank{rank}.steps.csv", "w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(STEP_COLUMNS)
        for number in range(1, settings["epochs"] + 1):
            wall = time.perf_counter()
            epoch = _epoch(number, step, data, request, strategy, rank, ranks, writer)
            if settings["validate"]:
                epoch |= _validate(predict, data, strategy, rank, ranks)
            board(epoch)
            epoch["epoch_wall_seconds"] = time.perf_counter() - wall
            epochs.append(epoch)
            log.info(
                "epoch %d/%d: loss %.4f, accuracy %.4f, %.2f s",
                number,
                settings["epochs"],
                epoch["loss"],
                epoch["accuracy"],
                epoch["train_seconds"],
            )
            if stopper.stops(epoch["loss"]):
                log.info("early stopping: the loss has not fallen for %d epochs", stopper.patience)
                break

    with clock.time("evaluation"):
        rows = evaluation_rows(len(data.test), rank, ranks)
        predictions = _predict(predict, data.test[rows])
    np.save(folder / f"rank{rank}.predictions.npy", predictions)
    with clock.time("save"):
        if rank == 0 and settings["save_model"]:
            model.save(folder / models.FILES["gradient"])
    return {
        "epochs": epochs,
        "stopped_early": len(epochs) < settings["epochs"] and not request["max_steps"],
        "seconds": clock.seconds,
        "evaluated": [rows.start, rows.stop],
        "weights_sha256": digest(model.get_weights()),
        "parameters": model.count_params(),
        "optimizer": type(optimizer).__name__,
        "train_rows": len(data.train),
    }


def _train_step(model, optimizer, row_losses: Callable, strategy: Strategy) -> Callable:
    """Return the compiled step: (codes, labels, weights, global rows) -> (sum of losses, right)."""
    signature = (
        tf.TensorSpec((None, model.input_shape[1]), tf.uint8),
        tf.TensorSpec((None,), tf.int64),
        tf.TensorSpec((None,), tf.float32),
        tf.TensorSpec((), tf.float32),
    )

    @tf.function(input_signature=signature)
    def step(codes, labels, weights, global_rows):
        with tf.GradientTape() as tape:
            probabilities = model(codes, training=True)
            loss_sum = tf.reduce_sum(weights * row_losses(labels, probabilities))
            share = loss_sum / global_rows
        gradients = strategy.tape(tape).gradient(share, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        right = tf.cast(tf.equal(tf.argmax(probabilities, axis=1), labels), tf.float32)
        return loss_sum, tf.reduce_sum(weights * right)

    return step


def _gather(data: Data, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes, labels and weights of a rank's rows of a step.

    An empty share becomes one row of weight 0: the rank takes part in the exchange and adds
    nothing, and TensorFlow's convolutions are spared a batch without rows, which they reject.
    """
    if len(rows) == 0:
        return data.train[:1], data.train_labels[:1], np.zeros(1, np.float32)
    return data.train[rows], data.train_labels[rows], np.ones(len(rows), np.float32)


def _predictor(model) -> Callable:
    @tf.function(input_signature=(tf.TensorSpec((None, model.input_shape[1]), tf.uint8),))
    def predict(codes):
        return tf.argmax(model(codes, training=False), axis=1)

    return predict


def _warm_up(step, variables, data: Data, global_batch: int, rank: int, ranks: int) -> None:
    """Trace, compile and connect by two real steps, then put every variable back."""
    saved = [v.numpy() for v in variables]
    order = np.arange(min(global_batch, len(data.train)))
    for _ in range(2):
        for rows, total in batches(order, global_batch, rank, ranks):
            step(*_gather(data, rows), np.float32(total))
    for variable, value in zip(variables, saved, strict=True):
        variable.assign(value)


def _epoch(number, step, data: Data, request, strategy: Strategy, rank, ranks, writer) -> dict:
    """Make one pass over this rank's shard and return the epoch's totals over all ranks.

    `train_seconds` runs from before the first batch is gathered to after the last step.
    """
    rows_in_epoch, batch = len(data.train), request["global_batch"]
    order = epoch_order(rows_in_epoch, request["shuffle_seed"], number)
    steps = steps_per_epoch(rows_in_epoch, batch)
    if request["max_steps"]:
        steps = min(steps, request["max_steps"])
        order = order[: steps * batch]
    records, taken = [], []
    # The ranks begin together: what one of them did before is not the others' training time.
    strategy.total(np.zeros(1))
    said = start = before = time.perf_counter()
    for index, (rows, total) in enumerate(batches(order, batch, rank, ranks), start=1):
        batch_of_rank = _gather(data, rows)
        gathered = time.perf_counter()
        loss_sum, correct = step(*batch_of_rank, np.float32(total))
        loss_sum, correct = float(loss_sum), int(correct)
        after = time.perf_counter()
        records.append(
            (number, index, len(rows), gathered - before, after - gathered, loss_sum, correct)
        )
        if not math.isfinite(loss_sum):
            raise Diverged(f"the loss is {loss_sum} in epoch {number}, step {index}")
        if after - said > PROGRESS_SECONDS:
            said = after
            log.info(
                "epoch %d/%d: step %d/%d, %.0f samples/s",
                number,
                request["training"]["epochs"],
                index,
                steps,
                index * batch / (after - start),
            )
        taken.append(rows)
        before = time.perf_counter()
    train_seconds = before - start
    writer.writerows(records)
    losses, right = sum(r[5] for r in records), sum(r[6] for r in records)
    losses, right = strategy.total(np.array([losses, right], np.float64))
    return {
        "epoch": number,
        "steps": steps,
        "rows": len(order),
        "train_seconds": train_seconds,
        "validation_seconds": None,
        "loss": losses / len(order),
        "accuracy": right / len(order),
        "test_accuracy": None,
        "row_moments": row_moments(np.concatenate(taken)),
    }


def _validate(predict, data: Data, strategy: Strategy, rank: int, ranks: int) -> dict:
    start = time.perf_counter()
    rows = evaluation_rows(len(data.test), rank, ranks)
    right = (_predict(predict, data.test[rows]) == data.test_labels[rows]).sum()
    right = strategy.total(np.array([right], np.float64))[0]
    return {
        "test_accuracy": right / len(data.test),
        "validation_seconds": time.perf_counter() - start,
    }


def _predict(predict: Callable, codes: np.ndarray) -> np.ndarray:
    parts = [predict(block).numpy() for block in models.row_blocks(codes)]
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


class EarlyStopping:
    """Stop when the loss has not fallen by more than `min_delta` for `patience` epochs.

    All ranks see the same global loss, so all of them decide alike.
    """

    def __init__(self, settings: dict | None):
        self.patience = settings["patience"] if settings else math.inf
        self.min_delta = settings["min_delta"] if settings else 0.0
        self._best, self._waited = math.inf, 0

    def stops(self, loss: float) -> bool:
        if loss < self._best - self.min_delta:
            self._best, self._waited = loss, 0
        else:
            self._waited += 1
        return self._waited >= self.patience


def _tensorboard(folder: Path, wanted: bool) -> Callable[[dict], None]:
    if not wanted:
        return lambda epoch: None
    summary = tf.summary.create_file_writer(str(folder))

    def write(epoch: dict) -> None:
        with summary.as_default(step=epoch["epoch"]):
            for name in ("loss", "accuracy", "test_accuracy", "train_seconds"):
                if epoch[name] is not None:
                    tf.summary.scalar(name, epoch[name])
        summary.flush()

    return write
