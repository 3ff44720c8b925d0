"""Layers and optimizers as in Keras: initial weights, padding, channels last.

Between layers, the axis of channels comes after the rows, as in PyTorch. `Flatten` moves the
channels to the end, so that a dense kernel after `Flatten` has its rows in Keras's order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import torch
from torch import nn
from torch.nn import functional

from escala.data.base import Spec
from escala.engines.layers import (
    GLOROT,
    ONES,
    STEP,
    ZEROS,
    Law,
    uniform,
    variance_scaling,
)
from escala.engines.torch import arrays

__all__ = ["ACTIVATIONS", "uniform", "variance_scaling"]
ACTIVATIONS = {
    "linear": nn.Identity,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "softplus": nn.Softplus,
    "tanh": nn.Tanh,
}


class BatchNorm2d(nn.BatchNorm2d):
    """PyTorch's layer, which also accepts a single value of a channel: one row of one pixel.

    PyTorch refuses a single value. Here, as in Keras, the value is its own mean, and the variance
    is 0. The last step of an epoch may have one row, and a rank without rows always has one row.
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

    Parameters, buffers and arguments are as in `torch.nn.BatchNorm2d`. Ranks compute the results of
    one process with all rows, for any numbers of rows of the ranks. The running statistics of all
    ranks are equal after every step. `torch.nn.SyncBatchNorm` refuses processors, and also counts
    the filler row: a rank without rows computes one row of weight 0.
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
        if step is not None and step.total is not None:
            moments = step.total(moments)
        rows, sums, squares = moments.split([1, values.shape[1], values.shape[1]])
        mean = sums / rows
        variance = (squares / rows - mean.square()).clamp(min=0).float()
        mean, rows = mean.float(), rows.float()
        with torch.no_grad():
            # As in Keras, whose layer divides by one row less for pictures.
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

    `escala.engines.layers` explains the computation.
    """
    axes = [0, *range(2, values.dim())]
    weighted = weights.view([-1] + [1] * (values.dim() - 1))
    rows = weights.sum() * (values[0, 0].numel())
    mean = (weighted * values).sum(axes) / rows.clamp(min=1.0)
    form = [1, -1] + [1] * (values.dim() - 2)
    deviations = (weighted * (values - mean.view(form)).square()).sum(axes)
    rows, mean, deviations = rows.double(), mean.double(), deviations.double()
    return torch.cat([rows.view(1), rows * mean, deviations + rows * mean.square()])


def layers_over_ranks(model: nn.Module) -> Sequence[SynchronisedBatchNorm]:
    """Return the layers of a model that normalise over all ranks."""
    return [layer for layer in model.modules() if isinstance(layer, SynchronisedBatchNorm)]


def dense(inputs: int, units: int, kernel: Law = GLOROT, bias: Law = ZEROS) -> nn.Linear:
    """Return a dense layer without activation."""
    return with_laws(nn.Linear(inputs, units), kernel=kernel, bias=bias)


def embedding(numbers: int, units: int) -> nn.Embedding:
    """Return a layer that maps numbers below `numbers` to vectors."""
    return with_laws(nn.Embedding(numbers, units), embeddings=uniform(0.05))


def convolution_1d(inputs: int, filters: int, width: int) -> nn.Conv1d:
    """Return a convolution of (rows, inputs, places) without padding."""
    return with_laws(_Conv1d(inputs, filters, width), kernel=GLOROT, bias=ZEROS)


def convolution_2d(
    inputs: int,
    filters: int,
    width: int,
    stride: int = 1,
    padding: str | int = "valid",
    bias: bool = True,
    kernel: Law = GLOROT,
) -> nn.Conv2d:
    """Return a convolution of pictures (rows, inputs, height, width).

    Parameters
    ----------
    padding : `valid`, `same` as in Keras, or the number of zeros on each side.
    """
    layer: type[nn.Conv2d] = nn.Conv2d
    if padding == "same" and (stride > 1 or width % 2 == 0):
        layer, padding = _PaddedConv2d, "valid"
    sides = {"valid": 0, "same": width // 2}.get(padding, padding)
    return with_laws(
        layer(inputs, filters, width, stride, sides, bias=bias), kernel=kernel, bias=ZEROS
    )


def batch_normalisation(
    channels: int,
    momentum: float = 0.99,
    epsilon: float = 1e-3,
    kind: type[nn.modules.batchnorm._BatchNorm] = BatchNorm2d,
) -> nn.modules.batchnorm._BatchNorm:
    """Return a batch normalisation.

    Parameters
    ----------
    momentum : fraction of the old value that a moving statistic keeps, as in Keras.
    """
    layer = kind(channels, epsilon, 1 - momentum)
    return with_laws(layer, gamma=ONES, beta=ZEROS, moving_mean=ZEROS, moving_variance=ONES)


def with_laws(layer: nn.Module, **laws: Law) -> nn.Module:
    """Return a layer with initial values by these laws, seeded by PyTorch's generator.

    Parameters
    ----------
    laws : laws by the names of the layer's arrays (`escala.engines.torch.arrays`).
    """
    layer.laws = laws
    arrays.initialise(layer, int(torch.randint(2**62, ())))
    return layer


class Pixels(nn.Module):
    """Pictures (rows, height, width, colours) as numbers from 0 to 1 of PyTorch's default type.

    Parameters
    ----------
    spec : uint8 from 0 to 255, or float16 from 0 to 1.
    """

    def __init__(self, spec: Spec):
        super().__init__()
        self.scale = 1 / 255 if spec.dtype == "uint8" else 1.0

    def forward(self, pictures: torch.Tensor) -> torch.Tensor:
        """Return the pixels with the colours last."""
        return pictures.to(torch.get_default_dtype()) * self.scale


class ChannelsFirst(nn.Module):
    """Put the channels, the last axis, after the rows."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.movedim(-1, 1)


