"""The training of one process: warm-up, epochs and evaluation, and the time of each.

The warm-up makes steps, so that code is compiled, and measures the speed of a rank.
"""

from __future__ import annotations

import csv
import gc
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from escala import engines
from escala.core.load import Load
from escala.core.proc import Usage
from escala.data import reader
from escala.data.base import Arrays
from escala.engines.base import Engine
from escala.probes import Probe
from escala.strategies.base import Place
from escala.strategies.knobs import model_knobs, reads
from escala.training.checkpoint import FOLDER, Checkpoint
from escala.training.epoch import predict_rows, train_epoch, validate
from escala.training.process import STEP_COLUMNS, Clock, digest, startup_seconds
from escala.training.shards import (
    balance_fractions,
    batches,
    evaluation_rows,
    gather,
    gather_steps,
)
from escala.workloads import models, scores_module, workload

log = logging.getLogger("escala")

#: Keys of an epoch's record that TensorBoard shows.
BOARD = ("loss", "accuracy", "validation_loss", "validation_accuracy", "train_seconds")


def run(plan: dict, folder: Path, place: Place, probe: Probe | None, load: Load) -> dict:
    """Train by the engine of a strategy, and return the measurements of this process."""
    # Importing a framework allocates millions of objects, which live as long as the process.
    # Repeated searches of these objects for cycles would take a fifth of the import.
    gc.disable()
    engine = engines.create_engine(plan, place)
    gc.freeze()
    gc.enable()
    ranks, total = engine.start()
    if (ranks, total) != (place.ranks, plan["ranks"]):
        raise RuntimeError(
            f"requested ranks {place.ranks} of {plan['ranks']}, obtained {ranks} of {total}"
        )
    startup = startup_seconds(place.process, place.processes)
    measured = {}
    if not engine.group.serve(folder):
        measured = train(plan, engine, folder, probe, load)
        measured["seconds"]["startup"] = startup
    engine.group.stop()
    return measured | {"ranks": total} | engine.resources()


def train(
    plan: Mapping[str, Any],
    engine: Engine,
    folder: Path,
    probe: Probe | None = None,
    load: Load | None = None,
) -> dict:
    """Train and evaluate the ranks of one process, and return the measurements.

    Parameters
    ----------
    plan : the run's plan (`escala.record.plan`).
    engine : the engine, already started.
    folder : the run's `ranks/` folder; receives step times, predictions and the model.
    probe : the probe of the run; None for a timing run.
    load : measures the load of the machine during the epochs.

    Raises
    ------
    Diverged : the loss is infinite or not a number.
    Unavailable : the strategy or a knob does not allow something that the model needs.
    InputError : the workload lacks a function for its dataset, or has an ignored part.
    """
    training = _Training(plan, engine, folder, load or Load(None))
    training.build(probe)
    training.warm_up()
    training.resume()
    if probe and probe.measure:
        training.measure(probe)
    training.train_epochs()
    return training.evaluate()


