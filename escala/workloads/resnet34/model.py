"""ResNet (He et al. 2016, arXiv 1512.03385) of basic blocks, as Cruz Varona (2021) trained it.

A 7 × 7 stem, four stages of basic blocks, 1 × 1 shortcuts with batch normalisation where a stage
begins, and one dense layer. Convolutions have no bias. Batch normalisation has the decay and the
constant of PyTorch, in which the source work was written. It is over the rows of each rank, as in
PyTorch's DistributedDataParallel, or over those of all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import tensorflow as tf
from tensorflow.keras import layers

from escala.data.base import Spec
from escala.engines.tensorflow.layers import (
    SynchronisedBatchNormalization,
    picture_input,
    row_losses,
)
from escala.workloads.resnet34 import BLOCKS, EPSILON, MOMENTUM

__all__ = ["build", "optimizer", "row_losses"]

#: Layers by the values of the knob `batch_norm`.
NORMALISATIONS = {
    "local": layers.BatchNormalization,
    "synchronised": SynchronisedBatchNormalization,
}


def build(
    specs: Sequence[Spec], outputs: tuple[int], settings: Mapping, knobs: Mapping
) -> tf.keras.Model:
    """Build the network for one input, pictures of shape (height, width, colours)."""
    [pictures], [classes] = specs, outputs
    convolved = partial(
        _convolve, form=settings["form"], normalisation=NORMALISATIONS[knobs["batch_norm"]]
    )
    given, pixels = picture_input(pictures)
    found = layers.ReLU()(convolved(pixels, settings["width"], 7, 2))
    # After ReLU, a maximum over added zeros is that over the rest.
    found, padding = _pad(found, 3, settings["form"])
    found = layers.MaxPooling2D(3, 2, padding=padding)(found)
    for stage, blocks in enumerate(BLOCKS[settings["depth"]]):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            found = _block(found, settings["width"] * 2**stage, stride, convolved)
    found = layers.GlobalAveragePooling2D()(found)
    initial = _dense_initial(found.shape[-1]) if settings["form"] == "pytorch" else {}
    last = layers.Dense(classes, "softmax", **initial)(found)
    return tf.keras.Model(given, last, name=f"resnet{settings['depth']}")


def _block(given: tf.Tensor, filters: int, stride: int, convolved: Callable) -> tf.Tensor:
    """Return the sum of two convolutions and their input, after ReLU."""
    found = layers.ReLU()(convolved(given, filters, 3, stride))
    found = convolved(found, filters, 3, 1)
    same = stride == 1 and given.shape[-1] == filters
    shortcut = given if same else convolved(given, filters, 1, stride)
    return layers.ReLU()(layers.Add()([found, shortcut]))


def _convolve(
    given: tf.Tensor, filters: int, width: int, stride: int, form: str, normalisation: type
) -> tf.Tensor:
    """Return a convolution without bias, normalised over the batch by a layer of this class."""
    law = "untruncated_normal" if form == "pytorch" else "truncated_normal"
    padded, padding = _pad(given, width, form)
    found = layers.Conv2D(
        filters,
        width,
        stride,
        padding=padding,
        use_bias=False,
        # As PyTorch's models: He et al. 2015 (arXiv 1502.01852), by the outputs of a layer.
        kernel_initializer=tf.keras.initializers.VarianceScaling(2.0, "fan_out", law),
    )(padded)
    return normalisation(momentum=MOMENTUM, epsilon=EPSILON)(found)


def _pad(given: tf.Tensor, width: int, form: str) -> tuple[tf.Tensor, str]:
    """Return pictures with zeros on each side in PyTorch's form, and the padding that is left."""
    if form != "pytorch":
        return given, "same"
    return (layers.ZeroPadding2D(width // 2)(given) if width > 1 else given), "valid"


def _dense_initial(inputs: int) -> dict[str, tf.keras.initializers.Initializer]:
    """Return the initial weights of PyTorch's dense layer: kernel and bias by one uniform law."""
    limit = 1 / math.sqrt(inputs)
    law = tf.keras.initializers.RandomUniform
    return {"kernel_initializer": law(-limit, limit), "bias_initializer": law(-limit, limit)}


def optimizer(
    settings: Mapping, learning_rate: float, knobs: Mapping
) -> tf.keras.optimizers.Optimizer:
    """Return stochastic gradient descent without momentum."""
    return tf.keras.optimizers.SGD(learning_rate)