class Flatten(nn.Module):
    """Flatten values, whose channels come after the rows, in the order of Keras, channels last."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.movedim(1, -1).flatten(1)


class _Conv1d(nn.Conv1d):
    """A convolution, computed as convolution of pictures of height 1, with channels last in memory.

    With many channels it takes 0.6 of the time.
    """

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        kernel = self.weight.unsqueeze(2)
        return functional.conv2d(values.unsqueeze(2), kernel, self.bias).squeeze(2)


class MaxPool1d(nn.Module):
    """The maximum over each `width` places, with the channels last in memory."""

    def __init__(self, width: int):
        super().__init__()
        self.width = width

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return functional.max_pool2d(values.unsqueeze(2), (1, self.width)).squeeze(2)


class MaxPool2d(nn.Module):
    """The maximum over squares of `width`, with Keras's padding `same`."""

    def __init__(self, width: int, stride: int):
        super().__init__()
        self.width, self.stride = width, stride

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        padded = pad_same(values, self.width, self.stride, float("-inf"))
        return functional.max_pool2d(padded, self.width, self.stride)


class _PaddedConv2d(nn.Conv2d):
    """A convolution with steps and Keras's padding `same`."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return super().forward(pad_same(values, self.kernel_size[0], self.stride[0]))


def pad_same(pictures: torch.Tensor, width: int, stride: int, value: float = 0.0) -> torch.Tensor:
    """Return pictures padded so that squares of `width` have ⌈size / stride⌉ places.

    If the number of added values is odd, the end gets one more value than the beginning, as in
    Keras. PyTorch would add equal numbers on both sides.
    """
    sides: list[int] = []
    for size in (pictures.shape[-1], pictures.shape[-2]):
        added = max((-(-size // stride) - 1) * stride + width - size, 0)
        sides += [added // 2, added - added // 2]
    return functional.pad(pictures, sides, value=value) if any(sides) else pictures


def last_activation(cost: str, output: str) -> nn.Module:
    """Return the activation of the last layer of a neural network for classification.

    Parameters
    ----------
    cost : with `cross-entropy` it gives logarithms of probabilities, for `class_losses`.
    output : the activation for other costs: `softmax`, or one of `ACTIVATIONS`.
    """
    if cost == "cross-entropy":
        return nn.LogSoftmax(-1)
    return nn.Softmax(-1) if output == "softmax" else ACTIVATIONS[output]()


def probabilities(outputs, settings) -> torch.Tensor:
    """Return probabilities of classes from logarithms, as a workload's `probabilities`."""
    return outputs.exp()


