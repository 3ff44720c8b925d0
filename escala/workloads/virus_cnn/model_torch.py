"""The convolutional virus classifier in PyTorch, layer by layer as in `model`."""

from __future__ import annotations

import torch
from torch import nn

from escala.engines.torch import layers
from escala.workloads.virus_cnn import require_plain_layers

CODES = 5


class VirusCNN(nn.Module):
    """The network for codes (rows, letters), uint8 from 0 to 4; it gives log-probabilities."""

    def __init__(self, length: int, classes: int):
        super().__init__()
        self.embedding = layers.embedding(CODES, 8)
        self.convolutions = nn.Sequential(
            layers.ChannelsFirst(),
            layers.convolution_1d(8, 128, 2),
            nn.ReLU(),
            layers.MaxPool1d(2),
            layers.convolution_1d(128, 64, 2),
            nn.ReLU(),
            layers.MaxPool1d(2),
            layers.Flatten(),
        )
        places = ((length - 1) // 2 - 1) // 2
        self.dense = nn.Sequential(
            layers.dense(64 * places, 128),
            nn.ReLU(),
            layers.dense(128, 64),
            nn.ReLU(),
            layers.dense(64, classes),
            nn.LogSoftmax(-1),
        )

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        return self.dense(self.convolutions(self.embedding(codes.int())))


def build(specs, outputs, settings, knobs) -> nn.Module:
    """Build the network for the only input, the codes.

    Raises
    ------
    Unavailable : a knob has a value that only TensorFlow's engine has.
    """
    require_plain_layers(knobs)
    [codes], [classes] = specs, outputs
    return VirusCNN(*codes.shape, classes)


optimizer = layers.optimizer_by("rmsprop")


#: The outputs are logarithms of the probabilities.
probabilities, row_losses = layers.probabilities, layers.class_losses
