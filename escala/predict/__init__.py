"""Classify a user's own data with a trained model, and flag unfamiliar items."""

from __future__ import annotations

from escala.data import Kind
from escala.workloads import WORKLOADS


def predicting(kind: Kind, workload: str) -> list[str]:
    """Return the modules that a prediction with a workload picks by name."""
    of_kind = [kind.module(part) for part in ("queries", "familiarity") if kind.has(part)]
    return [*of_kind, WORKLOADS[workload].package]
