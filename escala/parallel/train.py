"""The training of one process: warm-up, epochs, evaluation, each timed under its own name."""

from __future__ import annotations

import csv
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

import numpy as np
import tensorflow as tf

from escala.errors import Diverged
from escala.parallel import factors
from escala.parallel.checkpoint import FOLDER, Checkpoint
from escala.parallel.data import STEP_COLUMNS, Clock, Data, digest
from escala.parallel.shards import Shards, balanced_shares, batches, evaluation_rows, row_moments
from escala.parallel.strategies import Strategy
from escala.probes import Probe, Recorder
from escala.workloads import models, workload

log = logging.getLogger("escala")

PROGRESS_SECONDS = 2.0
#: Steps of each size that a rank's speed is the median of.
SPEED_STEPS = 9


def train(
    request: dict, strategy: Strategy, total: int, folder: Path, probe: Probe | None = None
) -> dict:
    """Train and evaluate the ranks of one process, and return what was measured.

    Parameters
    ----------
    request : the run's plan (`escala.measure.plan`).
    strategy : already started.
    total : ranks in all.
    folder : the run's `ranks/` folder; receives step times, predictions and the model.
    probe : of the run, if it is no timing run.

    Raises
    ------
    Diverged : the loss became infinite or not a number.
    """
    settings, clock = request["training"], Clock()
    process, processes = strategy.part
    work = workload(request["workload"])
    with clock.time("loading"):
        data = Data.load(request["data"])
        data.touch()
    slowdown = dict(enumerate(request["knobs"]["slowdown"])).get(process, 1.0)
    with clock.time("build"), strategy.scope():
        # Every process draws its own weights: that they agree afterwards is the broadcast's doing.
        tf.keras.utils.set_random_seed(request["seed"] + process)
        model = work.model(data.train.shape[1], len(request["classes"]), request["knobs"]["stem"])
        optimizer = work.optimizer(request["learning_rate"], request["knobs"]["update"])
        optimizer.build(model.trainable_variables)
        compute = _computing(model, work.row_losses, _apart(model, request, strategy, total))
        compute = _accumulated(compute, request["knobs"]["accumulation"])
        compute = _slowed(compute, slowdown)
        clocks = probe and probe.recorder(
            strategy.place.process, model.trainable_variables, strategy.shows_steps
        )
        step = _train_step(model, optimizer, strategy, compute, strategy.exchange, clocks)
        alone = _train_step(model, optimizer, strategy, compute, _no_exchange)
        predict = _predictor(model)
    variables = [*model.variables, *optimizer.variables]
    checkpoint = Checkpoint(
        folder.parent / FOLDER, settings["checkpoint_epochs"], request["digest"], process
    )
    steps_file, done = folder / f"rank{process}.steps.csv", request["resume_after"]
    shares = np.full(total, 1 / total)
    with clock.time("first_step"), _unchanged(variables):
        _warm_up(step, data, request, strategy, shares)
        if strategy.by_speed and total > 1 and not done:
            shares = _shares_by_speed(alone, data, request, strategy, total)
    with clock.time("first_prediction"):
        predict(data.test[:1])
    epochs: list[dict] = []
    resumed_after: list[int] = []
    with clock.time("checkpoint"):
        if done:
            state = checkpoint.restore(done, variables, steps_file)
            epochs, shares = state["epochs"], np.array(state["shares"])
            resumed_after = [*state["resumed_after"], done]
            log.info("going on after epoch %d", done)
    with clock.time("broadcast"):
        strategy.broadcast(variables)

    stopper = EarlyStopping(settings.get("early_stopping"))
    for epoch in epochs:
        stopper.stops(epoch["loss"])
    first = process == 0
    board = _tensorboard(folder.parent / "tensorboard", settings["tensorboard"] and first)
    with open(steps_file, "a", newline="") as handle:
        writer = csv.writer(handle)
        if not done:
            writer.writerow(STEP_COLUMNS)
        for number in range(done + 1, settings["epochs"] + 1):
            wall = time.perf_counter()
            epoch = _epoch(number, step, data, request, strategy, shares, writer, clocks)
            if settings["validate"]:
                epoch |= _validate(predict, data, strategy)
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
            if checkpoint.due(number):
                handle.flush()
                state = {"epochs": epochs, "shares": shares.tolist()}
                state["resumed_after"] = resumed_after
                with clock.time("checkpoint"):
                    checkpoint.keep(
                        number, variables, state, steps_file, lambda: strategy.total(np.zeros(1))
                    )
                epoch["epoch_wall_seconds"] = time.perf_counter() - wall

    if clocks:
        clocks.write()
    with clock.time("evaluation"):
        rows = evaluation_rows(len(data.test), process, processes)
        predictions = _predict(predict, data.test[rows])
    np.save(folder / f"rank{process}.predictions.npy", predictions)
    with clock.time("save"):
        if first and settings["save_model"]:
            np.savez(folder / models.WEIGHTS, *strategy.weights(model.variables)[0])
    return {
        "epochs": epochs,
        "stopped_early": len(epochs) < settings["epochs"] and not request["max_steps"],
        "resumed_after": resumed_after,
        "seconds": clock.seconds,
        "evaluated": [rows.start, rows.stop],
        "shares": shares.tolist(),
        "weights_sha256": [digest(weights) for weights in strategy.weights(model.variables)],
        "parameters": model.count_params(),
        "optimizer": type(optimizer).__name__,
        "train_rows": len(data.train),
    }


