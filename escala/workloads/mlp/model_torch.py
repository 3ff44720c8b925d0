"""A multilayer perceptron in PyTorch: dense layers with one activation, as in `model`."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn

from escala.engines.torch import layers


def build(specs, outputs, settings, knobs) -> nn.Module:
    """Build the network for rows of features; see `model.build`.

    With `cross-entropy` the network gives the logarithms of the probabilities.
    """
    [features], [classes] = specs, outputs
    sizes = [*features.shape, *settings["layers"]]
    activation = layers.ACTIVATIONS.get(settings["activation"])
    modules: list[nn.Module] = []
    for inputs, neurons in pairwise(sizes):
        hidden = activation() if activation else nn.LeakyReLU(settings["negative_slope"])
        modules += [layers.dense(inputs, neurons), hidden]
    last = layers.last_activation(settings["cost"], settings["output"])
    return nn.Sequential(*modules, layers.dense(sizes[-1], classes), last)


optimizer = layers.optimizer_by("sgd")


def probabilities(outputs, settings) -> torch.Tensor:
    """Return the outputs that the Keras model gives for the classes."""
    return outputs.exp() if settings["cost"] == "cross-entropy" else outputs


def row_losses(targets, outputs, settings) -> torch.Tensor:
    """Return the cost of every row, float32 (rows,).

    Parameters
    ----------
    targets : class numbers, int64 (rows,).
    outputs : float32 (rows, classes).
    """
    if settings["cost"] == "cross-entropy":
        return layers.class_losses(targets, outputs)
    return layers.class_distances(targets, outputs) / 2
