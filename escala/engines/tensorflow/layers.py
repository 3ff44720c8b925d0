"""Layers of Keras: their weights and graphs, inputs, losses, normalisation over ranks, VGG16."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import tensorflow as tf

from escala.core.errors import InputError
from escala.data.base import Spec
from escala.engines import layers
from escala.engines.layers import STEP


def layers_of(model: tf.keras.Model) -> list[tf.keras.layers.Layer]:
    """Return a model and all layers in it, also inside layers, wrappers, cells, lists and models.

    `submodules` of TensorFlow also searches the caches of layers. So it fails for cells with
    dropout that are part of two graphs.
    """
    return [*model._flatten_layers()]


#: Names of layers' variables whose initial values are drawn by laws (`escala.engines.layers.Law`).
_NAMES = (
    *("kernel", "bias", "embeddings", "recurrent_kernel", "depthwise_kernel", "pointwise_kernel"),
    *("gamma", "beta", "moving_mean", "moving_variance"),
)
_KERAS = tf.keras.initializers


def initialise(model: tf.keras.Model, seed: int) -> None:
    """Set the weights of a model to the initial values of a seed, equal under every engine.

    Raises
    ------
    InputError : an initialiser has no law in `escala.engines.layers`.
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
    """Return the law of an initialiser of Keras, or None if it has no law here."""
    if isinstance(initialiser, _KERAS.VarianceScaling):
        # Keras has another name for the normal law without limits.
        distribution = initialiser.distribution.removeprefix("untruncated_")
        return layers.variance_scaling(initialiser.scale, initialiser.mode, distribution)
    if isinstance(initialiser, _KERAS.Orthogonal) and initialiser.gain == 1:
        return layers.orthogonal
    if isinstance(initialiser, _KERAS.RandomUniform) and initialiser.minval == -initialiser.maxval:
        return layers.uniform(initialiser.maxval)
    constants = {_KERAS.Zeros: layers.ZEROS, _KERAS.Ones: layers.ONES}
    return next((law for kind, law in constants.items() if isinstance(initialiser, kind)), None)


def seed_random_layers(model: tf.keras.Model, *seed: int) -> None:
    """Set the seeds of a model's random layers, such as `Dropout`.

    So the random numbers of an epoch do not depend on earlier epochs, and a resumed run draws the
    same numbers as an uninterrupted run. Within one `tf.distribute` strategy each replica draws its
    own numbers from the same state. The non-negative numbers of `seed` identify the run, the
    process and the epoch.
    """
    kind = tf.keras.__internal__.layers.BaseRandomLayer
    generators = [
        getattr(getattr(layer, "_random_generator", None), "_generator", None)
        for layer in layers_of(model)
        if isinstance(layer, kind)
    ]
    # A wrapper may keep a layer that it never builds, as `Bidirectional` does, or a layer without
    # random numbers. Such a layer has no generator.
    for number, generator in enumerate(
        generator for generator in generators if generator is not None
    ):
        [key] = np.random.SeedSequence([*seed, number]).generate_state(1, np.uint64)
        generator.reset_from_seed(int(key))


def use_generators() -> None:
    """Make Keras's random layers draw from generators whose state can be set.

    The default operations of these layers hide their state. Call this before a model is built.
    """
    tf.keras.backend.experimental.enable_tf_random_generator()


AUTOGRAPH = tf.__internal__.autograph


def as_graph(**options: Any) -> Callable[[Callable], Callable]:
    """Return a decorator that compiles a function by `tf.function`, without its AutoGraph.

    Inside the function Keras still applies AutoGraph to the `call` of layers and models whose
    classes are not part of Keras. With `tf.function(autograph=False)` alone, Keras would not
    convert these methods. `options` are options of `tf.function`.
    """

    def decorate(function: Callable) -> Callable:
        context = AUTOGRAPH.control_status_ctx()
        unconverted = AUTOGRAPH.tf_convert(function, context, convert_by_default=False)
        return tf.function(unconverted, autograph=False, **options)

    return decorate


def picture_input(spec: Spec) -> tuple[tf.Tensor, tf.Tensor]:
    """Return the input of a neural network for pictures, and the pixels as float32 from 0 to 1.

    Pictures are uint8 from 0 to 255 or float16 from 0 to 1, of shape (height, width, colours).
    """
    pictures = tf.keras.layers.Input(spec.shape, dtype=spec.dtype)
    largest = 255.0 if spec.dtype == "uint8" else 1.0
    return pictures, tf.keras.layers.Rescaling(1 / largest)(pictures)


#: Functions that return an optimizer for a learning rate, by name.
OPTIMIZERS = {
    "adam": tf.keras.optimizers.Adam,
    "rmsprop": tf.keras.optimizers.RMSprop,
    "sgd": tf.keras.optimizers.SGD,
}