def class_losses(targets, outputs, settings=None) -> torch.Tensor:
    """Return the categorical cross-entropy of every row in nats, as a workload's `row_losses`.

    Parameters
    ----------
    targets : class numbers, (rows,).
    outputs : logarithms of the probabilities, (rows, classes).
    settings : the workload's settings, without influence on the loss.
    """
    return functional.nll_loss(outputs, targets.long(), reduction="none")


def class_distances(targets: torch.Tensor, outputs: torch.Tensor) -> torch.Tensor:
    """Return the squared distance of every row's outputs from its one-hot class, (rows,)."""
    wanted = functional.one_hot(targets.long(), outputs.shape[-1])
    return (wanted - outputs).square().sum(-1)


#: ε of the optimizers below, which have Keras's formulas (TensorFlow 2.15,
#: keras/optimizers/rmsprop.py and adam.py). The step of RMSprop is g / √(v + ε), where v decays by
#: 0.9. The step of Adam is √(1 - β₂ᵗ) / (1 - β₁ᵗ) · m / (√v + ε). PyTorch's optimizers add ε at
#: another place, and have other constants.
EPSILON = 1e-7


class RMSprop(torch.optim.Optimizer):
    """Keras's RMSprop: epsilon is inside the square root."""

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float, rho: float = 0.9):
        super().__init__(parameters, {"lr": learning_rate, "rho": rho, "eps": EPSILON})

    @torch.no_grad()
    def step(self, closure: None = None):
        """Update the parameters that have a gradient."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if not weights:
                continue
            gradients = [weight.grad for weight in weights]
            for weight in weights:
                if not self.state[weight]:
                    self.state[weight]["squares"] = torch.zeros_like(weight)
            # Moving means of the squared gradients, initially 0.
            squares = [self.state[weight]["squares"] for weight in weights]
            torch._foreach_mul_(squares, group["rho"])
            torch._foreach_addcmul_(squares, gradients, gradients, 1 - group["rho"])
            roots = torch._foreach_add(squares, group["eps"])
            torch._foreach_sqrt_(roots)
            torch._foreach_addcdiv_(weights, gradients, roots, -group["lr"])


class Adam(torch.optim.Adam):
    """Keras's Adam, in which the correction of the second moment does not change epsilon.

    So this is PyTorch's Adam with a different epsilon in each step.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float):
        super().__init__(parameters, learning_rate, eps=EPSILON)

    def step(self, closure: Callable | None = None):
        """Update the parameters that have a gradient."""
        for group in self.param_groups:
            _, beta = group["betas"]
            steps = (self.state[weight].get("step", 0) for weight in group["params"])
            group["eps"] = EPSILON / math.sqrt(1 - beta ** (int(next(steps, 0)) + 1))
        return super().step(closure)


#: Functions that return an optimizer for parameters and a learning rate, by name.
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": Adam,
    "rmsprop": RMSprop,
    "sgd": torch.optim.SGD,
}


def optimizer_by(name: str | None = None) -> Callable:
    """Return the function `optimizer` of a workload: for a name, or by the setting `optimizer`."""
    return lambda parameters, settings, rate, knobs: OPTIMIZERS[name or settings["optimizer"]](
        parameters, rate
    )
