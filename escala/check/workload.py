"""Check a workload of a user, in its folder, against the contract of `escala.workloads`.

An error in the workload's own code is an answer too, with its file and line.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from escala.check import network
from escala.check.network import BATCH, PRECONDITIONS, ROWS_TOLERANCE, require
from escala.check.rows import DATASET, copy_rows, draw_rows
from escala.core.engines import DEFAULT, ENGINES
from escala.core.errors import Answer, InputError, Refused, answer_of
from escala.core.files import read_json
from escala.data import base, reader
from escala.engines import engine_name, environments
from escala.experiment import folders
from escala.experiment.schema import workload_settings
from escala.predict.model import load
from escala.record.plan import make_plan, split_description
from escala.record.run import measure
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES
from escala.training.process import Plan, not_finite
from escala.workloads import WORKLOADS, models, scores_module, workload

#: The name of the checked workload, whatever the name of its folder.
NAME = "checked"
EPOCHS = 2
TIME_LIMIT_SECONDS = 300.0
#: The largest relative difference between the losses of two ranks and of one, after a few steps.
RANKS_TOLERANCE = 3e-3


@dataclass(frozen=True)
class Subject:
    """The workload that is checked, and its rows.

    Attributes
    ----------
    settings : the settings of the workload in an experiment, with every default filled in.
    split : the folder of a split of a few rows.
    scratch : the folder of the runs.
    engine : the engine that trains; None for a fit.
    facts : values that the check of the network reports besides its answers. `rows_are_independent`
        is whether the loss of a row in training depends on this row only. `row_scores` are the
        names of the scores that the function `row_scores` gives.
    """

    settings: dict
    split: Path
    scratch: Path
    engine: str | None
    facts: dict[str, Any] = field(
        default_factory=lambda: {"rows_are_independent": True, "row_scores": []}
    )

    @cached_property
    def module(self) -> ModuleType:
        return workload(NAME)

    @cached_property
    def arrays(self) -> base.Arrays:
        return reader(self.split)

    @cached_property
    def output_shape(self) -> tuple[int, ...]:
        """The shape of the output for one row."""
        return base.output_shape(self.arrays.description)

    @property
    def plan(self) -> Plan:
        """The plan of one process on a processor."""
        request = self.request(self.alone, "1x1") | {"knobs": {"device": "cpu"}}
        return make_plan(request, self.arrays.description, self.split)

    @property
    def alone(self) -> str:
        """The strategy of one process."""
        return ENGINES[self.engine or DEFAULT].one_process

    @property
    def together(self) -> str:
        """The first strategy by which several processes of the engine sum their gradients."""
        return next(
            name
            for name, strategy in STRATEGIES.items()
            if engine_name(name) == self.engine and strategy.library
        )

    def network_answers(self) -> Iterator[Answer]:
        """Yield the answers of `escala.check.network`, and keep the `facts`.

        Raises
        ------
        Unavailable : the environment of the engine could not be made.
        """
        python = environments.provide(self.engine)
        done = subprocess.run(
            [python, "-m", network.__name__],
            input=json.dumps(self.plan),
            capture_output=True,
            text=True,
            errors="replace",
            env=environments.variables(python, os.environ),
        )
        for line in map(json.loads, done.stdout.splitlines()):
            if "able" in line:
                yield Answer(**line)
            else:
                self.facts.update(line)
        if done.returncode:
            last = "".join(done.stderr.strip().splitlines()[-1:])
            reason = f"its process ended with exit code {done.returncode}: {last}"
            yield Answer("network", False, reason, "correct the cause of this error")

    def request(self, strategy: str, layout: str) -> dict:
        """Return the request of a run, as an experiment makes it."""
        return {
            "experiment": "check", "dataset": DATASET, "workload": NAME, "strategy": strategy,
            "layout": Layout.parse(layout), "variant": "plain", "network": "native", "repeat": 1,
            "series": None,
            "instrument": None, "training": self.settings, "knobs": {},
            "link": {"interface": None, "rate": None}, "launcher": "auto", "oversubscribe": True,
            "max_steps": None, "probe_settings": None,
        }  # fmt: skip

    def run(self, strategy: str, layout: str) -> dict:
        """Run the workload once, and return the `run.json`; `Refused` if it did not end ok."""
        output = self.scratch / strategy / "run.json"
        outcome = measure(self.request(strategy, layout), self.split, output, TIME_LIMIT_SECONDS)
        if outcome.status != "ok":
            reason = f"{strategy} {layout} ended as {outcome.status}: {outcome.reason}"
            raise Refused(reason, "fix the error above")
        return read_json(output)

    @cached_property
    def predictions(self) -> np.ndarray:
        """The predictions of one rank's run for the test rows; `Refused` if it did not end ok."""
        folder = self.scratch / self.alone
        if not (folder / "run.json").exists():
            self.run(self.alone, "1x1")
        elif read_json(folder / "run.json")["status"] != "ok":
            raise Refused(
                "the run on one rank kept no predictions",
                "correct the cause of its error, see above",
            )
        return np.load(folder / "predictions.npy", allow_pickle=False)


