"""Classify a user's own data with a trained model, and flag unfamiliar items."""

from __future__ import annotations

from escala.data import Kind
from escala.workloads import WORKLOADS

#: The file with the errors by length, alongside a run's model.
LENGTH_ERRORS = "length_errors.json"


def predicting(kind: Kind, workload: str, *further: str) -> list[str]:
    """Return the modules that a prediction with a workload picks by name: of the kind and its own.

    `further` are modules of the kind that are picked too.
    """
    parts = ("queries", "familiarity", *further)
    modules = [kind.module(part) for part in parts if kind.has(part)]
    return [*modules, WORKLOADS[workload].package]