class _Training:
    """The training of one process. `train` calls the methods in the order of the class."""

    def __init__(self, plan: Mapping[str, Any], engine: Engine, folder: Path, load: Load):
        self._plan, self._engine, self._folder, self._load = plan, engine, folder, load
        self._settings, self._clock = plan["training"], Clock()
        self._process, self._processes = engine.place.process, engine.place.processes
        self._divided = (
            reads(plan["strategy"], "evaluation") and plan["knobs"]["evaluation"] == "divided"
        )
        takes_fractions = reads(plan["strategy"], "fractions")
        stated = plan["knobs"]["fractions"] if takes_fractions else None
        shares = np.array(stated or [1] * plan["ranks"])
        self._fractions = shares / shares.sum()
        self._measures_fractions = takes_fractions and not stated
        self._steps_file = folder / f"rank{self._process}.steps.csv"
        self._checkpoint = Checkpoint(
            folder.parent / FOLDER,
            self._settings["checkpoint_epochs"],
            plan["digest"],
            self._process,
        )
        self._stopper = EarlyStopping(self._settings.get("early_stopping"))
        self._epochs: list[dict] = []
        self._resumed_after: list[int] = []
        self._work = workload(plan["workload"], engines.engine_name(plan["strategy"]))
        self._scores = scores_module(plan["workload"])
        with self._clock.time("loading"):
            self._data = reader(plan["data"])
            models.require_functions(self._work, self._data.description, self._scores)
            self._data.touch()

    def build(self, probe: Probe | None) -> None:
        """Build the model."""
        plan = self._plan
        with self._clock.time("build"):
            knobs = model_knobs(plan["knobs"], plan["workload"])
            self._engine.build(self._work, self._data, knobs, probe)

    def warm_up(self) -> None:
        """Make uncounted steps, measure the speed of ranks, and predict a row."""
        plan = self._plan
        self._make_steps()
        if self._measures_fractions and plan["ranks"] > 1 and not plan["resume_after"]:
            with self._clock.time("first_step"), self._engine.preserve():
                self._fractions = fractions_by_speed(
                    self._engine, self._data, plan["step_rows"], plan["ranks"]
                )
            self._make_steps()
        with self._clock.time("first_prediction"):
            predict_rows(self._engine, self._data, "test", slice(0, 1))

    def _make_steps(self) -> None:
        """Make steps of all sizes of an epoch, because an engine may compile for each size."""
        batch, rows = self._plan["step_rows"], self._plan["train_rows"]
        with self._clock.time("first_step"), self._engine.preserve():
            warm_up(self._engine, self._data, batch, self._fractions, rows)

    def resume(self) -> None:
        """Begin with the weights of rank 0, or continue from the checkpoint that the plan names."""
        done = self._plan["resume_after"]
        with self._clock.time("checkpoint"):
            if done:
                values, state = self._checkpoint.restore(done, self._steps_file)
                self._engine.restore(values)
                self._epochs, self._fractions = state["epochs"], np.array(state["fractions"])
                self._resumed_after = [*state["resumed_after"], done]
                self._stopper.resume(self._epochs, lambda: self._checkpoint.best(done))
                log.info("going on after epoch %d", done)
        with self._clock.time("broadcast"):
            self._engine.broadcast()
        if done and self._measures_fractions:
            self._make_steps()

    def measure(self, probe: Probe) -> None:
        """Let a probe measure by uncounted steps."""
        batch = self._plan["step_rows"]
        [step] = batches(np.arange(batch), batch, self._fractions)
        gather = partial(gather_steps, self._data, self._plan["weighting"])
        with self._clock.time("build"), self._engine.preserve():
            probe.measure(self._engine, step, gather)

    def train_epochs(self) -> None:
        """Train until the last epoch, or until early stopping."""
        done, last = self._plan["resume_after"], self._settings["epochs"]
        board = None
        if self._settings["tensorboard"] and self._process == 0:
            board = self._engine.board(self._folder.parent / "tensorboard")
        with open(self._steps_file, "a", newline="", encoding="utf-8") as handle:
            writer = csv.writer(handle)
            if not done:
                writer.writerow(STEP_COLUMNS)
            for number in range(done + 1, last + 1):
                began = time.perf_counter()
                epoch = self._train_epoch(number, writer)
                if board:
                    numbers = {name: epoch[name] for name in BOARD} | epoch["scores"]
                    numbers["learning_rate"] = self._plan["learning_rate"]
                    numbers["step_seconds"] = epoch["train_seconds"] / epoch["steps"]
                    board(number, {n: value for n, value in numbers.items() if value is not None})
                epoch["epoch_wall_seconds"] = time.perf_counter() - began
                self._epochs.append(epoch)
                log.info(
                    "epoch %d/%d: loss %.4f, accuracy %.4f, %.2f s",
                    *(number, last, epoch["loss"], epoch["accuracy"], epoch["train_seconds"]),
                )
                if self._stopper.see(epoch, lambda: self._engine.weights()[0]):
                    patience = self._stopper.patience
                    log.info("early stopping: the loss has not fallen for %d epochs", patience)
                    break
                if self._checkpoint.is_due(number):
                    handle.flush()
                    self._keep(number)
                    epoch["epoch_wall_seconds"] = time.perf_counter() - began

    def _train_epoch(self, number: int, writer: Any) -> dict:
        """Train an epoch, make the ranks equal, and validate."""
        engine, data = self._engine, self._data
        engine.seed(self._plan["seed"], self._process, number)
        epoch, rows_of_ranks = train_epoch(
            number, engine, data, self._plan, self._fractions, writer, self._load
        )
        with self._clock.time("averaging"):
            engine.end_epoch(rows_of_ranks)
        if side := self._plan["validated_on"]:
            epoch |= validate(engine, data, side, self._scores, self._divided)
        return epoch

    def _keep(self, number: int) -> None:
        """Keep a checkpoint after an epoch."""
        state = {
            "epochs": self._epochs,
            "fractions": self._fractions.tolist(),
            "resumed_after": self._resumed_after,
        }
        with self._clock.time("checkpoint"):
            self._checkpoint.keep(
                number,
                self._engine.values(),
                self._stopper.best_weights,
                state,
                self._steps_file,
                self._engine.group.meet,
            )

    def evaluate(self) -> dict:
        """Evaluate the test rows, keep predictions and model, and return the measurements."""
        engine, best = self._engine, self._stopper.best_weights
        if best is not None:
            engine.set_weights(best)
        if engine.recorder:
            engine.recorder.write()
        with self._clock.time("evaluation"):
            test_rows = self._data.rows("test")
            rows = evaluation_rows(test_rows, self._process, self._processes, self._divided)
            predictions, _ = predict_rows(engine, self._data, "test", rows)
        np.save(self._folder / f"rank{self._process}.predictions.npy", predictions)
        used = Usage(*map(sum, zip(*(epoch["usage"] for epoch in self._epochs), strict=True)))
        with self._clock.time("save"):
            # All processes must call this, because a process may hold only a part of the weights.
            weights = engine.weights()
            if self._process == 0 and self._settings["save_model"]:
                np.savez(self._folder / models.WEIGHTS, *weights[0])
        return {
            "epochs": self._epochs,
            "stopped_early": len(self._epochs) < self._settings["epochs"],
            "best_epoch": None if best is None else self._stopper.best_epoch,
            "resumed_after": self._resumed_after,
            "seconds": self._clock.seconds,
            "evaluated": [rows.start, rows.stop],
            "fractions": self._fractions.tolist(),
            "weights_sha256": [*map(digest, weights)],
            "usage": used._asdict() | {"steps": sum(epoch["steps"] for epoch in self._epochs)},
        } | engine.about()


