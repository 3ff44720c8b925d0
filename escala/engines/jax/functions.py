"""Functions of a workload for JAX, and the gradients of its model."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from escala.engines import functions
from escala.engines.jax import models


class Functions(functions.Functions):
    """Functions of a workload. The result of `with_weights` is a function of the inputs."""

    a_model = "an escala.engines.jax.models.Model with arrays"

    def is_model(self, model):
        return isinstance(model, models.Model) and bool(model.arrays)

    def shapes(self, model):
        return [array.shape for array in model.arrays]

    def with_weights(self, model, weights):
        return lambda *inputs: model.outputs(weights, *inputs)

    def output_form(self, model, specs):
        rows = [jax.ShapeDtypeStruct((1, *spec.shape), spec.dtype) for spec in specs]
        arrays = [jax.ShapeDtypeStruct(array.shape, jnp.float32) for array in model.arrays]
        return jax.eval_shape(model.outputs, arrays, *rows).shape[1:]

    def outputs(self, model, inputs):
        return model(*inputs)

    def compile(self, model, function, specs):
        computed = jax.jit(function)
        return lambda *rows: _as_integers(computed(*rows))

    def most_probable(self, outputs):
        return outputs.argmax(-1)

    def is_most_probable(self, targets, outputs):
        return (self.most_probable(outputs) == targets).astype(jnp.float32)

    def gradients(self, model, weights, inputs, targets):
        def loss(arrays):
            outputs = model.outputs(arrays, *inputs)
            return self.work.row_losses(targets, outputs, self.settings).sum()

        computed = map(np.asarray, jax.grad(loss)(weights))
        named = zip(model.arrays, computed, strict=True)
        return [(array.name, gradient if gradient.any() else None) for array, gradient in named]

    def trainable_arrays(self, model):
        return [(array.name, array.shape, 4) for array in model.arrays]

    def make_compute(self, model: models.Model) -> Callable:
        """Return a function of the model's arrays and of `StepInputs`, for a step.

        The function returns the gradients of the sum of the losses ÷ divisor, and the sums of
        losses and of hits.
        """

        def loss(arrays, *rows):
            *inputs, targets, weights, divisor = rows
            outputs = model.outputs(arrays, *inputs)
            total = weights @ self.row_losses(targets, outputs)
            return total / divisor, (total, weights @ self.correct(targets, outputs))

        return jax.grad(loss, has_aux=True)

    def make_evaluate(self, model: models.Model, size: int) -> Callable:
        """Return a function of arrays, inputs and targets of at most `size` rows.

        The function returns predictions and sums, as in `compile_evaluation`. Fewer rows are filled
        up to `size`, so that the function is compiled only once.
        """

        @jax.jit
        def compute(arrays, weights, targets, *inputs):
            return self.evaluate_rows(
                self.with_weights(model, arrays), inputs, targets, lambda values: weights @ values
            )

        def evaluate(arrays, inputs, targets):
            rows = len(targets)
            filled = [np.resize(array, (size, *array.shape[1:])) for array in (targets, *inputs)]
            weights = (np.arange(size) < rows).astype(np.float32)
            predictions, sums = compute(arrays, weights, *filled)
            sums = {name: float(value) for name, value in sums.items()}
            return _as_integers(predictions)[:rows], sums

        return evaluate


def _as_integers(predictions: jax.Array) -> np.ndarray:
    """Return predictions with 64-bit integers, as in other engines; JAX has 32-bit integers."""
    array = np.asarray(predictions)
    return array.astype(np.int64) if array.dtype == np.int32 else array
