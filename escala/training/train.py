"""The training of one process: warm-up, epochs, evaluation, each timed under its own name."""

from __future__ import annotations

import csv
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from escala.core.load import Load
from escala.data import reader
from escala.data.base import output_shape
from escala.probes import Probe
from escala.strategies import Strategy
from escala.strategies.costs import ALLREDUCE
from escala.strategies.knobs import of_model
from escala.training import memory, replicas
from escala.training import step as steps
from escala.training.checkpoint import FOLDER, Checkpoint
from escala.training.contract import losses_of_rows
from escala.training.data import STEP_COLUMNS, Clock, digest
from escala.training.epoch import train_epoch
from escala.training.evaluate import evaluated, evaluator, validate
from escala.training.shards import evaluation_rows
from escala.training.state import State
from escala.training.stopping import EarlyStopping
from escala.training.warmup import shares_by_speed, stated_shares, unchanged, warm_up
from escala.workloads import building, models, offers, scores_module, workload
from escala.workloads.graphs import function_of
from escala.workloads.normalisation import synchronised

log = logging.getLogger("escala")

#: Fields of an epoch that TensorBoard shows.
BOARD = ("loss", "accuracy", "validation_loss", "validation_accuracy", "train_seconds")


def train(
    request: dict,
    strategy: Strategy,
    total: int,
    folder: Path,
    probe: Probe | None = None,
    load: Load | None = None,
) -> dict:
    """Train and evaluate the ranks of one process, and return what was measured.

    Parameters
    ----------
    request : the run's plan (`escala.record.plan`).
    strategy : already started.
    total : ranks in all.
    folder : the run's `ranks/` folder; receives step times, predictions and the model.
    probe : of the run, if it is no timing run.
    load : reads what the machine does during the steps.

    Raises
    ------
    Diverged : the loss became infinite or not a number.
    Unavailable : the model normalises over all ranks, and each computes its rows in parts.
    MemoryError : the ranks of this node need more memory than it had available.
    InputError : the workload lacks what its dataset needs, or has a part that would be ignored.
    """
    settings, clock, load = request["training"], Clock(), load or Load(None)
    process, processes = strategy.part
    work, knobs = workload(request["workload"]), of_model(request["knobs"], request["workload"])
    scores = scores_module(request["workload"])
    with clock.time("loading"):
        data = reader(request["data"])
        offers.require(work, data.description, scores)
        data.touch()
    divided = request["knobs"]["evaluation"] == "divided"
    slowdown = dict(enumerate(request["knobs"]["slowdown"])).get(process, 1.0)
    with clock.time("build"), strategy.scope():
        # Every process draws its own weights; the broadcast makes them equal.
        tf.keras.utils.set_random_seed(request["seed"] + process)
        replicas.use_generators()
        model = building.build(work, data.inputs, output_shape(data.description), settings, knobs)
        optimizer = work.optimizer(settings, request["learning_rate"], knobs)
        building.refuse_ignored(work, model, optimizer)
        replicas.require_whole_steps(model, request["knobs"]["accumulation"])
        input_of = getattr(work, "input_of", None)
        exchanges = steps.exchanges(model, optimizer, request, strategy, total, input_of)
        shared = steps.shared_kernels(exchanges, strategy, request["global_batch"])
        state = State(
            model,
            optimizer,
            shared,
            strategy,
            # Otherwise ranks may gather the rows of a gradient.
            summed=strategy.knobs.get("sparse_as_dense", False),
            factored=[layer.kernel for layer, each in exchanges.items() if each != ALLREDUCE],
        )
        memory.require(model, optimizer, state, request, strategy)
        row_losses = losses_of_rows(work, settings)
        correct = function_of(work, "correct", steps.most_probable_is_right)
        methods = steps.methods(
            model, exchanges, strategy, request["knobs"]["input_gradient"], input_of
        )
        own = replicas.own_variables(model)

        def computing(methods: Mapping, summed: Callable) -> Callable:
            compute = steps.computing(model, row_losses, correct, methods, own, summed)
            compute = steps.accumulated(compute, request["knobs"]["accumulation"])
            return steps.slowed(compute, slowdown)

        by_itself = computing({}, steps.own_sum)
        compute = steps.with_shared(state, computing(methods, strategy.summed))
        recorder = probe and probe.recorder(
            strategy.place.process,
            model.trainable_variables,
            strategy.can_time_inside_step,
            independent=not synchronised(model),
        )
        # A probe looks at single steps.
        at_once = 1 if probe else request["knobs"]["steps_per_call"]
        make = {
            count: steps.train_step(
                state, strategy, data, compute, strategy.exchange, recorder, count
            )
            for count in {1, at_once}
        }
        alone = steps.train_step(state, strategy, data, by_itself, steps.no_exchange)
        evaluate = evaluator(model, work, row_losses, data, settings)
    checkpoint = Checkpoint(
        folder.parent / FOLDER, settings["checkpoint_epochs"], request["digest"], process
    )
    steps_file, done = folder / f"rank{process}.steps.csv", request["resume_after"]
    shares = np.full(total, 1 / total)
    with clock.time("first_step"), unchanged(state.changed):
        warm_up(make, data, request, strategy, shares)
        if strategy.by_speed and total > 1 and not done:
            shares = stated_shares(request)
            if shares is None:
                shares = shares_by_speed(alone, data, request, strategy, total)
    with clock.time("first_prediction"):
        evaluated(evaluate, data, "test", slice(0, 1))
    epochs: list[dict] = []
    resumed_after: list[int] = []
    stopper = EarlyStopping(settings.get("early_stopping"))
    with clock.time("checkpoint"):
        if done:
            values, kept = checkpoint.restore(done, steps_file)
            state.restore(values)
            epochs, shares = kept["epochs"], np.array(kept["shares"])
            resumed_after = [*kept["resumed_after"], done]
            stopper.resume(epochs, lambda: checkpoint.best(done))
            log.info("going on after epoch %d", done)
    with clock.time("broadcast"):
        state.broadcast()

    first = process == 0
    rate = request["learning_rate"]
    board = _tensorboard(folder.parent / "tensorboard", settings["tensorboard"] and first, rate)
    with open(steps_file, "a", newline="") as handle:
        writer = csv.writer(handle)
        if not done:
            writer.writerow(STEP_COLUMNS)
        for number in range(done + 1, settings["epochs"] + 1):
            wall = time.perf_counter()
            replicas.seed_random_layers(model, request["seed"], process, number)
            epoch, trained = train_epoch(
                number, make, data, request, strategy, shares, writer, recorder, load
            )
            with clock.time("averaging"):
                state.wait()
                replicas.average(own, trained, strategy)
            if request["validated_on"]:
                epoch |= validate(
                    evaluate, data, request["validated_on"], strategy, scores, divided
                )
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
            if stopper.see(epoch, lambda: strategy.weights(model.variables)[0]):
                log.info("early stopping: the loss has not fallen for %d epochs", stopper.patience)
                break
            if checkpoint.due(number):
                handle.flush()
                of_process = {"epochs": epochs, "shares": shares.tolist()}
                of_process["resumed_after"] = resumed_after
                with clock.time("checkpoint"):
                    checkpoint.keep(
                        number,
                        state.values(),
                        stopper.best_weights,
                        of_process,
                        steps_file,
                        lambda: strategy.total(np.zeros(1)),
                    )
                epoch["epoch_wall_seconds"] = time.perf_counter() - wall

    restored = stopper.best_weights is not None
    if restored:
        for variable, value in zip(model.variables, stopper.best_weights, strict=True):
            variable.assign(value)
    if recorder:
        recorder.write()
    with clock.time("evaluation"):
        rows = evaluation_rows(data.rows("test"), process, processes, divided)
        predictions, _ = evaluated(evaluate, data, "test", rows)
    np.save(folder / f"rank{process}.predictions.npy", predictions)
    with clock.time("save"):
        if first and settings["save_model"]:
            np.savez(folder / models.WEIGHTS, *strategy.weights(model.variables)[0])
    return {
        "epochs": epochs,
        "stopped_early": len(epochs) < settings["epochs"],
        "best_epoch": stopper.best_epoch if restored else None,
        "resumed_after": resumed_after,
        "seconds": clock.seconds,
        "evaluated": [rows.start, rows.stop],
        "shares": shares.tolist(),
        "weights_sha256": [digest(weights) for weights in strategy.weights(model.variables)],
        "parameters": model.count_params(),
        "optimizer": type(optimizer).__name__,
        "dense_exchange": {layer.name: exchange for layer, exchange in exchanges.items()},
        "train_rows": data.rows("train"),
    }


def _tensorboard(folder: Path, wanted: bool, learning_rate: float) -> Callable[[dict], None]:
    """Return the function that writes an epoch for TensorBoard, if it is wanted."""
    if not wanted:
        return lambda epoch: None
    summary = tf.summary.create_file_writer(str(folder))

    def write(epoch: dict) -> None:
        with summary.as_default(step=epoch["epoch"]):
            shown = {name: epoch[name] for name in BOARD} | epoch["scores"]
            shown["learning_rate"] = learning_rate
            shown["step_seconds"] = epoch["train_seconds"] / epoch["steps"]
            for name, value in shown.items():
                if value is not None:
                    tf.summary.scalar(name, value)
        summary.flush()

    return write