#: Steps for each of two sizes. Their median times give the speed of a rank.
SPEED_STEPS = 9


def warm_up(engine: Engine, data: Arrays, batch: int, fractions: np.ndarray, rows: int) -> None:
    """Make steps of a full batch and of the last batch of an epoch, so that all code is compiled.

    If the last batch is full, half a batch replaces it.

    Parameters
    ----------
    rows : rows of an epoch, over all ranks.
    """
    last = rows % batch or max(1, batch // 2)
    for size in (batch, last, batch):
        for step in batches(np.arange(size), size, fractions):
            engine.warm_up(step, partial(gather_steps, data, "rows"))


def fractions_by_speed(engine: Engine, data: Arrays, batch: int, ranks: int) -> np.ndarray:
    """Measure, and return fractions of a batch for which every rank takes equal time.

    All ranks work at the same time, without exchange, so that ranks slow each other as in a step.
    """
    sizes = (max(1, batch // (2 * ranks)), batch)
    seconds = np.zeros((ranks, len(sizes)))
    for column, size in enumerate(sizes):
        rows = gather(data, np.arange(size), size)
        engine.step_alone(rows)
        engine.group.meet()
        times = []
        for _ in range(SPEED_STEPS):
            start = time.perf_counter()
            engine.step_alone(rows)
            times.append(time.perf_counter() - start)
        seconds[engine.place.process, column] = float(np.median(times))
    # Each rank has filled its row, and other rows are 0, so the sum is the whole table.
    of_all = engine.group.total(seconds.ravel()).reshape(seconds.shape)
    fractions = balance_fractions(sizes, of_all, batch)
    log.info("fractions by speed: %s", ", ".join(f"{fraction:.3f}" for fraction in fractions))
    return fractions


#: By each value of `monitor`, the key of the loss in an epoch's record.
MONITORED = {"training": "loss", "validation": "validation_loss"}


class EarlyStopping:
    """Stop when a loss has not fallen by more than `min_delta` for `patience` epochs.

    The loss is over all ranks, so all ranks make the same decision. The `settings` are `monitor`,
    `patience`, `min_delta` and `restore_best`. With None training never stops early. `best_epoch`
    is the last epoch in which the loss fell by more than `min_delta`; it is 0 before the first
    epoch. `best_weights` are the weights after `best_epoch` if `restore_best` is set, otherwise
    None.
    """

    def __init__(self, settings: Mapping[str, Any] | None):
        self.patience = settings["patience"] if settings else math.inf
        self._monitored = MONITORED[settings["monitor"]] if settings else "loss"
        self._min_delta = settings["min_delta"] if settings else 0.0
        self._restores = settings["restore_best"] if settings else False
        self._best, self._waited = math.inf, 0
        self.best_epoch = 0
        self.best_weights: list[np.ndarray] | None = None

    def see(self, epoch: Mapping[str, Any], weights: Callable[[], list[np.ndarray]]) -> bool:
        """Record the number and the losses of an epoch; return whether training ends after it.

        `weights` returns the weights after the epoch.
        """
        loss = epoch[self._monitored]
        if loss < self._best - self._min_delta:
            self._best, self._waited, self.best_epoch = loss, 0, epoch["epoch"]
            self.best_weights = weights() if self._restores else None
        else:
            self._waited += 1
        return self._waited >= self.patience

    def resume(
        self, epochs: Iterable[Mapping[str, Any]], best: Callable[[], list[np.ndarray]]
    ) -> None:
        """Record the epochs before the checkpoint from which a run resumes.

        `best` returns the weights after the best epoch. It is called only if weights may be
        restored.
        """
        for epoch in epochs:
            self.see(epoch, list)
        if self.best_weights is not None:
            self.best_weights = best()
