"""Describe the gradients of a workload's model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import tensorflow as tf

from escala.data import reader
from escala.data.base import output_shape
from escala.engines.tensorflow import step as steps
from escala.engines.tensorflow.building import as_graph
from escala.engines.tensorflow.fast.dense import products
from escala.engines.tensorflow.functions import Functions
from escala.engines.tensorflow.ranks import tensor_names
from escala.engines.tensorflow.state import local_variables
from escala.strategies.knobs import complete, model_knobs
from escala.workloads import workload


def described(name: str, split: Path, training: Mapping, knobs: Mapping) -> list[dict]:
    """Return the gradients of a workload's model as a calibration holds them, without their times.

    The arrays in the folder `split` give the form of a row. `training` and `knobs` are as in a
    request.
    """
    functions, data = Functions(workload(name), training), reader(split)
    model = functions.build(
        data.inputs, output_shape(data.description), model_knobs(complete(knobs, name), name)
    )
    variables = model.trainable_variables
    compute = steps.computing(model, functions, {}, local_variables(model), steps.local_sum)
    traced = []

    def note(*arguments):
        gradients, *_ = compute(*arguments)
        # How many rows of a variable one row of the model reads; None if it is not known.
        traced[:] = [
            each.indices.shape[0] if isinstance(each, tf.IndexedSlices) else None
            for each in gradients
        ]

    as_graph(input_signature=steps.step_signature(data, 1))(note).get_concrete_function()
    dense_rows = {layer.kernel.ref(): rows for layer, rows in products(model)}
    return [
        {
            "name": each,
            "shape": [*map(int, variable.shape)] or [1],
            "item_bytes": variable.dtype.size,
            "factor_rows": dense_rows.get(variable.ref()),
            "sparse_rows": reads,
        }
        for each, variable, reads in zip(tensor_names(variables), variables, traced, strict=True)
    ]
