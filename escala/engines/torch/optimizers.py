"""Optimizers in the form of Keras (TensorFlow 2.15, keras/optimizers/rmsprop.py and adam.py).

With ε = 1e-7, RMSprop's step is g / √(v + ε), where v decays by 0.9, and that of Adam
√(1 - β₂ᵗ) / (1 - β₁ᵗ) · m / (√v + ε). PyTorch's own add ε elsewhere, and have other constants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import torch
from torch import nn

EPSILON = 1e-7


class RMSprop(torch.optim.Optimizer):
    """Keras's RMSprop: epsilon stands inside of the square root."""

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float, rho: float = 0.9):
        super().__init__(parameters, {"lr": learning_rate, "rho": rho, "eps": EPSILON})

    @torch.no_grad()
    def step(self, closure: Callable | None = None):
        """Update the parameters that have a gradient."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            weights = [each for each in group["params"] if each.grad is not None]
            if not weights:
                continue
            gradients = [each.grad for each in weights]
            squares = [self._squares(each) for each in weights]
            torch._foreach_mul_(squares, group["rho"])
            torch._foreach_addcmul_(squares, gradients, gradients, 1 - group["rho"])
            roots = torch._foreach_add(squares, group["eps"])
            torch._foreach_sqrt_(roots)
            torch._foreach_addcdiv_(weights, gradients, roots, -group["lr"])
        return loss

    def _squares(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the mean of the squared gradients of a parameter, at first 0."""
        if not self.state[weight]:
            self.state[weight]["squares"] = torch.zeros_like(weight)
        return self.state[weight]["squares"]


class Adam(torch.optim.Adam):
    """Keras's Adam: epsilon is not divided by the correction of the second moment.

    So it is PyTorch's with an epsilon of its own in each step.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], learning_rate: float):
        super().__init__(parameters, learning_rate, eps=EPSILON)

    def step(self, closure: Callable | None = None):
        """Update the parameters that have a gradient."""
        for group in self.param_groups:
            _, beta = group["betas"]
            made = (self.state[each].get("step", 0) for each in group["params"])
            group["eps"] = EPSILON / math.sqrt(1 - beta ** (int(next(made, 0)) + 1))
        return super().step(closure)


#: By name, an optimizer of parameters and a learning rate.
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adam": Adam,
    "rmsprop": RMSprop,
    "sgd": torch.optim.SGD,
}
