"""ResNet (He et al. 2016, arXiv 1512.03385) of basic blocks, as Cruz Varona (2021) trained it.

A 7 × 7 stem, four stages of basic blocks, 1 × 1 shortcuts with batch normalisation where a stage
begins, and one dense layer. Convolutions have no bias. Batch normalisation has the decay and the
constant of PyTorch, in which the source work was written. It is over the rows of each rank, as in
PyTorch's DistributedDataParallel, or over those of all ranks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import tensorflow as tf
from tensorflow.keras import layers

from escala.data.base import Spec
from escala.engines.tensorflow.normalisation import SynchronisedBatchNormalization
from escala.workloads.pictures import picture_input, row_losses

__all__ = ["build", "optimizer", "row_losses"]

#: Blocks of each stage, by depth.
BLOCKS = {10: (1, 1, 1, 1), 18: (2, 2, 2, 2), 34: (3, 4, 6, 3)}
#: Layers by the values of the knob `batch_norm`.
NORMALISATIONS = {
    "local": layers.BatchNormalization,
    "synchronised": SynchronisedBatchNormalization,
}
#: PyTorch's momentum of 0.1 is the fraction of the new value.
MOMENTUM, EPSILON = 0.9, 1e-5


def build(
    specs: Sequence[Spec], outputs: tuple[int], settings: Mapping, knobs: Mapping
) -> tf.keras.Model:
    """Build the network for one input, pictures of shape (height, width, colours)."""
    [pictures], [classes] = specs, outputs
    normalisation = NORMALISATIONS[knobs["batch_norm"]]
    given, pixels = picture_input(pictures)
    found = layers.ReLU()(_convolved(pixels, settings["width"], 7, 2, normalisation))
    found = layers.MaxPooling2D(3, 2, padding="same")(found)
    for stage, blocks in enumerate(BLOCKS[settings["depth"]]):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            found = _block(found, settings["width"] * 2**stage, stride, normalisation)
    found = layers.GlobalAveragePooling2D()(found)
    name = f"resnet{settings['depth']}"
    return tf.keras.Model(given, layers.Dense(classes, "softmax")(found), name=name)


def _block(given: tf.Tensor, filters: int, stride: int, normalisation: type) -> tf.Tensor:
    """Return the sum of two convolutions and their input, after ReLU."""
    found = layers.ReLU()(_convolved(given, filters, 3, stride, normalisation))
    found = _convolved(found, filters, 3, 1, normalisation)
    same = stride == 1 and given.shape[-1] == filters
    shortcut = given if same else _convolved(given, filters, 1, stride, normalisation)
    return layers.ReLU()(layers.Add()([found, shortcut]))


def _convolved(
    given: tf.Tensor, filters: int, width: int, stride: int, normalisation: type
) -> tf.Tensor:
    """Return a convolution without bias, normalised over the batch by a layer of this class."""
    found = layers.Conv2D(
        filters,
        width,
        stride,
        padding="same",
        use_bias=False,
        # As PyTorch's models: He et al. 2015 (arXiv 1502.01852), by the outputs of a layer.
        kernel_initializer=tf.keras.initializers.VarianceScaling(2.0, "fan_out"),
    )(given)
    return normalisation(momentum=MOMENTUM, epsilon=EPSILON)(found)


def optimizer(
    settings: Mapping, learning_rate: float, knobs: Mapping
) -> tf.keras.optimizers.Optimizer:
    """Return stochastic gradient descent without momentum."""
    return tf.keras.optimizers.SGD(learning_rate)