def subject(
    folder: Path,
    scratch: Path,
    dataset: Path | None,
    kind: Path | None,
    settings: Mapping[str, Any],
    engine: str | None = None,
) -> Subject:
    """Return the workload in a folder, with its settings and rows; parameters: see `answers`.

    Raises
    ------
    InputError : the declaration is not valid, a setting is not allowed, or there are no rows.
    """
    program = folders.add(folders.WORKLOADS, NAME, str(folder), "workload")
    if program:
        reason = "is a program, which keeps no contract of Escala's"
        raise InputError(folder, "command", reason, "try it: escala try")
    declared = WORKLOADS[NAME]
    if engine and engine not in declared.engines:
        names = ", ".join(declared.engines)
        reason = f"has networks for {names} only" if names else "is a fit, which has no network"
        remedy = "name one of these with --engine" if names else "leave --engine out"
        raise InputError(folder, engine, reason, remedy)
    if kind:
        folders.add(folders.KINDS, declared.data_kind, str(kind), "kind")
    of_steps = {"epochs": EPOCHS, "batch": {"rows": BATCH, "per": "global"}}
    with_steps = (of_steps if declared.takes_steps else {}) | dict(settings)
    complete = workload_settings(NAME, with_steps, "settings") | {"save_model": True}
    split = scratch / "split"
    split.mkdir()
    if dataset:
        copy_rows(dataset, split)
    else:
        draw_rows(folder, split)
    split_description(split)
    if declared.takes_steps:
        engine = engine or declared.engines[0]
    return Subject(complete, split, scratch, engine)


def kept_model(subject: Subject) -> str:
    """Check that the predictions of the model on disk equal those of the trained model."""
    inputs, _ = subject.arrays.gather("test", slice(None))
    predictions, model = subject.predictions, load(subject.scratch / subject.alone)
    if not np.allclose(model.predictions(*inputs), predictions, ROWS_TOLERANCE, 1e-5):
        raise Refused(
            "a kept model does not predict what the trained one did",
            "keep all that it has learnt in its variables",
        )
    return f"predicts the same for {len(predictions)} rows"


def _fit_weights(subject: Subject) -> dict[str, np.ndarray]:
    inputs, targets = subject.arrays.gather("train", slice(None))
    [classes] = subject.output_shape
    counts = np.bincount(targets, minlength=classes)
    return subject.module.fit(inputs, targets, counts, subject.settings)


def fit(subject: Subject) -> str:
    """Check that two fits give equal weights, with the shapes that the module names."""
    require(subject.module, "OPTIMIZER", "fit", "shapes", "probabilities")
    models.require_classes(subject.module, subject.arrays.description)
    weights, again = _fit_weights(subject), _fit_weights(subject)
    promised = subject.module.shapes(subject.arrays.inputs, subject.output_shape, subject.settings)
    shapes = {name: tuple(shape) for name, shape in promised.items()}
    if {name: array.shape for name, array in weights.items()} != shapes:
        raise Refused(
            f"fit gives {_list_shapes(weights)}, and shapes returns something else",
            "let shapes return the names and shapes of what fit gives",
        )
    if any(not np.array_equal(weights[name], again[name]) for name in weights):
        raise Refused("two fits to the same rows give different weights", "draw nothing at random")
    return f"{_list_shapes(weights)}, twice the same"


def _list_shapes(weights: Mapping[str, np.ndarray]) -> str:
    return ", ".join(f"{name} {array.shape}" for name, array in weights.items())


def probabilities(subject: Subject) -> str:
    """Check that there is a probability for each row and class."""
    inputs, targets = subject.arrays.gather("train", slice(None))
    outputs = np.asarray(subject.module.probabilities(_fit_weights(subject), inputs))
    wanted = (len(targets), *subject.output_shape)
    if outputs.shape != wanted or not np.allclose(outputs.sum(axis=1), 1, atol=1e-3):
        raise Refused(
            f"probabilities gives the shape {outputs.shape}, or rows whose sum is not 1",
            f"give a probability for each class, shape {wanted}",
        )
    return "for each class, and their sum is 1"


