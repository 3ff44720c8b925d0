"""Classify a user's own data with a trained model, and flag unfamiliar items."""

from __future__ import annotations

from escala import engines
from escala.cache.code import Code, project
from escala.core.engines import DEFAULT
from escala.data import Kind
from escala.workloads import WORKLOADS

#: The file with the errors by length, alongside a run's model.
LENGTH_ERRORS = "length_errors.json"


def code(kind: Kind, workload: str) -> Code:
    """Return what determines a prediction with a workload besides its model and its query."""
    whole, declared = project(), WORKLOADS[workload]
    trained = engines.versions(DEFAULT, declared.packages)
    return Code(
        {**whole.paths, "kind": kind.folder, "workload": declared.folder},
        {**whole.versions, **kind.code().versions, **trained},
    )
