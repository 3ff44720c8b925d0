"""Describe the gradients of a workload's model, and time what ranks may compute again for them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from escala.data import reader
from escala.data.base import Arrays, output_shape
from escala.engines import costs
from escala.engines.tensorflow import building
from escala.engines.tensorflow import step as steps
from escala.engines.tensorflow.building import as_graph, function_of
from escala.engines.tensorflow.exchanges import data_bytes, layers_before
from escala.engines.tensorflow.factors import products
from escala.engines.tensorflow.functions import losses_of_rows
from escala.engines.tensorflow.ranks import tensor_names
from escala.engines.tensorflow.state import local_variables
from escala.strategies.knobs import complete, model_knobs
from escala.workloads import workload
from escala.workloads.models import given

#: Numbers of rows for which layers are timed, calls of each, and calls before them.
ROWS, CALLS, WARM_UP = (16, 64, 256), 10, 3


def described(name: str, split: Path, training: Mapping, knobs: Mapping) -> list[dict]:
    """Return the gradients of a workload's model as a calibration holds them, without their times.

    The arrays in the folder `split` give the form of a row. `training` and `knobs` are as in a
    request.
    """
    work, data = workload(name), reader(split)
    model = building.build(
        work,
        data.inputs,
        output_shape(data.description),
        training,
        model_knobs(complete(knobs, name), name),
    )
    variables = model.trainable_variables
    compute = steps.computing(
        model,
        losses_of_rows(work, training),
        function_of(work, "correct", steps.most_probable_is_right),
        {},
        local_variables(model),
        steps.local_sum,
    )
    traced = []

    def note(*arguments):
        gradients, *_ = compute(*arguments)
        traced[:] = map(_reads, gradients)

    as_graph(input_signature=steps.step_signature(data, 1))(note).get_concrete_function()
    dense_rows = {layer.kernel.ref(): rows for layer, rows in products(model)}
    again = {
        layer.kernel.ref(): _again(layers_before(model, layer), data)
        for layer, rows in products(model)
        if rows == 1 and _may_save_bytes(layer)
    }
    return [
        {
            "name": each,
            "shape": [*map(int, variable.shape)] or [1],
            "item_bytes": variable.dtype.size,
            "factor_rows": dense_rows.get(variable.ref()),
            **again.get(variable.ref(), {}),
            "sparse_rows": reads,
        }
        for each, variable, reads in zip(tensor_names(variables), variables, traced, strict=True)
    ]


def _reads(gradient: Any) -> int | None:
    """Return how many rows of a variable one row of the model reads; None for a dense gradient.

    A gradient with an unknown number of rows counts as dense.
    """
    return gradient.indices.shape[0] if isinstance(gradient, tf.IndexedSlices) else None


def _may_save_bytes(layer: tf.keras.layers.Dense) -> bool:
    """Return whether an allreduce of the kernel's gradient is more than `costs.MIN_SAVED_BYTES`.

    However many ranks there are, each receives less than twice these bytes.
    """
    kernel = layer.kernel
    return 2 * kernel.shape.num_elements() * kernel.dtype.size > costs.MIN_SAVED_BYTES


def _again(before: tf.keras.Model | None, data: Arrays) -> dict:
    """Return the bytes of a row of data, and the times of some layers for numbers of rows."""
    if before is None or data_bytes(before) is None:
        return {}
    function = as_graph(input_signature=steps.row_signature(data)[: len(data.inputs)])(
        lambda *inputs: before(given(inputs), training=True)
    )
    times = []
    for rows in ROWS:
        inputs, _ = data.gather("train", np.arange(rows) % data.rows("train"))
        times.append({"rows": rows, "seconds": _median_seconds(function, inputs)})
    return {"data_bytes": data_bytes(before), "recompute": times}


def _median_seconds(function: Callable, inputs: Sequence[np.ndarray]) -> float:
    tensors, found = [tf.constant(each) for each in inputs], []
    for _ in range(WARM_UP + CALLS):
        start = time.perf_counter()
        function(*tensors)
        found.append(time.perf_counter() - start)
    return float(np.median(found[WARM_UP:]))
