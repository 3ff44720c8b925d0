"""Describe the gradients of a workload's model, without training it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from escala.data import reader
from escala.data.base import output_shape
from escala.strategies.base import tensor_names
from escala.strategies.knobs import complete, of_model
from escala.strategies.shared.factors import products
from escala.strategies.shared.recompute import data_bytes, layers_before
from escala.strategies.shared.sparse import reads_of
from escala.strategies.single import Single
from escala.training import replicas
from escala.training import step as steps
from escala.training.contract import losses_of_rows
from escala.workloads import workload
from escala.workloads.graphs import function_of


def described(name: str, split: Path, training: Mapping, knobs: Mapping) -> list[dict]:
    """Return the gradients of a model as a calibration holds them, without the time of each.

    Parameters
    ----------
    name : of the workload.
    split : folder of the arrays, which give the form of a row.
    training, knobs : as in a request.
    """
    work, data = workload(name), reader(split)
    model = work.build(
        data.inputs,
        output_shape(data.description),
        training,
        of_model(complete(knobs, name), name),
    )
    variables = model.trainable_variables
    compute = steps.computing(
        model,
        losses_of_rows(work, training),
        function_of(work, "correct", steps.most_probable_is_right),
        {},
        replicas.own_variables(model),
        steps.own_sum,
    )
    traced = []

    def note(*arguments):
        gradients, *_ = compute(*arguments)
        traced[:] = reads_of(gradients, variables)

    Single({}, None).trace(note, steps.step_signature(data, 1))
    of_dense = {layer.kernel.ref(): rows for layer, rows in products(model)}
    input_of = getattr(work, "input_of", None)
    of_data = {
        layer.kernel.ref(): before and data_bytes(before)
        for layer, rows in products(model)
        for before in [layers_before(model, layer, input_of) if rows == 1 else None]
    }
    return [
        {
            "name": each,
            "shape": [*map(int, variable.shape)] or [1],
            "item_bytes": variable.dtype.size,
            "factor_rows": of_dense.get(variable.ref()),
            "data_bytes": of_data.get(variable.ref()),
            "sparse_rows": reads and reads.reads,
        }
        for each, variable, reads in zip(tensor_names(variables), variables, traced, strict=True)
    ]