def _no_exchange(gradients, variables) -> list:
    return list(gradients)


def _apart(model, request: dict, strategy: Strategy, ranks: int) -> list[tf.keras.layers.Layer]:
    """Return the layers whose gradients stay factors until they are exchanged."""
    if not (request["knobs"]["factors"] and strategy.gathers):
        return []
    rows = min(request["global_batch"], request["train_rows"])
    return factors.worthwhile(model, rows, ranks)


def _computing(model, row_losses: Callable, apart: Sequence[tf.keras.layers.Layer]) -> Callable:
    """Return what takes a rank's arrays of a step to gradients, sum of losses and number right.

    The gradients of layers `apart` are their factors. What regularisers and layers add to the loss
    (`model.losses`) counts as part of the loss of every row. So the mean over the rows of a step
    holds it once, however many ranks, shares and parts these rows are divided into. As in Keras, a
    regulariser of a layer's output is a mean over the rows that the layer is given at once.
    """

    def compute(codes, labels, weights, divisor):
        with tf.GradientTape() as tape:
            if apart:
                probabilities, seen = factors.forward(model, codes, apart)
            else:
                probabilities, seen = model(codes, training=True), {}
            losses = row_losses(labels, probabilities)
            if of_model := model.losses:
                losses += tf.add_n(of_model)
            loss_sum = tf.reduce_sum(weights * losses)
            share = loss_sum / divisor
        right = tf.cast(tf.equal(tf.argmax(probabilities, axis=1), labels), tf.float32)
        gradients = factors.gradients(tape, share, model.trainable_variables, seen)
        return gradients, loss_sum, tf.reduce_sum(weights * right)

    return compute


