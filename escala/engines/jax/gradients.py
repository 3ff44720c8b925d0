"""Describe the gradients of a workload's model, in the order of its arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from escala.data import reader
from escala.data.base import output_shape
from escala.engines.jax import models
from escala.strategies.knobs import complete, model_knobs
from escala.workloads import workload


def described(name: str, split: Path, training: Mapping, knobs: Mapping) -> list[dict]:
    """Return the gradients of a workload's model as a calibration holds them, without their times.

    Parameters
    ----------
    split : folder whose arrays give the form of a row.
    training, knobs : as in a request.
    """
    data = reader(split)
    model = models.build(
        workload(name, "jax"),
        data.inputs,
        output_shape(data.description),
        training,
        model_knobs(complete(knobs, name), name),
    )
    return [
        {
            "name": each.name,
            "shape": [*each.shape],
            "item_bytes": 4,
            "factor_rows": None,
            "sparse_rows": None,
        }
        for each in model.arrays
    ]
