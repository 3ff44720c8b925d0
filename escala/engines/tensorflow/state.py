"""The variables that steps change: which are equal on all ranks, and how.

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

from escala.engines.tensorflow.building import layers_of
from escala.engines.tensorflow.layers import layers_over_ranks
from escala.engines.tensorflow.ranks import Ranks


def local_variables(model: tf.keras.Model) -> list[tf.Variable]:
    """Return the variables that each rank updates by its own rows: floats that are not trainable.

    Weights of a frozen layer are not among them: they remain trainable variables. Neither are
    statistics of the rows of all ranks, which are equal on all.
    """
    shared = {id(v) for layer in layers_over_ranks(model) for v in layer.non_trainable_variables}
    variables = model.non_trainable_variables
    return [v for v in variables if not v.trainable and v.dtype.is_floating and id(v) not in shared]


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
    kind = tf.keras.__internal__.layers.BaseRandomLayer
    generators = [
        getattr(getattr(layer, "_random_generator", None), "_generator", None)
        for layer in layers_of(model)
        if isinstance(layer, kind)
    ]
    # A wrapper may keep a layer that it never builds, as `Bidirectional` does, or one without
    # chance. Such a layer has no generator.
    for number, generator in enumerate(
        generator for generator in generators if generator is not None
    ):
        [key] = np.random.SeedSequence([*seed, number]).generate_state(1, np.uint64)
        generator.reset_from_seed(int(key))


def use_generators() -> None:
    """Make Keras's random layers draw from generators whose state can be set.

    The operations that they use by default hide their state. Call this before a model is built.
    """
    tf.keras.backend.experimental.enable_tf_random_generator()
