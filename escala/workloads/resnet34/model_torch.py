"""ResNet of basic blocks in PyTorch, as in `model`; it gives the logarithms of probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from escala.data.base import Spec
from escala.engines.torch import layers
from escala.engines.torch.layers import BatchNorm2d, SynchronisedBatchNorm
from escala.workloads.resnet34 import BLOCKS, EPSILON, MOMENTUM

NORMALISATIONS = {"local": BatchNorm2d, "synchronised": SynchronisedBatchNorm}


class ResNet(nn.Module):
    """The network for pictures (rows, height, width, colours).

    Parameters
    ----------
    blocks : the number of blocks in each stage.
    form : `keras` or `pytorch`: how to pad, and the initial weights.
    normalisation : the class of the layers for batch normalisation.
    """

    def __init__(
        self,
        pictures: Spec,
        classes: int,
        blocks: Sequence[int],
        width: int,
        form: str,
        normalisation: type,
    ):
        super().__init__()
        self.pixels = nn.Sequential(layers.Pixels(pictures), layers.ChannelsFirst())
        self.stem = _convolution(pictures.shape[-1], width, 7, 2, form)
        self.norm = layers.batch_normalisation(width, MOMENTUM, EPSILON, normalisation)
        self.pool = nn.MaxPool2d(3, 2, 1) if form == "pytorch" else layers.MaxPool2d(3, 2)
        self.blocks = nn.Sequential()
        inputs = width
        for stage, count in enumerate(blocks):
            for number in range(count):
                stride, filters = 2 if stage and not number else 1, width * 2**stage
                self.blocks.append(Block(inputs, filters, stride, form, normalisation))
                inputs = filters
        law, bias = layers.GLOROT, layers.ZEROS
        if form == "pytorch":
            law = bias = layers.uniform(1 / math.sqrt(inputs))
        self.dense = layers.dense(inputs, classes, law, bias)

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        stem = self.norm(self.stem(self.pixels(pictures))).relu()
        return self.dense(self.blocks(self.pool(stem)).mean((2, 3))).log_softmax(-1)


class Block(nn.Module):
    """The sum of two convolutions and their input, after ReLU.

    Its layers are registered in the order of the Keras model, in which the layers of the shortcut
    are next to the second convolution.
    """

    def __init__(self, inputs: int, filters: int, stride: int, form: str, normalisation: type):
        super().__init__()
        same = stride == 1 and inputs == filters
        self.first = _convolution(inputs, filters, 3, stride, form)
        self.first_norm = layers.batch_normalisation(filters, MOMENTUM, EPSILON, normalisation)
        self.second = _convolution(filters, filters, 3, 1, form)
        self.shortcut = None if same else _convolution(inputs, filters, 1, stride, form)
        self.second_norm = layers.batch_normalisation(filters, MOMENTUM, EPSILON, normalisation)
        self.shortcut_norm = (
            None if same else layers.batch_normalisation(filters, MOMENTUM, EPSILON, normalisation)
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        values = self.first_norm(self.first(inputs)).relu()
        values = self.second_norm(self.second(values))
        shortcut = self.shortcut_norm(self.shortcut(inputs)) if self.shortcut else inputs
        return (values + shortcut).relu()


def build(specs, outputs, settings, knobs) -> nn.Module:
    """Build the network for one input, pictures of shape (height, width, colours)."""
    [pictures], [classes] = specs, outputs
    blocks, normalisation = BLOCKS[settings["depth"]], NORMALISATIONS[knobs["batch_norm"]]
    return ResNet(pictures, classes, blocks, settings["width"], settings["form"], normalisation)


def _convolution(inputs: int, filters: int, width: int, stride: int, form: str) -> nn.Conv2d:
    """Return a convolution without bias."""
    padding, distribution = "same", "truncated_normal"
    if form == "pytorch":
        padding, distribution = width // 2, "normal"
    law = layers.variance_scaling(2, "fan_out", distribution)
    return layers.convolution_2d(inputs, filters, width, stride, padding, bias=False, kernel=law)


optimizer = layers.optimizer_by("sgd")


#: The outputs are logarithms of the probabilities.
probabilities, row_losses = layers.probabilities, layers.class_losses
