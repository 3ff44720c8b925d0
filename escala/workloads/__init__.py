"""Workloads: what is trained. Adding one is adding a module and its settings.

The settings stand under `workloads` in `schemas/config.schema.yaml`. A module declares how it is
trained by the constant `TRAINED_BY`, `"gradient"` or `"fit"`, which is read without importing it
(`escala.declared`). Its name in experiments is that of its file, with `-` for `_`. What it offers
depends on how it is trained.

By *gradient* steps, under any strategy:

`model(length, classes, stem="layers")`
    an untrained `keras.Model` from codes of shape (rows, length) to probabilities (rows, classes);
    `stem` is the variant's knob, of which a model without a stem over letters makes nothing;
`optimizer(learning_rate, update="keras")`
    a `keras.optimizers.Optimizer`; `update` is the variant's knob, and may be left unused;
`row_losses(labels, probabilities)`
    the loss of every row, shape (rows,), so that a row counts the same on every rank.

By one *fit* in one process, without TensorFlow:

`OPTIMIZER`
    the name of the method;
`fit(codes, labels, counts, settings)`
    the trained weights, float arrays by name; `codes` uint8 (rows, length) and `labels` int64
    (rows,) are the training rows, `counts` int64 (classes,) the training rows of each class before
    it was enlarged, `settings` those of the experiment;
`shapes(classes, settings)`
    the shapes of these weights by name: a kept model with others is refused;
`probabilities(weights, codes)`
    float32 (rows, classes), in memory that does not grow with the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Literal

from escala.declared import constants
from escala.workloads.models import Classifier, load

__all__ = ["WORKLOADS", "Classifier", "Workload", "load", "workload"]


@dataclass(frozen=True)
class Workload:
    """The module of a workload and how it is trained; known without importing it."""

    module: str
    kind: Literal["gradient", "fit"]


def _discover() -> dict[str, Workload]:
    """Return the workloads by name."""
    declared = {path.stem: constants(path) for path in sorted(Path(__file__).parent.glob("*.py"))}
    return {
        name.replace("_", "-"): Workload(f"escala.workloads.{name}", found["TRAINED_BY"])
        for name, found in declared.items()
        if "TRAINED_BY" in found
    }


WORKLOADS = _discover()


def workload(name: str) -> ModuleType:
    """Return a workload's module. Those trained by gradient steps import TensorFlow."""
    return import_module(WORKLOADS[name].module)
