"""A multilayer perceptron in PyTorch: dense layers with one activation, as in `model`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import nn

from escala.data.base import Spec
from escala.engines.torch import layers


def build(
    specs: Sequence[Spec], outputs: tuple[int], settings: Mapping, knobs: Mapping
) -> nn.Module:
    """Build the network for rows of features; see `model.build`.

    With `cross-entropy` it gives the logarithms of the probabilities.
    """
    [features], [classes] = specs, outputs
    sizes = [*features.shape, *settings["layers"]]
    found: list[nn.Module] = []
    for inputs, neurons in pairwise(sizes):
        found += [layers.dense(inputs, neurons), _activation(settings)]
    last = layers.last_activation(settings["cost"], settings["output"])
    return nn.Sequential(*found, layers.dense(sizes[-1], classes), last)


def optimizer(
    parameters: Iterable[nn.Parameter], settings: Mapping, learning_rate: float, knobs: Mapping
) -> torch.optim.Optimizer:
    """Return stochastic gradient descent without momentum."""
    return layers.OPTIMIZERS["sgd"](parameters, learning_rate)


def probabilities(outputs: torch.Tensor, settings: Mapping) -> torch.Tensor:
    """Return what the Keras model gives for the classes."""
    return outputs.exp() if settings["cost"] == "cross-entropy" else outputs


def row_losses(targets: torch.Tensor, outputs: torch.Tensor, settings: Mapping) -> torch.Tensor:
    """Return the cost of every row, float32 (rows,).

    Parameters
    ----------
    targets : class numbers, int64 (rows,).
    outputs : float32 (rows, classes).
    """
    if settings["cost"] == "cross-entropy":
        return layers.class_losses(targets, outputs)
    return layers.squared_distances(targets, outputs) / 2


def _activation(settings: Mapping) -> nn.Module:
    if settings["activation"] == "leaky-relu":
        return nn.LeakyReLU(settings["negative_slope"])
    return layers.ACTIVATIONS[settings["activation"]]()
