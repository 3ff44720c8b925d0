"""The subject of a check: a workload with its settings, a few rows, and short runs of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from escala.core.engines import DEFAULT, ENGINES
from escala.core.errors import InputError
from escala.core.files import read_json
from escala.data import base, reader
from escala.experiment import folders
from escala.experiment.schema import workload_settings
from escala.predict.model import load
from escala.record.plan import make_plan, split_description
from escala.record.run import measure
from escala.runtime.layout import Layout
from escala.strategies.knobs import model_knobs
from escala.training.plan import Plan
from escala.workload_check.rows import DATASET, SEED, copy_rows, draw_rows
from escala.workloads import WORKLOADS, workload
from escala.workloads.models import given

#: What the workload is called here.
NAME = "checked"
BATCH, EPOCHS = 8, 2
ROWS_TOLERANCE = 1e-3
TIME_LIMIT_SECONDS = 300.0


class Refused(Exception):
    """A workload does not do what its contract says."""

    def __init__(self, reason: str, remedy: str):
        self.reason, self.remedy = reason, remedy
        super().__init__(reason)


@dataclass(frozen=True)
class Subject:
    """A workload with rows for it: `split` is the folder of a few, and `scratch` one for runs.

    The `settings` are of the experiment, with every default filled in.
    """

    settings: dict
    split: Path
    scratch: Path

    @cached_property
    def module(self) -> ModuleType:
        return workload(NAME)

    @cached_property
    def arrays(self) -> base.Arrays:
        return reader(self.split)

    @cached_property
    def form(self) -> tuple[tuple[base.Spec, ...], tuple[int, ...], dict]:
        """The specs of the inputs, the shape of the outputs, and the settings."""
        return self.arrays.inputs, base.output_shape(self.arrays.description), self.settings

    @cached_property
    def plan(self) -> Plan:
        return make_plan(self.request("single", "1x1"), self.arrays.description, self.split)

    @cached_property
    def knobs(self) -> dict[str, Any]:
        return model_knobs(self.plan["knobs"], NAME)

    @cached_property
    def rows(self) -> tuple[list, Any]:
        """The inputs and the targets of one batch, as tensors."""
        import tensorflow as tf

        inputs, targets = self.arrays.gather("train", slice(0, BATCH))
        return [tf.constant(array) for array in inputs], tf.constant(targets)

    @cached_property
    def model(self) -> Any:
        import tensorflow as tf

        tf.keras.utils.set_random_seed(SEED)
        return self.built()

    def built(self) -> Any:
        """Return a newly built model."""
        from escala.engines.tensorflow import building
        from escala.engines.tensorflow.state import use_generators

        use_generators()
        return building.build(self.module, *self.form, self.knobs)

    def outputs(self) -> Any:
        """Return what the model gives for the batch, outside training."""
        return self.model(given(self.rows[0]), training=False)

    def optimizer(self) -> Any:
        """Return a new optimizer."""
        return self.module.optimizer(self.settings, self.plan["learning_rate"], self.knobs)

    def losses(self, training: bool) -> Any:
        """Return the loss of every row of the batch."""
        inputs, targets = self.rows
        outputs = self.model(given(inputs), training=training)
        return self.module.row_losses(targets, outputs, self.settings)

    @cached_property
    def draws(self) -> bool:
        """Whether the model draws numbers as it is trained, as dropout does."""
        first, second = (np.asarray(self.losses(training=True)) for _ in range(2))
        return not np.array_equal(first, second)

    @cached_property
    def updates_itself(self) -> bool:
        """Whether the model changes variables as it is called, as batch normalisation does."""
        variables = self.model.non_trainable_variables
        before = [variable.numpy() for variable in variables]
        self.losses(training=True)
        return any(
            not np.array_equal(old, new.numpy()) for old, new in zip(before, variables, strict=True)
        )

    def require(self, *names: str) -> None:
        """Refuse a workload whose module lacks something that every workload of its sort has."""
        if missing := [name for name in names if not hasattr(self.module, name)]:
            raise Refused(
                f"{WORKLOADS[NAME].folder / 'model.py'} has no {', '.join(missing)}",
                "add what is missing, as the docstring of escala.workloads describes",
            )

    def request(self, strategy: str, layout: str) -> dict:
        """Return the request of a run, as that of an experiment."""
        return {
            "experiment": "check", "dataset": DATASET, "workload": NAME, "strategy": strategy,
            "layout": Layout.parse(layout), "variant": "plain", "network": "native", "repeat": 1,
            "series": None,
            "instrument": None, "training": self.settings, "knobs": {},
            "link": {"interface": None, "rate": None}, "launcher": "auto", "oversubscribe": True,
            "max_steps": None, "probe_settings": None,
        }  # fmt: skip

    def measured(self, strategy: str, layout: str) -> dict:
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
        folder = self.scratch / "single"
        if not (folder / "run.json").exists():
            self.measured("single", "1x1")
        elif read_json(folder / "run.json")["status"] != "ok":
            raise Refused(
                "the run on one rank kept none", "correct the cause of its error, see above"
            )
        return np.load(folder / "predictions.npy", allow_pickle=False)


def subject(
    folder: Path,
    scratch: Path,
    dataset: Path | None,
    kind: Path | None,
    settings: Mapping[str, Any],
) -> Subject:
    """Return a workload with its settings and rows; parameters as of `answers`.

    A declaration that is not valid, a setting that is not allowed, and missing rows, are refused.
    """
    if folders.add(folders.WORKLOADS, NAME, str(folder), "workload"):
        reason = "is a program, which keeps no contract of Escala's"
        raise InputError(folder, "command", reason, "try it: escala try")
    declared = WORKLOADS[NAME]
    if declared.takes_steps and DEFAULT not in declared.engines:
        raise InputError(
            folder,
            None,
            f"has no {ENGINES[DEFAULT].module}.py, and another network is not checked here",
            "try it by an experiment of one epoch under torch-single and ddp-gloo",
        )
    if kind:
        folders.add(folders.KINDS, declared.data_kind, str(kind), "kind")
    steps = {"epochs": EPOCHS, "batch": {"rows": BATCH, "per": "global"}}
    common = (steps if declared.takes_steps else {}) | dict(settings)
    complete = workload_settings(NAME, common, "settings") | {"save_model": True}
    split = scratch / "split"
    split.mkdir()
    if dataset:
        copy_rows(dataset, split)
    else:
        draw_rows(folder, split)
    split_description(split)
    return Subject(complete, split, scratch)


def kept_model(subject: Subject) -> str:
    """Check that a kept model predicts what the trained one did."""
    inputs, _ = subject.arrays.gather("test", slice(None))
    predictions, model = subject.predictions, load(subject.scratch / "single")
    if not np.allclose(model.predictions(*inputs), predictions, ROWS_TOLERANCE, 1e-5):
        raise Refused(
            "a kept model does not predict what the trained one did",
            "keep all that it has learnt in its variables",
        )
    return f"predicts the same for {len(predictions)} rows"
