"""Optimizers in the form of Keras, and in PyTorch's own.

They differ in where epsilon stands and in their constants:

=======  ====================================  ============================================
         `keras`                               `pytorch`
=======  ====================================  ============================================
RMSprop  g / √(v + 1e-7), v decays by 0.9      g / (√v + 1e-8), v decays by 0.99
Adam     √(1 - β₂ᵗ) / (1 - β₁ᵗ) · m /          m / (1 - β₁ᵗ) / (√(v / (1 - β₂ᵗ)) + 1e-8)
         (√v + 1e-7)
SGD      g                                     g
=======  ====================================  ============================================

The forms of Keras are those of TensorFlow 2.15, keras/optimizers/rmsprop.py and adam.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

KERAS, PYTORCH = "keras", "pytorch"
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


#: By name and form, an optimizer of parameters and a learning rate.
OPTIMIZERS: dict[tuple[str, str], Callable[..., torch.optim.Optimizer]] = {
    ("adam", KERAS): Adam,
    ("adam", PYTORCH): torch.optim.Adam,
    ("rmsprop", KERAS): RMSprop,
    ("rmsprop", PYTORCH): torch.optim.RMSprop,
    ("sgd", KERAS): torch.optim.SGD,
    ("sgd", PYTORCH): torch.optim.SGD,
}


def optimizer(
    name: str,
    parameters: Iterable[nn.Parameter],
    learning_rate: float,
    settings: Mapping[str, Any],
) -> torch.optim.Optimizer:
    """Return the optimizer `adam`, `rmsprop` or `sgd`.

    Parameters
    ----------
    settings : those of a workload; its `optimizer_form` is `keras`, the default, or `pytorch`.
    """
    return OPTIMIZERS[name, settings.get("optimizer_form", KERAS)](parameters, learning_rate)
