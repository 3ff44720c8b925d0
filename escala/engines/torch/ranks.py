"""The processes of a run as PyTorch has them: how they join, exchange gradients and agree.

A strategy names one of the classes here or in a module beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from escala.engines.base import Group


class Ranks(Group):
    """One process among those of a run, and how its ranks exchange inside PyTorch.

    Attributes
    ----------
    divides_by : the number by which the exchange divides the sum of the gradients.
    """

    divides_by = 1

    def wrapped(self, model: nn.Module, watch: Callable | None = None) -> nn.Module:
        """Return what a step calls in place of the model, so that gradients are exchanged.

        It is called once, before the optimizer is built. It must leave the model's buffers alone,
        of which `agree` makes the mean; PyTorch's own wrappers send those of rank 0 by default.

        Parameters
        ----------
        watch : returns a communication hook with what a recorder adds; None in timing runs.
        """
        return model

    def alone(self) -> AbstractContextManager:
        """Return the context of forward and backward passes whose gradients are not exchanged."""
        return nullcontext()

    def summed(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sum of a tensor over all ranks inside a step, with its gradient.

        Every rank must call it.
        """
        return values

    def broadcast(self, tensors: Sequence[torch.Tensor]) -> None:
        """Give every rank the values that rank 0 holds."""

    def agree(self, buffers: Sequence[torch.Tensor], rows: int) -> None:
        """Make the buffers of all ranks equal: their mean, weighted by the rows of each rank.

        A rank without rows has not updated its buffers and has weight 0. Every process calls this.

        Parameters
        ----------
        rows : number of rows in the epoch, of this rank.
        """
        copy = [buffer.double().cpu().numpy() for buffer in buffers]
        for buffer, mean in zip(buffers, self.mean([copy], [rows]), strict=True):
            buffer.copy_(torch.from_numpy(mean))

    def divide(self) -> None:
        """Let this rank hold its part of each parameter only, if it does between steps."""


class Single(Ranks):
    """The only rank of a run."""
