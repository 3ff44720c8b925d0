"""JAX's side of `engines_agree`: `python engines_agree_jax.py FOLDER…`."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import jax
import numpy as np
from engines_agree import SEED, Case, batches, numbered, print_differences

from escala.engines.jax.functions import Functions


def computed(
    work: ModuleType, case: Case, knobs: dict, precision: str, theirs: Mapping[str, np.ndarray]
) -> dict[str, Any]:
    """Return what JAX computes with the weights and rows of TensorFlow."""
    functions = Functions(work, case.settings)
    model = functions.build(case.inputs, case.outputs, knobs)
    optimizer = work.optimizer(case.settings, case.rate, knobs)
    weights = [each.astype(precision) for each in numbered(theirs, "weight")]
    # Keras casts to the type of its layers.
    inputs = [e.astype(precision) if e.dtype == "float32" else e for e in numbered(theirs, "input")]
    targets, each_row = theirs["targets"], np.ones(case.batch, precision)
    compute = jax.jit(functions.make_compute(model))
    evaluate = functions.make_evaluate(model, case.batch + 1)
    rows, answers = next(batches(case, inputs, targets))
    gradients, (total, _) = compute(weights, *rows, answers, each_row, case.batch)
    outputs = model.outputs(weights, *rows)
    predictions, _ = evaluate(weights, rows, answers)
    state = [weights, *([np.zeros_like(each) for each in weights],) * optimizer.slots]
    curve = []
    for given, wanted in batches(case, inputs, targets):
        found, (loss, _) = compute(state[0], *given, wanted, each_row, case.batch)
        curve.append(float(loss) / case.batch)
        state = optimizer.apply(state, found)
    return {
        "parameters": sum(each.size for each in weights),
        "begun": model.initial_values(SEED),
        "loss": float(total) / case.batch,
        "gradients": {
            each.name: np.asarray(found)
            for each, found in zip(model.arrays, gradients, strict=True)
        },
        "evaluation": {
            "losses": np.asarray(work.row_losses(answers, outputs, case.settings)),
            "predictions": predictions,
        },
        "curve": curve,
        "end": list(map(np.asarray, state[0])),
    }


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    print_differences("jax", computed)