def optimizer_by(name: str | None = None) -> Callable:
    """Return the function `optimizer` of a workload: for a name, or by the setting `optimizer`."""
    return lambda settings, rate, knobs: OPTIMIZERS[name or settings["optimizer"]](rate)


def row_losses(targets, outputs, settings) -> tf.Tensor:
    """Return the categorical cross-entropy of every row in nats; targets are class numbers."""
    return tf.keras.losses.sparse_categorical_crossentropy(targets, outputs)


def class_squares(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
    """Return the squared differences of outputs from one-hot classes, (rows, classes)."""
    return tf.square(tf.one_hot(targets, outputs.shape[-1], dtype=outputs.dtype) - outputs)


class SynchronisedBatchNormalization(tf.keras.layers.BatchNormalization):
    """Normalise each channel, the last axis, over the rows of a step on all ranks.

    The layer has the variables of Keras's layer. Mean and variance are over all rows, computed from
    the sums of each rank. So ranks compute the results of one process with all rows, for any
    numbers of rows of the ranks. The moving statistics of all ranks are equal after every step. As
    in Keras, the moving variance of pictures is unbiased, and a frozen layer uses its moving
    statistics.

    Horovod's `SyncBatchNormalization` averages the ranks' means with equal weights, and Keras's
    `synchronized=True` knows only the ranks of `tf.distribute`, and also counts the filler row: a
    rank without rows computes one row of weight 0.
    """

    def build(self, input_shape):
        super().build(input_shape)
        if list(self.axis) != [len(input_shape) - 1]:
            raise ValueError(f"{self.name} normalises the last axis only, not axis {self.axis}")

    def call(self, inputs, training=None):
        if not (training and self.trainable):
            return super().call(inputs, training=False)
        step = STEP.get()
        values = tf.cast(inputs, tf.float32)
        weights = tf.ones(tf.shape(values)[:1]) if step is None else step.weights
        moments = _moments(values, weights)
        if step is not None:
            moments = step.total(moments, f"{next(step.numbers)}.{self.name}")
        channels = values.shape[-1]
        rows, sums, squares = tf.split(moments, [1, channels, channels])
        means = sums / rows
        variances = tf.maximum(squares / rows - tf.square(means), 0.0)
        rows, mean, variance = (tf.cast(moment, tf.float32) for moment in (rows, means, variances))
        # For pictures, Keras's layer uses a fused operation, which divides by one row less.
        spread = variance * rows / tf.maximum(rows - 1, 1.0) if self.fused else variance
        for moving, value in ((self.moving_mean, mean), (self.moving_variance, spread)):
            moving.assign(moving * self.momentum + value * (1 - self.momentum))
        normalised = tf.nn.batch_normalization(
            values, mean, variance, self.beta, self.gamma, self.epsilon
        )
        return tf.cast(normalised, inputs.dtype)


def _moments(values: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """Return count, sums and sums of squares of each channel, float64 (1 + 2 · channels,).

    `escala.engines.layers` explains the computation.
    """
    axes = list(range(values.shape.rank - 1))
    weighted = tf.reshape(weights, [-1] + [1] * len(axes))
    places = tf.reduce_prod(tf.shape(values)[1:-1])
    rows = tf.reduce_sum(weights) * tf.cast(places, tf.float32)
    mean = tf.reduce_sum(weighted * values, axes) / tf.maximum(rows, 1.0)
    deviations = tf.reduce_sum(weighted * tf.square(values - mean), axes)
    rows, mean, deviations = (tf.cast(moment, tf.float64) for moment in (rows, mean, deviations))
    return tf.concat([[rows], rows * mean, deviations + rows * tf.square(mean)], 0)


def layers_over_ranks(model: tf.keras.Model) -> Sequence[SynchronisedBatchNormalization]:
    """Return the layers of a model that normalise over all ranks."""
    return [
        layer for layer in layers_of(model) if isinstance(layer, SynchronisedBatchNormalization)
    ]


def make_functions(engine: str, described: dict, arrays: dict) -> list[Callable]:
    """Return the function of VGG16 from pictures, uint8 (pictures, 224, 224, 3), to features.

    `escala.engines.elsewhere` calls this; `engine` and `arrays` are unused here. `described` names
    the file of `weights`, and the `layer` whose outputs are the features.
    """
    whole = tf.keras.applications.VGG16(weights=None)
    whole.load_weights(described["weights"])
    model = tf.keras.Model(whole.input, whole.get_layer(described["layer"]).output)

    def compute(inputs: tuple[np.ndarray]) -> np.ndarray:
        [pictures] = inputs
        prepared = tf.keras.applications.vgg16.preprocess_input(pictures.astype(np.float32))
        return model.predict_on_batch(prepared)

    return [compute]
