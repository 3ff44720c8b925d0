"""Dense layers with dropout for pictures in PyTorch, as in `model`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from escala.data.base import Spec
from escala.engines.torch import layers


def build(
    specs: Sequence[Spec], outputs: tuple[int], settings: Mapping, knobs: Mapping
) -> nn.Module:
    """Build the network for one input, pictures of shape (height, width, colours).

    With `cross-entropy` it gives the logarithms of the probabilities.
    """
    [pictures], [classes] = specs, outputs
    found: list[nn.Module] = [layers.Pixels(pictures), nn.Flatten()]
    inputs = math.prod(pictures.shape)
    for neurons in settings["neurons"]:
        activation = layers.ACTIVATIONS[settings["activation"]]()
        found += [layers.dense(inputs, neurons), activation, nn.Dropout(settings["dropout"])]
        inputs = neurons
    last = layers.last_activation(settings["cost"], settings["output"])
    return nn.Sequential(*found, layers.dense(inputs, classes), last)


def optimizer(
    parameters: Iterable[nn.Parameter], settings: Mapping, learning_rate: float, knobs: Mapping
) -> torch.optim.Optimizer:
    """Return RMSprop, or stochastic gradient descent without momentum."""
    return layers.OPTIMIZERS[settings["optimizer"]](parameters, learning_rate)


def row_losses(targets: torch.Tensor, outputs: torch.Tensor, settings: Mapping) -> torch.Tensor:
    """Return the cost of every row, float32 (rows,); targets are class numbers."""
    if settings["cost"] == "cross-entropy":
        return layers.class_losses(targets, outputs)
    return layers.squared_distances(targets, outputs) / outputs.shape[-1]