def _accumulated(compute: Callable, parts: int) -> Callable:
    """Compute a rank's rows in that many parts, one after the other, and sum what they give.

    Fewer rows than parts are as many parts as rows.
    """
    if parts == 1:
        return compute

    def add_up(codes, labels, weights, divisor):
        rows = tf.shape(codes)[0]
        size = -(-rows // parts)

        def part(start):
            of_part = [array[start : start + size] for array in (codes, labels, weights)]
            gradients, *sums = compute(*of_part, divisor)
            return list(map(factors.dense, gradients)), *sums

        def add(start, *sums):
            # Parts at the same time would take the memory of all of them.
            with tf.control_dependencies(tf.nest.flatten(sums)):
                next_one = tf.identity(start)
            added = tf.nest.map_structure(tf.add, sums, part(next_one))
            return start + size, *added

        _, *sums = tf.while_loop(lambda start, *_: start < rows, add, (size, *part(0)))
        return tuple(sums)

    return add_up


def _slowed(compute: Callable, factor: float) -> Callable:
    """Make what computes tensors take `factor` times as long, as on a slower processor.

    It sleeps: the core is free meanwhile, and nothing that follows is slowed.
    """
    if factor == 1:
        return compute

    def now() -> np.float64:
        # Outside a graph TensorFlow makes a float32 of a plain float.
        return np.float64(time.perf_counter())

    def sleep(started: float) -> float:
        seconds = (factor - 1) * (now() - started)
        time.sleep(seconds)
        return seconds

    def slow(*arguments):
        started = tf.numpy_function(now, [], tf.float64)
        with tf.control_dependencies([started]):
            arguments = [tf.identity(argument) for argument in arguments]
        results = compute(*arguments)
        with tf.control_dependencies(tf.nest.flatten(results, expand_composites=True)):
            slept = tf.numpy_function(sleep, [started], tf.float64)
        with tf.control_dependencies([slept]):
            return tf.nest.map_structure(tf.identity, results, expand_composites=True)

    return slow


def _train_step(
    model,
    optimizer,
    strategy: Strategy,
    compute: Callable,
    exchange: Callable,
    clocks: Recorder | None = None,
) -> Callable:
    """Return the compiled step: (codes, labels, weights, divisor) of each rank -> losses, right."""
    signature = (
        tf.TensorSpec((None, model.input_shape[1]), tf.uint8),
        tf.TensorSpec((None,), tf.int64),
        tf.TensorSpec((None,), tf.float32),
        tf.TensorSpec((), tf.float32),
    )

    def step(codes, labels, weights, divisor):
        gradients, loss_sum, right = compute(codes, labels, weights, divisor)
        apply(exchange(gradients, model.trainable_variables))
        return loss_sum, right

    def apply(gradients):
        gradients = [g.product() if isinstance(g, factors.Factors) else g for g in gradients]
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return model.trainable_variables

    if clocks and strategy.shows_steps:
        step = clocks.step(
            compute,
            strategy.local,
            lambda gradients: exchange(gradients, model.trainable_variables),
            apply,
        )
    return strategy.compiled(step, signature)


def _gather(data: Data, rows: np.ndarray, divisor: float) -> tuple:
    """Return codes, labels and weights of a rank's rows of a step, and what its loss is divided by.

    An empty share becomes one row of weight 0: the rank takes part in the exchange and adds
    nothing, and TensorFlow's convolutions are spared a batch without rows, which they reject.
    """
    if len(rows) == 0:
        return data.train[:1], data.train_labels[:1], np.zeros(1, np.float32), np.float32(divisor)
    return (
        data.train[rows],
        data.train_labels[rows],
        np.ones(len(rows), np.float32),
        np.float32(divisor),
    )


def _predictor(model) -> Callable:
    @tf.function(input_signature=(tf.TensorSpec((None, model.input_shape[1]), tf.uint8),))
    def predict(codes):
        return tf.argmax(model(codes, training=False), axis=1)

    return predict


@contextmanager
def _unchanged(variables) -> Iterator[None]:
    """Put every variable back to the value it had before."""
    saved = [v.numpy() for v in variables]
    yield
    for variable, value in zip(variables, saved, strict=True):
        variable.assign(value)


def _warm_up(step, data: Data, request: dict, strategy: Strategy, shares: np.ndarray) -> None:
    """Trace, compile and connect by real steps, of a whole batch and of a last one."""
    rows, ranks = min(request["global_batch"], len(data.train)), strategy.drives
    for size in (rows, max(1, rows // 2), rows):
        for of_rank in batches(np.arange(size), size, shares):
            step([_gather(data, of_rank[rank], size) for rank in ranks])
    strategy.join()


def _shares_by_speed(alone, data: Data, request: dict, strategy: Strategy, ranks: int):
    """Return the shares of a batch that every rank does in the same time, measured before training.

    All ranks work at the same time, each by itself, so that what they take from each other counts.
    """
    batch = min(request["global_batch"], len(data.train))
    sizes = (max(1, batch // (2 * ranks)), batch)
    seconds = np.zeros((ranks, len(sizes)))
    for column, size in enumerate(sizes):
        rows = _gather(data, np.arange(size), size)
        alone([rows])
        strategy.total(np.zeros(1))
        times = []
        for _ in range(SPEED_STEPS):
            start = time.perf_counter()
            alone([rows])
            times.append(time.perf_counter() - start)
        seconds[strategy.place.process, column] = float(np.median(times))
    shared = strategy.total(seconds.ravel()).reshape(seconds.shape)
    shares = balanced_shares(sizes, shared, batch)
    log.info("shares by speed: %s", ", ".join(f"{share:.3f}" for share in shares))
    return shares


def _epoch(
    number,
    step,
    data: Data,
    request,
    strategy: Strategy,
    shares: np.ndarray,
    writer,
    clocks: Recorder | None,
) -> dict:
    """Make one pass over the shards of this process and return the epoch's totals over all ranks.

    `train_seconds` runs from before the first batch is gathered to after the last step.
    """
    rows_in_epoch, batch, ranks = len(data.train), request["global_batch"], strategy.drives
    shards = Shards(
        request["shuffle_seed"], rows_in_epoch, batch, shares, request["knobs"]["shard"]
    )
    steps = shards.steps(request["max_steps"])
    records, taken = [], []
    # The ranks begin together: what one of them did before is not the others' training time.
    strategy.total(np.zeros(1))
    began = time.monotonic()
    said = start = before = time.perf_counter()
    for index, of_rank in enumerate(islice(shards.of_epoch(number), steps), start=1):
        mine = [of_rank[rank] for rank in ranks]
        divisor = _divisors(of_rank, request["knobs"]["weighting"])
        of_process = [_gather(data, of_rank[rank], divisor[rank]) for rank in ranks]
        gathered = time.perf_counter()
        loss_sum, correct = step(of_process)
        after = time.perf_counter()
        rows = sum(map(len, mine))
        records.append(
            (number, index, rows, gathered - before, after - gathered, loss_sum, correct)
        )
        if clocks:
            clocks.note(number, index, before, gathered, after)
        if after - said > PROGRESS_SECONDS:
            said = after
            _require_finite(records)
            log.info(
                "epoch %d/%d: step %d/%d, %.0f samples/s",
                number,
                request["training"]["epochs"],
                index,
                steps,
                index * batch / (after - start),
            )
        taken += mine
        before = time.perf_counter()
    strategy.join()
    train_seconds = time.perf_counter() - start
    records = [(*record[:5], float(record[5]), int(float(record[6]))) for record in records]
    _require_finite(records)
    writer.writerows(records)
    losses, right = sum(r[5] for r in records), sum(r[6] for r in records)
    trained = sum(map(len, taken))
    losses, right, rows = strategy.total(np.array([losses, right, trained], np.float64))
    return {
        "epoch": number,
        "steps": steps,
        "rows": int(rows),
        "began": began,
        "train_seconds": train_seconds,
        "validation_seconds": None,
        "loss": losses / rows,
        "accuracy": right / rows,
        "test_accuracy": None,
        "row_moments": row_moments(np.concatenate(taken)),
    }


def _require_finite(records: list[tuple]) -> None:
    """Refuse a loss that is no number; it stays none, so that the last one tells."""
    if math.isfinite(float(records[-1][5])):
        return
    epoch, step, *_ = next(record for record in records if not math.isfinite(float(record[5])))
    raise Diverged(f"the loss is not finite in epoch {epoch}, step {step}")


def _divisors(of_rank: list[np.ndarray], weighting: str) -> list[float]:
    """Return what each rank divides the sum of its losses by, so that the sum over ranks is a mean.

    By `rows` every row counts the same. By `ranks` every rank does, however few its rows are: what
    averaging the ranks' own means comes to. The mean of a rank without rows is 0.
    """
    if weighting == "rows":
        return [sum(map(len, of_rank))] * len(of_rank)
    return [max(1, len(rows)) * len(of_rank) for rows in of_rank]


def _validate(predict, data: Data, strategy: Strategy) -> dict:
    start = time.perf_counter()
    rows = evaluation_rows(len(data.test), *strategy.part)
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
