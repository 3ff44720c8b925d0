"""Functions of a workload as a run compiles them: losses, predictions and scores of rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

import numpy as np
import tensorflow as tf

from escala.data.base import Arrays, Spec
from escala.engines.tensorflow import building
from escala.engines.tensorflow.graphs import as_graph, function_of
from escala.engines.tensorflow.step import most_probable_is_right, row_signature
from escala.workloads import offers
from escala.workloads.models import given


def losses_of_rows(work: ModuleType, settings: Mapping) -> Callable:
    """Return a function of targets and outputs that returns the loss of every row, shape (rows,).

    A mean over the rows, or a loss for each place in a row, would be broadcast over the weights of
    the rows, so that training would minimise another quantity. If the `row_losses` of `work`, the
    module `model` of the workload, returns another shape, a ValueError names its file and line.
    """
    row_losses = function_of(work, "row_losses")

    def checked(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        losses = tf.convert_to_tensor(row_losses(targets, outputs, settings))
        if not has_a_loss_for_each_row(losses, targets):
            code = work.row_losses.__code__
            raise ValueError(
                f"row_losses gives the shape {losses.shape} in place of (rows,), a loss for each "
                f'row: File "{code.co_filename}", line {code.co_firstlineno}'
            )
        return losses

    return checked


def has_a_loss_for_each_row(losses: tf.Tensor, targets: tf.Tensor) -> bool:
    """Return whether losses can be one number for each row, as far as their shape is known."""
    if losses.shape.rank is None:
        return True
    return losses.shape.rank == 1 and losses.shape[0] in (None, targets.shape[0])


def predicting(work: ModuleType, model: tf.keras.Model, settings: Mapping) -> Callable:
    """Return the function from the inputs and outputs of some rows to their predictions.

    By default a prediction is the number of the most probable class, int64.
    """
    if hasattr(work, "generate"):
        generate = function_of(work, "generate")
        return lambda inputs, outputs: generate(model, inputs, settings)
    predict = function_of(work, "predict", lambda outputs: tf.argmax(outputs, axis=-1))
    return lambda inputs, outputs: predict(outputs)


def evaluating(
    model: tf.keras.Model, work: ModuleType, row_losses: Callable, data: Arrays, settings: Mapping
) -> Callable:
    """Return the compiled evaluation, a function of the inputs and targets of some rows.

    It returns their predictions and the sums over the rows of each loss and score: `loss`, to which
    regularisers add, `correct`, and the workload's own. Its first call raises ValueError if the
    workload gives one of its scores a name of `offers.SUMMED`.
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
        scores = offers.named_sums(losses, correct(targets, outputs), further)
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
