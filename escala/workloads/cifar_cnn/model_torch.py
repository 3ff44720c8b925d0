"""Three blocks of convolutions and a dense layer in PyTorch, as in `model`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from escala.data.base import Spec
from escala.engines.torch import layers, optimizers
from escala.workloads.cifar_cnn import FILTERS, NEURONS, require_size


def build(
    specs: Sequence[Spec], outputs: tuple[int], settings: Mapping, knobs: Mapping
) -> nn.Module:
    """Build the network for one input, pictures of shape (height, width, colours).

    It gives the logarithms of the probabilities.

    Raises
    ------
    InputError : the pictures are too small.
    """
    [pictures], [classes] = specs, outputs
    require_size(pictures.shape)
    *sides, channels = pictures.shape
    dropout, found = settings["dropout"], [layers.Pixels(pictures), layers.ChannelsFirst()]
    for filters in FILTERS:
        found += [
            layers.convolution_2d(channels, filters, 3, padding="same"),
            nn.ReLU(),
            layers.convolution_2d(filters, filters, 3),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Dropout(dropout),
        ]
        channels, sides = filters, [(side - 2) // 2 for side in sides]
    found += [
        layers.Flatten(),
        layers.dense(channels * sides[0] * sides[1], NEURONS),
        nn.ReLU(),
        nn.Dropout(2 * dropout),
        layers.dense(NEURONS, classes),
        nn.LogSoftmax(-1),
    ]
    return nn.Sequential(*found)


def optimizer(
    parameters: Iterable[nn.Parameter], settings: Mapping, learning_rate: float, knobs: Mapping
) -> torch.optim.Optimizer:
    """Return RMSprop."""
    return optimizers.optimizer("rmsprop", parameters, learning_rate, settings)


#: The outputs are logarithms of the probabilities.
probabilities, row_losses = layers.probabilities, layers.class_losses
