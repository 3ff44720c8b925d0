"""Initial weights of a Keras model by the laws of its initialisers, drawn without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterator

import tensorflow as tf

from escala.core.errors import InputError
from escala.engines import initial
from escala.engines.tensorflow.building import layers_of

_NAMES = (
    *("kernel", "bias", "embeddings", "recurrent_kernel", "depthwise_kernel", "pointwise_kernel"),
    *("gamma", "beta", "moving_mean", "moving_variance"),
)
#: Names of initialisers that differ from those of the variables.
_INITIALISERS = {"recurrent_kernel": "recurrent"}
_KERAS = tf.keras.initializers


def begin(model: tf.keras.Model, seed: int) -> None:
    """Set the weights of a model to those that a seed gives under every engine.

    Raises
    ------
    InputError : an initialiser has no law here.
    """
    known = {variable.ref(): law for layer in layers_of(model) for variable, law in _laws(layer)}
    laws = [(known.get(variable.ref()), tuple(variable.shape)) for variable in model.weights]
    for variable, value in zip(model.weights, initial.drawn(laws, seed), strict=True):
        if value is None:
            raise InputError(
                "initial_weights",
                initial.SEEDED,
                f"{variable.name} begins by an initialiser that is not known outside of TensorFlow",
                "remove the setting, or use VarianceScaling, Orthogonal, RandomUniform from -x to "
                "x, Zeros or Ones",
            )
        variable.assign(value)


def _laws(layer: tf.keras.layers.Layer) -> Iterator[tuple[tf.Variable, initial.Law | None]]:
    """Yield the variables of a layer itself with their laws."""
    for name in _NAMES:
        variable = getattr(layer, name, None)
        initialiser = getattr(layer, f"{_INITIALISERS.get(name, name)}_initializer", None)
        if isinstance(variable, tf.Variable):
            forgets = name == "bias" and getattr(layer, "unit_forget_bias", False)
            yield variable, initial.forget_gate if forgets else _law(initialiser)


def _law(initialiser: object) -> initial.Law | None:
    if isinstance(initialiser, _KERAS.VarianceScaling):
        # Keras names the normal law without limits otherwise.
        distribution = initialiser.distribution.removeprefix("untruncated_")
        return initial.variance_scaling(initialiser.scale, initialiser.mode, distribution)
    if isinstance(initialiser, _KERAS.Orthogonal) and initialiser.gain == 1:
        return initial.orthogonal
    if isinstance(initialiser, _KERAS.RandomUniform) and initialiser.minval == -initialiser.maxval:
        return initial.uniform(initialiser.maxval)
    constants = {_KERAS.Zeros: initial.ZEROS, _KERAS.Ones: initial.ONES}
    return next((law for kind, law in constants.items() if isinstance(initialiser, kind)), None)
