"""Dense layers with dropout for pictures in PyTorch, as in `model`."""

from __future__ import annotations

import math

import torch
from torch import nn

from escala.engines.torch import layers


def build(specs, outputs, settings, knobs) -> nn.Module:
    """Build the network for one input, pictures of shape (height, width, colours).

    With `cross-entropy` the network gives the logarithms of the probabilities.
    """
    [pictures], [classes] = specs, outputs
    modules: list[nn.Module] = [layers.Pixels(pictures), nn.Flatten()]
    inputs = math.prod(pictures.shape)
    for neurons in settings["neurons"]:
        activation = layers.ACTIVATIONS[settings["activation"]]()
        modules += [layers.dense(inputs, neurons), activation, nn.Dropout(settings["dropout"])]
        inputs = neurons
    last = layers.last_activation(settings["cost"], settings["output"])
    return nn.Sequential(*modules, layers.dense(inputs, classes), last)


optimizer = layers.optimizer_by()


def row_losses(targets, outputs, settings) -> torch.Tensor:
    """Return the cost of every row, float32 (rows,); targets are class numbers."""
    if settings["cost"] == "cross-entropy":
        return layers.class_losses(targets, outputs)
    return layers.class_distances(targets, outputs) / outputs.shape[-1]
