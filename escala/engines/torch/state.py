"""All tensors that the steps of a process change: of the model, and of the optimizer.

Parameters and variables of the optimizer are *replicated*: equal on all ranks after any step.
Buffers, such as the running statistics of batch normalisation, are *local* to a rank during an
epoch, because each rank updates them with its own rows. At the end of every epoch the ranks make
them equal again (`Ranks.agree`). Layers that normalise over the rows of all ranks (`normalisation`)
keep theirs equal after any step.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from escala.core.errors import Unavailable
from escala.engines.torch.arrays import distribute_like, fill, whole
from escala.engines.torch.layers import synchronised


class State:
    """The parameters and buffers of a model, and what its optimizer keeps for each parameter.

    PyTorch's optimizers make their tensors in the first step. `restore_snapshot` notes which these
    are, so that a resumed run, which has made steps while it warmed up, can set them.
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer):
        self.model, self.optimizer = model, optimizer
        self._form: list[tuple[int, str, Any]] = []

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors of the model that a step may change."""
        return [*self.model.parameters(), *self.model.buffers()]

    def snapshot(self) -> tuple[list[torch.Tensor], dict]:
        """Return a copy of everything, for `restore_snapshot`."""
        return [t.detach().clone() for t in self.tensors], copy.deepcopy(
            self.optimizer.state_dict()
        )

    @torch.no_grad()
    def restore_snapshot(self, taken: tuple[list[torch.Tensor], dict]) -> None:
        """Set everything to what it was in a `snapshot`."""
        self._form = [(number, key, value) for number, key, value in self._optimizer_values()]
        tensors, optimizer_state = taken
        for tensor, value in zip(self.tensors, tensors, strict=True):
            tensor.copy_(value)
        self.optimizer.load_state_dict(optimizer_state)

    def _optimizer_values(self) -> Iterator[tuple[int, str, Any]]:
        """Yield what the optimizer keeps: number of the parameter, name, and the value."""
        for number, parameter in enumerate(self._parameters):
            for key, value in sorted(self.optimizer.state.get(parameter, {}).items()):
                if value is not None:
                    yield number, key, value

    @property
    def _parameters(self) -> list[torch.Tensor]:
        return [each for group in self.optimizer.param_groups for each in group["params"]]

    def values(self) -> list[np.ndarray]:
        """Return the values of all tensors of model and optimizer.

        Raises
        ------
        Unavailable : the optimizer keeps something else than tensors and numbers.
        """
        kept = [value for _, _, value in self._optimizer_values()]
        for value in kept:
            if not isinstance(value, torch.Tensor | int | float):
                raise Unavailable(
                    f"the optimizer {type(self.optimizer).__name__} keeps a {type(value).__name__},"
                    " which no checkpoint holds. Remedy: set checkpoint_epochs: null"
                )
        return [as_array(each) for each in (*self.tensors, *kept)]

    @torch.no_grad()
    def restore(self, values: Sequence[np.ndarray]) -> None:
        """Set the tensors to what `values` returned in a process of a run with as many ranks."""
        count = len(self.tensors)
        for tensor, value in zip(self.tensors, values[:count], strict=True):
            fill(tensor, torch.from_numpy(value))
        for (number, key, like), value in zip(self._form, values[count:], strict=True):
            self.optimizer.state[self._parameters[number]][key] = _as(like, value)


def as_array(value: torch.Tensor | float) -> np.ndarray:
    """Return the value of a tensor or number; bfloat16, which NumPy lacks, as float32."""
    if not isinstance(value, torch.Tensor):
        return np.array(value)
    value = whole(value.detach())
    return (value.float() if value.dtype == torch.bfloat16 else value).cpu().numpy().copy()


def _as(like: torch.Tensor | float, value: np.ndarray) -> torch.Tensor | float:
    """Return a value in the form of another one."""
    if isinstance(like, torch.Tensor):
        return distribute_like(like, torch.from_numpy(np.array(value)))
    return type(like)(value)


def local_buffers(model: nn.Module) -> list[torch.Tensor]:
    """Return the buffers that each rank updates by its own rows: those that hold floats.

    Statistics of the rows of all ranks are not among them: they are equal on all.
    """
    shared = {id(buffer) for layer in synchronised(model) for buffer in layer.buffers()}
    return [b for b in model.buffers() if b.is_floating_point() and id(b) not in shared]


def seed_random_layers(*seed: int) -> None:
    """Seed what layers such as `Dropout` draw.

    So the random numbers of an epoch do not depend on earlier ones, and a resumed run draws the
    same numbers as an uninterrupted one.

    Parameters
    ----------
    seed : non-negative integers that identify the run, the process and the epoch.
    """
    [key] = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    torch.manual_seed(int(key))
