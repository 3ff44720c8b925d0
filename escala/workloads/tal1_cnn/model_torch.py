"""The motif classifier in PyTorch, as in `model`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import nn

from escala.data.base import Spec
from escala.engines.torch import layers, optimizers
from escala.workloads.tal1_cnn import require_width

#: Keras keeps probabilities this far from 0 and 1 in the loss.
EPSILON = 1e-7


class TAL1CNN(nn.Module):
    """The network for one-hot letters (rows, length, 4); it gives the probability of both classes.

    The maximum over the places divides its gradient equally among places of one value, as in
    TensorFlow.
    """

    def __init__(self, letters: int, filters: int, width: int):
        super().__init__()
        self.convolution = layers.convolution_1d(letters, filters, width)
        self.dense = layers.dense(filters, 1)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        letters = sequences.to(torch.get_default_dtype()).movedim(-1, 1)
        matches = self.convolution(letters).relu()
        motif = self.dense(matches.amax(-1)).sigmoid()
        return torch.cat([1 - motif, motif], 1)


def build(
    specs: Sequence[Spec], outputs: tuple[int], settings: Mapping, knobs: Mapping
) -> nn.Module:
    """Build convolution, global maximum, and one sigmoid unit; see `model.build`.

    Raises
    ------
    InputError : a filter is wider than a sequence is long.
    """
    [sequence] = specs
    length, letters = sequence.shape
    require_width(settings["width"], length)
    return TAL1CNN(letters, settings["filters"], settings["width"])


def optimizer(
    parameters: Iterable[nn.Parameter], settings: Mapping, learning_rate: float, knobs: Mapping
) -> torch.optim.Optimizer:
    """Return Adam."""
    return optimizers.optimizer("adam", parameters, learning_rate, settings)


def row_losses(targets: torch.Tensor, outputs: torch.Tensor, settings: Mapping) -> torch.Tensor:
    """Return the binary cross-entropy of every row in nats, float32 (rows,)."""
    kept = outputs.clamp(EPSILON, 1 - EPSILON)
    # The probabilities of both classes; Keras adds epsilon to each, too.
    return -torch.log(kept.gather(1, targets.long()[:, None]) + EPSILON).squeeze(1)
