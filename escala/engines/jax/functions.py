"""Functions of a workload as a run calls them: gradients, an evaluation, and a kept model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from escala.data.base import Spec
from escala.engines.jax import models
from escala.workloads import models as contract


def gradients_of(work: ModuleType, model: models.Model, settings: Mapping) -> Callable:
    """Return a function of arrays, inputs, targets, weights of rows and the divisor of their loss.

    It returns the gradients of the sum of the losses ÷ divisor, and the sums of losses and hits.
    """
    losses, correct = contract.losses_of_rows(work, settings), _correct(work)

    def loss(arrays, *rows):
        *inputs, targets, weights, divisor = rows
        outputs = model.outputs(arrays, *inputs)
        total = weights @ losses(targets, outputs)
        return total / divisor, (total, weights @ correct(targets, outputs))

    return jax.grad(loss, has_aux=True)


def evaluating(work: ModuleType, model: models.Model, settings: Mapping, size: int) -> Callable:
    """Return the evaluation, a function of arrays, inputs and targets of at most `size` rows.

    It returns their predictions and the sums over the rows of each loss and score. Fewer rows are
    filled up, so that it is compiled once.
    """
    losses, correct = contract.losses_of_rows(work, settings), _correct(work)
    row_scores = getattr(work, "row_scores", lambda targets, outputs: {})

    @jax.jit
    def computed(arrays, weights, targets, *inputs):
        outputs = model.outputs(arrays, *inputs)
        found = losses(targets, outputs), correct(targets, outputs), row_scores(targets, outputs)
        sums = {name: weights @ each for name, each in contract.named_sums(*found).items()}
        return _predictions(work, outputs), sums

    def evaluate(arrays, inputs, targets):
        rows = len(targets)
        filled = [np.resize(each, (size, *each.shape[1:])) for each in (targets, *inputs)]
        weights = (np.arange(size) < rows).astype(np.float32)
        predictions, sums = computed(arrays, weights, *filled)
        return _taken(predictions)[:rows], {name: float(each) for name, each in sums.items()}

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

    The third value is the shape of the model's output for one row. `weights` are arrays by the
    names that `np.savez` gives. `require` refuses arrays of other names or shapes than the model's.
    """
    model = models.build(work, specs, outputs, settings, knobs)
    shapes = {f"arr_{number}": each.shape for number, each in enumerate(model.arrays)}
    require(shapes, weights)
    arrays = [weights[name] for name in shapes]
    probabilities = getattr(work, "probabilities", lambda outputs, settings: outputs)
    computed = jax.jit(lambda *rows: probabilities(model.outputs(arrays, *rows), settings))
    predicted = jax.jit(lambda *rows: _predictions(work, model.outputs(arrays, *rows)))
    return (
        lambda *rows: np.asarray(computed(*rows)),
        lambda *rows: _taken(predicted(*rows)),
        models.output_form(model, specs),
    )


def _correct(work: ModuleType) -> Callable:
    """Return the function of a workload for the correctness of rows, or that of classifications."""
    return getattr(work, "correct", _most_probable_is_right)


def _most_probable_is_right(targets: jax.Array, outputs: jax.Array) -> jax.Array:
    return (outputs.argmax(-1) == targets).astype(jnp.float32)


def _predictions(work: ModuleType, outputs: jax.Array) -> jax.Array:
    return work.predict(outputs) if hasattr(work, "predict") else outputs.argmax(-1)


def _taken(predictions: jax.Array) -> np.ndarray:
    """Return predictions with the integers of other engines; those of JAX have 32 bits."""
    found = np.asarray(predictions)
    return found.astype(np.int64) if found.dtype == np.int32 else found