def two_ranks(subject: Subject) -> str:
    """Check that the losses of two ranks equal the losses of one rank."""
    one, two = subject.run(subject.alone, "1x1"), subject.run(subject.together, "1x2")
    # A run whose ranks end with different weights does not end ok.
    equal = "both ranks end with equal weights"
    if not subject.facts["rows_are_independent"]:
        return f"{equal}; with batch normalisation or dropout, they do not follow one rank exactly"
    for first, second in zip(one["epochs"], two["epochs"], strict=True):
        if not np.isclose(first["loss"], second["loss"], RANKS_TOLERANCE, 0):
            raise Refused(
                f"the loss of epoch {first['epoch']} is {first['loss']:.6g} on one rank and "
                f"{second['loss']:.6g} on two",
                "let the loss of a row depend on nothing but this row",
            )
    return f"{equal}, and their loss is that of one rank"


def scores(subject: Subject) -> str:
    """Check `counts` and `scores_of` of the module `scores`, if the module has them."""
    module = scores_module(NAME)
    offered = [name for name in ("counts", "scores_of") if hasattr(module, name)]
    if not offered:
        return "those of a classification" if module is None else "computed from all rows at once"
    if len(offered) < 2:
        raise Refused(f"scores.py has only {offered[0]}", "offer both counts and scores_of")
    (_, targets), predictions = subject.arrays.gather("test", slice(None)), subject.predictions

    def counts(rows: slice) -> np.ndarray:
        return np.asarray(module.counts(targets[rows], predictions[rows]))

    whole, of_none, rows = counts(slice(None)), counts(slice(0, 0)), len(targets)
    if whole.ndim != 2 or len(whole) != rows or of_none.shape != (0, whole.shape[1]):
        raise Refused(
            f"counts gives the shape {whole.shape} for {rows} rows and {of_none.shape} for none",
            "give the shape (rows, n), with the same n for any rows",
        )
    if not np.allclose(np.concatenate([counts(slice(r, r + 1)) for r in range(rows)]), whole):
        raise Refused(
            "the counts of a row depend on the other rows",
            "compute each row's counts from this row only",
        )
    values = module.scores_of(whole.sum(axis=0, dtype=np.float64))
    if problem := not_finite(values):
        raise Refused(problem, "let scores_of leave out a score that these rows do not define")
    if twice := values.keys() & subject.facts["row_scores"]:
        reason = f"score {min(twice)} is given by row_scores and by scores_of"
        raise Refused(reason, "rename one of them")
    return f"{', '.join(values)} from {whole.shape[1]} sums over rows"


FIT_CHECKS = {"fit": fit, "probabilities": probabilities, "kept model": kept_model}
STEPS_CHECKS = {"two ranks": two_ranks, "kept model": kept_model, "scores": scores}


def answers(
    folder: Path,
    scratch: Path,
    *,
    dataset: Path | None = None,
    kind: Path | None = None,
    settings: Mapping[str, Any] | None = None,
    engine: str | None = None,
) -> Iterator[Answer]:
    """Check a workload and yield an answer for each part of the contract.

    The check ends early if the workload cannot be read, has no data, does not build, or computes
    wrong losses of rows.

    Parameters
    ----------
    scratch : an empty folder.
    dataset : the folder of a split, whose first rows are used. None: rows are drawn at random by
        the `example` in the declaration.
    kind : the folder of the dataset's kind, if the kind is outside the project.
    settings : the settings of the workload in an experiment. Settings with a default may be absent.
    engine : the engine that trains. Default: the first engine for which the workload has a network.
    """
    try:
        checked = subject(folder, scratch, dataset, kind, settings or {}, engine)
    except InputError as error:
        yield Answer("declaration", False, f"{error.where}: {error.reason}", error.remedy)
        return
    declared = WORKLOADS[NAME]
    by = f"steps of {ENGINES[checked.engine].title}" if checked.engine else "a fit"
    others = [f"--engine {name}" for name in declared.engines if name != checked.engine]
    by += f" (other networks: {', '.join(others)})" * bool(checked.engine and others)
    yield Answer("declaration", True, f"trained by {by}, reads {declared.data_kind}")
    checks = FIT_CHECKS
    if checked.engine:
        for answer in checked.network_answers():
            yield answer
            if answer.name in PRECONDITIONS and not answer.able:
                return
        checks = STEPS_CHECKS
    for name, check in checks.items():
        answer = answer_of(name, check, checked, folder)
        yield answer
        if name == "fit" and not answer.able:
            return
