"""Functions of a workload as a run compiles them: losses, predictions and scores of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import ModuleType

import numpy as np
import tensorflow as tf

from escala.data.base import Arrays, Spec
from escala.engines.tensorflow import building
from escala.engines.tensorflow.building import as_graph, function_of
from escala.engines.tensorflow.step import most_probable_is_right, row_signature
from escala.workloads import models as contract
from escala.workloads.models import given


def losses_of_rows(work: ModuleType, settings: Mapping) -> Callable:
    """Return a function of targets and outputs that returns the loss of every row, shape (rows,).

    Another shape is a ValueError, as far as it is known (`escala.workloads.models`).
    """
    row_losses = function_of(work, "row_losses")

    def fits(shape: tf.TensorShape, rows: tf.TensorShape) -> bool:
        return shape.rank is None or (shape.rank == 1 and shape[0] in (None, rows[0]))

    return contract.losses_of_rows(
        work, settings, lambda *given: tf.convert_to_tensor(row_losses(*given)), fits
    )


#: The function of a workload's module, a model and settings to the predictions of rows.
predicting = partial(
    contract.predicting,
    most_probable=lambda outputs: tf.argmax(outputs, axis=-1),
    function=function_of,
)


def evaluating(
    model: tf.keras.Model, work: ModuleType, row_losses: Callable, data: Arrays, settings: Mapping
) -> Callable:
    """Return the compiled evaluation, a function of the inputs and targets of some rows.

    It returns their predictions and the sums over the rows of each loss and score: `loss`, to which
    regularisers add, `correct`, and the workload's own. Its first call raises ValueError if the
    workload gives one of its scores a name of `contract.SUMMED`.
    """
    predictions = predicting(work, model, settings)
    correct = function_of(work, "correct", most_probable_is_right)
    row_scores = function_of(work, "row_scores", lambda targets, outputs: {})

    @as_graph(input_signature=row_signature(data))
    def evaluate(*arguments):
        *inputs, targets = arguments
        outputs = model(given(inputs), training=False)
        losses = row_losses(targets, outputs)
        if added := model.losses:
            losses += tf.add_n(added)
        further = row_scores(targets, outputs)
        scores = contract.named_sums(losses, correct(targets, outputs), further)
        return predictions(inputs, outputs), {
            name: tf.reduce_sum(each) for name, each in scores.items()
        }

    return evaluate


def restored(
    work: ModuleType,
    specs: Sequence[Spec],
    outputs: tuple[int, ...],
    settings: Mapping,
    knobs: Mapping,
    weights: Mapping[str, np.ndarray],
    require: Callable[[Mapping[str, tuple], Mapping[str, np.ndarray]], None],
) -> tuple[Callable, Callable, tuple]:
    """Return the outputs and the predictions of a trained model, functions of its inputs.

    The third value is the shape of the model's output for one row, None where it is not known.
    `weights` are arrays by the names that `np.savez` gives: names of variables depend on what the
    process built before. `require` refuses arrays that have other names or shapes than the
    variables.
    """
    model = building.build(work, specs, outputs, settings, knobs)
    shapes = {f"arr_{number}": tuple(v.shape) for number, v in enumerate(model.weights)}
    require(shapes, weights)
    model.set_weights([weights[name] for name in shapes])
    signature = [tf.TensorSpec((None, *spec.shape), spec.dtype) for spec in specs]
    predictions = predicting(work, model, settings)

    @as_graph(input_signature=signature)
    def computed(*inputs):
        return model(given(inputs), training=False)

    @as_graph(input_signature=signature)
    def predicted(*inputs):
        return predictions(inputs, computed(*inputs))

    def plain(function: Callable) -> Callable:
        return lambda *inputs: function(*inputs).numpy()

    return plain(computed), plain(predicted), output_form(model)


def output_form(model: tf.keras.Model) -> tuple:
    """Return the shape of a model's output for one row; empty if Keras does not know it."""
    _, *shape = getattr(model, "output_shape", None) or (None,)
    return tuple(shape)
