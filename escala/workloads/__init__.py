"""Workloads: what is trained. Adding one is adding a module and a line here.

A workload's module offers

`model(length, classes)`
    an untrained `keras.Model` from codes of shape (rows, length) to probabilities (rows, classes);
`optimizer(learning_rate)`
    a `keras.optimizers.Optimizer`;
`row_losses(labels, probabilities)`
    the loss of every row, shape (rows,), so that a row counts the same on every rank.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

WORKLOADS = {"virus-cnn": "escala.workloads.virus_cnn"}


def workload(name: str) -> ModuleType:
    """Return a workload's module. It imports TensorFlow, so only ranks ask for it."""
    return import_module(WORKLOADS[name])
