"""Describe the gradients of a workload's module, in the order of its arrays."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from escala.data import reader
from escala.data.base import output_shape
from escala.engines.torch import arrays, building
from escala.strategies.knobs import complete, model_knobs
from escala.workloads import workload


def described(name: str, split: Path, training: Mapping, knobs: Mapping) -> list[dict]:
    """Return the gradients of a workload's model as a calibration holds them, without their times.

    All are dense, and exchanged by sums.

    Parameters
    ----------
    split : folder whose arrays give the form of a row.
    training, knobs : as in a request.
    """
    data = reader(split)
    model = building.build(
        workload(name, "torch"),
        data.inputs,
        output_shape(data.description),
        training,
        model_knobs(complete(knobs, name), name),
    )
    return [
        {
            "name": each.name,
            # In Keras's layout, as elsewhere; how many numbers there are is all that counts here.
            "shape": [*each.shape] or [1],
            "item_bytes": each.tensor.element_size(),
            "factor_rows": None,
            "sparse_rows": None,
        }
        for each in arrays.arrays(model)
        if each.trained
    ]
