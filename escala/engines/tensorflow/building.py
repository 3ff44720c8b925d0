"""The layers of a model of Keras, their initial weights and random numbers, and their graphs."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import tensorflow as tf

from escala.core.errors import InputError
from escala.engines import layers


def layers_of(model: tf.keras.Model) -> list[tf.keras.layers.Layer]:
    """Return a model with all layers in it, in layers, wrappers, cells, lists and models.

    `submodules` of TensorFlow also looks into what layers cache. It fails for cells with dropout
    once they are part of two graphs.
    """
    return [*model._flatten_layers()]


#: Names of the variables of layers, which are drawn by laws.
_NAMES = (
    *("kernel", "bias", "embeddings", "recurrent_kernel", "depthwise_kernel", "pointwise_kernel"),
    *("gamma", "beta", "moving_mean", "moving_variance"),
)
_KERAS = tf.keras.initializers


def initialise(model: tf.keras.Model, seed: int) -> None:
    """Set the weights of a model to those that a seed gives under every engine.

    Raises
    ------
    InputError : an initialiser has no law here.
    """
    known = {}
    for layer, name in product(layers_of(model), _NAMES):
        if isinstance(variable := getattr(layer, name, None), tf.Variable):
            forgets = name == "bias" and getattr(layer, "unit_forget_bias", False)
            initialiser = getattr(layer, f"{name.removesuffix('_kernel')}_initializer", None)
            known[variable.ref()] = layers.forget_gate if forgets else _law(initialiser)
    laws = [(known.get(variable.ref()), tuple(variable.shape)) for variable in model.weights]
    for variable, value in zip(model.weights, layers.draw_weights(laws, seed), strict=True):
        if value is None:
            raise InputError(
                "initial_weights",
                layers.SEEDED,
                f"{variable.name} begins by an initialiser that is not known outside of TensorFlow",
                "remove the setting, or use VarianceScaling, Orthogonal, RandomUniform from -x to "
                "x, Zeros or Ones",
            )
        variable.assign(value)


def _law(initialiser: object) -> layers.Law | None:
    """Return the law of an initialiser of Keras, None if it has none here."""
    if isinstance(initialiser, _KERAS.VarianceScaling):
        # Keras names the normal law without limits otherwise.
        distribution = initialiser.distribution.removeprefix("untruncated_")
        return layers.variance_scaling(initialiser.scale, initialiser.mode, distribution)
    if isinstance(initialiser, _KERAS.Orthogonal) and initialiser.gain == 1:
        return layers.orthogonal
    if isinstance(initialiser, _KERAS.RandomUniform) and initialiser.minval == -initialiser.maxval:
        return layers.uniform(initialiser.maxval)
    constants = {_KERAS.Zeros: layers.ZEROS, _KERAS.Ones: layers.ONES}
    return next((law for kind, law in constants.items() if isinstance(initialiser, kind)), None)


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


AUTOGRAPH = tf.__internal__.autograph


def as_graph(**options: Any) -> Callable[[Callable], Callable]:
    """Return a decorator that compiles a function as `tf.function` does, without AutoGraph.

    Inside the function Keras still applies AutoGraph to the `call` of layers and models whose
    classes are not part of Keras. With `tf.function(autograph=False)` alone, Keras would not
    convert them. `options` are those of `tf.function`.
    """

    def decorate(function: Callable) -> Callable:
        context = AUTOGRAPH.control_status_ctx()
        unconverted = AUTOGRAPH.tf_convert(function, context, convert_by_default=False)
        return tf.function(unconverted, autograph=False, **options)

    return decorate
