"""Differences between the ranks of one model: moving statistics and random numbers.

Trainable variables and variables of the optimizer are *replicated*: equal on all ranks after any
step, except under `parameter-server`, which has one copy. Other variables, such as the moving
statistics of batch normalisation, are *local* to a rank during an epoch, because each rank updates
them with its own rows. At the end of every epoch `average` makes them equal again. Layers that
normalise over the rows of all ranks (`normalisation`) keep theirs equal after any step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf

from escala.core.errors import Unavailable
from escala.engines.tensorflow.building import layers_of
from escala.engines.tensorflow.normalisation import synchronised
from escala.engines.tensorflow.ranks import Ranks


def local_variables(model: tf.keras.Model) -> list[tf.Variable]:
    """Return the variables that each rank updates by its own rows: floats that are not trainable.

    Weights of a frozen layer are not among them: they remain trainable variables. Neither are
    statistics of the rows of all ranks, which are equal on all.
    """
    shared = {id(v) for layer in synchronised(model) for v in layer.non_trainable_variables}
    variables = model.non_trainable_variables
    return [v for v in variables if not v.trainable and v.dtype.is_floating and id(v) not in shared]


def require_whole_steps(model: tf.keras.Model, parts: int) -> None:
    """Refuse a model that normalises over all ranks if each computes its rows in several parts.

    A rank with fewer rows than parts would exchange less often than the others. `parts` is the knob
    `accumulation`.
    """
    if parts > 1 and synchronised(model):
        raise Unavailable(
            f"the model normalises over all ranks, which needs accumulation: 1, not {parts}"
        )


def average(variables: Sequence[tf.Variable], rows: Sequence[int], ranks: Ranks) -> None:
    """Set variables of all ranks to their mean, weighted by the rows of each rank.

    A rank without rows has not updated its variables and has weight 0. Every process calls this,
    with the number of rows in the epoch of each rank that it drives.
    """
    if not variables:
        return
    copies = ranks.weights(variables)
    # Ranks that share one copy of the variables have updated it together.
    weights = rows if len(copies) == len(rows) else [sum(rows)]
    for variable, mean in zip(variables, ranks.mean(copies, weights), strict=True):
        variable.assign(mean.astype(variable.dtype.as_numpy_dtype))


def seed_random_layers(model: tf.keras.Model, *seed: int) -> None:
    """Seed the random layers of a model, such as `Dropout`, anew.

    So the random numbers of an epoch do not depend on earlier ones, and a resumed run draws the
    same numbers as an uninterrupted one. Within one `tf.distribute` strategy each replica draws its
    own numbers from the same state. The non-negative numbers of `seed` identify the run, the
    process and the epoch.
    """
    for number, layer in enumerate(_random_layers(model)):
        [key] = np.random.SeedSequence([*seed, number]).generate_state(1, np.uint64)
        _generator(layer).reset_from_seed(int(key))


def use_generators() -> None:
    """Make Keras's random layers draw from generators whose state can be set.

    The operations that they use by default hide their state. Call this before a model is built.
    """
    tf.keras.backend.experimental.enable_tf_random_generator()


def _random_layers(model: tf.keras.Model) -> list[tf.keras.layers.Layer]:
    """Return the layers that draw random numbers while training, in their order."""
    kind = tf.keras.__internal__.layers.BaseRandomLayer
    layers = [layer for layer in layers_of(model) if isinstance(layer, kind)]
    # A wrapper may keep a layer that it never builds, as `Bidirectional` does, or one without
    # chance. Such a layer has no generator.
    return [layer for layer in layers if _generator(layer) is not None]


def _generator(layer: tf.keras.layers.Layer) -> tf.random.Generator | None:
    """Return the generator of a random layer, None before the layer is built."""
    return getattr(getattr(layer, "_random_generator", None), "_generator", None)
