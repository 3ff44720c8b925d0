"""ResNet (He et al. 2016, arXiv 1512.03385) of basic blocks, as Cruz Varona (2021) trained it.

The network has a 7 × 7 stem, four stages of basic blocks, 1 × 1 shortcuts with batch normalisation
at the start of a stage, and one dense layer. Convolutions have no bias. The source work used
PyTorch, so batch normalisation has PyTorch's decay and constant. Batch normalisation is over the
rows of each rank, as in PyTorch's DistributedDataParallel, or over the rows of all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import tensorflow as tf
from tensorflow.keras import layers

from escala.engines.tensorflow.layers import (
    SynchronisedBatchNormalization,
    optimizer_by,
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


def build(specs, outputs, settings, knobs) -> tf.keras.Model:
    """Build the network for one input, pictures of shape (height, width, colours)."""
    [pictures], [classes] = specs, outputs
    convolve = partial(
        _convolve, form=settings["form"], normalisation=NORMALISATIONS[knobs["batch_norm"]]
    )
    inputs, pixels = picture_input(pictures)
    values = layers.ReLU()(convolve(pixels, settings["width"], 7, 2))
    # After ReLU, added zeros do not change a maximum.
    values, padding = _pad(values, 3, settings["form"])
    values = layers.MaxPooling2D(3, 2, padding=padding)(values)
    for stage, blocks in enumerate(BLOCKS[settings["depth"]]):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            values = _block(values, settings["width"] * 2**stage, stride, convolve)
    values = layers.GlobalAveragePooling2D()(values)
    initial = {}
    if settings["form"] == "pytorch":
        # Initial kernel and bias are drawn by one uniform law, as in PyTorch's dense layer.
        limit = 1 / math.sqrt(values.shape[-1])
        for name in ("kernel_initializer", "bias_initializer"):
            initial[name] = tf.keras.initializers.RandomUniform(-limit, limit)
    last = layers.Dense(classes, "softmax", **initial)(values)
    return tf.keras.Model(inputs, last, name=f"resnet{settings['depth']}")


def _block(inputs: tf.Tensor, filters: int, stride: int, convolve: Callable) -> tf.Tensor:
    """Return the sum of two convolutions and their input, after ReLU."""
    values = layers.ReLU()(convolve(inputs, filters, 3, stride))
    values = convolve(values, filters, 3, 1)
    same = stride == 1 and inputs.shape[-1] == filters
    shortcut = inputs if same else convolve(inputs, filters, 1, stride)
    return layers.ReLU()(layers.Add()([values, shortcut]))


def _convolve(
    inputs: tf.Tensor, filters: int, width: int, stride: int, form: str, normalisation: type
) -> tf.Tensor:
    """Return a convolution without bias, with a layer of the class `normalisation` after it."""
    law = "untruncated_normal" if form == "pytorch" else "truncated_normal"
    padded, padding = _pad(inputs, width, form)
    values = layers.Conv2D(
        filters,
        width,
        stride,
        padding=padding,
        use_bias=False,
        # As in PyTorch's models: He et al. 2015 (arXiv 1502.01852), by the number of outputs of a
        # layer.
        kernel_initializer=tf.keras.initializers.VarianceScaling(2.0, "fan_out", law),
    )(padded)
    return normalisation(momentum=MOMENTUM, epsilon=EPSILON)(values)


def _pad(inputs: tf.Tensor, width: int, form: str) -> tuple[tf.Tensor, str]:
    """Return pictures, with zeros on each side for `pytorch`, and the padding for Keras's layer."""
    if form != "pytorch":
        return inputs, "same"
    return (layers.ZeroPadding2D(width // 2)(inputs) if width > 1 else inputs), "valid"


optimizer = optimizer_by("sgd")
