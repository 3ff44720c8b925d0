"""Batch normalisation over the rows of all ranks, on processors too."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from escala.engines.layers import STEP


class BatchNorm2d(nn.BatchNorm2d):
    """PyTorch's layer, for which a channel may have a single value, as one row of one pixel has.

    PyTorch refuses it. Here, as in Keras, the value is its own mean, and the variance is 0. The
    last step of an epoch may have one row, and so has a rank without rows.
    """

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training or input.numel() > self.num_features:
            return super().forward(input)
        with torch.no_grad():
            self.running_mean.lerp_(input.flatten().float(), self.momentum)
            self.running_var.mul_(1 - self.momentum)
        form = (1, -1, 1, 1)
        return (input - input) * self.weight.view(form) + self.bias.view(form)


class SynchronisedBatchNorm(nn.modules.batchnorm._BatchNorm):
    """Normalise each channel, the second axis, over the rows of a step on all ranks.

    Parameters, buffers and arguments are those of `torch.nn.BatchNorm2d`. Mean and variance are
    those of all rows, computed from the sums of each rank. So ranks compute what one process with
    all rows computes, whatever the number of rows of each rank, and their running statistics are
    equal after every step. `torch.nn.SyncBatchNorm` refuses processors, and counts the row of
    weight 0 that an empty share gets.
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected rows and channels, got the shape {tuple(input.shape)}")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        values = input.float()
        step = STEP.get()
        weights = torch.ones(len(values), device=values.device) if step is None else step.weights
        moments = _moments(values, weights)
        if step is not None and step.summed is not None:
            moments = step.summed(moments)
        rows, sums, squares = moments.split([1, values.shape[1], values.shape[1]])
        mean = sums / rows
        variance = (squares / rows - mean.square()).clamp(min=0).float()
        mean, rows = mean.float(), rows.float()
        with torch.no_grad():
            # As Keras, whose layer for pictures divides by one row less.
            spread = variance * (rows / (rows - 1).clamp(min=1)) if values.dim() > 2 else variance
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(spread, self.momentum)
        form = [1, -1] + [1] * (values.dim() - 2)
        scale = (variance + self.eps).rsqrt()
        shift = -mean * scale
        if self.affine:
            shift = shift * self.weight + self.bias
            scale = scale * self.weight
        return (values * scale.view(form) + shift.view(form)).to(input.dtype)


def _moments(values: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return count, sums and sums of squares of each channel, float64 (1 + 2 · channels,).

    Where a mean is large, the variance is a small difference of two large numbers. So squares of
    deviations from the rank's own mean are summed in 32 bits, and only these sums are converted to
    64 bits.
    """
    axes = [0, *range(2, values.dim())]
    weighted = weights.view([-1] + [1] * (values.dim() - 1))
    rows = weights.sum() * (values[0, 0].numel())
    mean = (weighted * values).sum(axes) / rows.clamp(min=1.0)
    form = [1, -1] + [1] * (values.dim() - 2)
    deviations = (weighted * (values - mean.view(form)).square()).sum(axes)
    rows, mean, deviations = rows.double(), mean.double(), deviations.double()
    return torch.cat([rows.view(1), rows * mean, deviations + rows * mean.square()])


def synchronised(model: nn.Module) -> Sequence[SynchronisedBatchNorm]:
    """Return the layers of a model that normalise over all ranks."""
    return [each for each in model.modules() if isinstance(each, SynchronisedBatchNorm)]
