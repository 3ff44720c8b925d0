"""The subject of a check: a workload with its settings, a few rows, and short runs of it."""

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

from escala.core.engines import DEFAULT, ENGINES
from escala.core.errors import Answer, InputError, Refused
from escala.core.files import read_json
from escala.data import base, reader
from escala.engines import engine_name, environments, interpreters
from escala.experiment import folders
from escala.experiment.schema import workload_settings
from escala.predict.model import load
from escala.record.plan import make_plan, split_description
from escala.record.run import measure
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES
from escala.training.plan import Plan
from escala.workload_check import network
from escala.workload_check.network import BATCH, ROWS_TOLERANCE
from escala.workload_check.rows import DATASET, copy_rows, draw_rows
from escala.workloads import WORKLOADS, workload

#: What the workload is called here.
NAME = "checked"
EPOCHS = 2
TIME_LIMIT_SECONDS = 300.0


@dataclass(frozen=True)
class Subject:
    """A workload with rows for it: `split` is the folder of a few, and `scratch` one for runs.

    The `settings` are of the experiment, with every default filled in. `engine` trains, None for a
    fit. What its network is `told` to be: whether a row's loss `follows` from this row only, also
    in training, and the names of its `row_scores`.
    """

    settings: dict
    split: Path
    scratch: Path
    engine: str | None
    told: dict[str, Any] = field(default_factory=lambda: {"follows": True, "row_scores": []})

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
            for name, each in STRATEGIES.items()
            if engine_name(name) == self.engine and each.library
        )

    def network_answers(self) -> Iterator[Answer]:
        """Yield the answers of `escala.workload_check.network`, and keep what else it tells.

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
            env=interpreters.variables(python, os.environ),
        )
        for line in map(json.loads, done.stdout.splitlines()):
            if "able" in line:
                yield Answer(**line)
            else:
                self.told.update(line)
        if done.returncode:
            said = "".join(done.stderr.strip().splitlines()[-1:])
            reason = f"its process ended with exit code {done.returncode}: {said}"
            yield Answer("network", False, reason, "correct the cause of this error")

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
        folder = self.scratch / self.alone
        if not (folder / "run.json").exists():
            self.measured(self.alone, "1x1")
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
    engine: str | None = None,
) -> Subject:
    """Return a workload with its settings and rows; parameters as of `answers`.

    A declaration that is not valid, a setting that is not allowed, and missing rows, are refused.
    """
    if folders.add(folders.WORKLOADS, NAME, str(folder), "workload"):
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
    by = (engine or declared.engines[0]) if declared.takes_steps else None
    return Subject(complete, split, scratch, by)


def kept_model(subject: Subject) -> str:
    """Check that a kept model predicts what the trained one did."""
    inputs, _ = subject.arrays.gather("test", slice(None))
    predictions, model = subject.predictions, load(subject.scratch / subject.alone)
    if not np.allclose(model.predictions(*inputs), predictions, ROWS_TOLERANCE, 1e-5):
        raise Refused(
            "a kept model does not predict what the trained one did",
            "keep all that it has learnt in its variables",
        )
    return f"predicts the same for {len(predictions)} rows"
