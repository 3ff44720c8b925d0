"""The network of `model` in PyTorch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from escala.engines.torch import arrays, layers
from escala.engines.torch.layers import SynchronisedBatchNorm


class Local(nn.BatchNorm1d):
    """Batch normalisation of a rank's own rows; as Keras's it keeps the variance of the rows."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if not self.training:
            return super().forward(rows)
        rows = rows.float()
        variance, mean = torch.var_mean(rows, 0, correction=0)
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance, self.momentum)
        return (rows - mean) * (variance + self.eps).rsqrt() * self.weight + self.bias


class Masks(nn.Module):
    """Pass rows on, and write what dropout would keep of them: a file a process, a line a step."""

    def __init__(self, folder: str):
        super().__init__()
        self.folder = Path(folder)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.training:
            kept = functional.dropout(torch.ones_like(rows), 0.5, training=True) > 0
            self.folder.mkdir(exist_ok=True)
            with open(self.folder / str(os.getpid()), "a") as file:
                file.write(f"{kept.numpy().tobytes().hex()}\n")
        return rows


class Rescaled(nn.Module):
    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        return codes * 0.25


def build(specs, outputs, settings, knobs) -> nn.Module:
    """Build the network with the initial weights of a file, the arrays of the Keras model."""
    [codes], [classes] = specs, outputs
    local = knobs.get("batch_norm", "local") == "local"
    normalisation = (Local if local else SynchronisedBatchNorm)(8, eps=1e-3, momentum=1 - 0.8)
    network = nn.Sequential(
        Rescaled(),
        nn.Linear(*codes.shape, 8),
        normalisation,
        nn.ReLU(),
        nn.Dropout(settings["dropout"]),
        nn.Linear(8, classes),
        nn.LogSoftmax(-1),
        *([Masks(settings["masks"])] if "masks" in settings else []),
    )
    if "begin" in settings:
        with np.load(settings["begin"]) as kept:
            arrays.set_values(network, kept)
    return network


def optimizer(parameters, settings, learning_rate, knobs) -> torch.optim.Optimizer:
    parameters = list(parameters)
    if "masks" in settings:
        held = sum(getattr(each, "to_local", lambda e=each: e)().numel() for each in parameters)
        Path(settings["masks"]).with_name(f"held-{os.getpid()}").write_text(str(held))
    name = settings.get("optimizer", "sgd")
    return layers.OPTIMIZERS[name](parameters, learning_rate)


def row_losses(targets: torch.Tensor, outputs: torch.Tensor, settings: Mapping) -> torch.Tensor:
    return functional.nll_loss(outputs, targets, reduction="none")


def row_scores(targets: torch.Tensor, outputs: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the probability given to the right class."""
    return {"likelihood": outputs.exp().gather(1, targets[:, None])[:, 0]}
