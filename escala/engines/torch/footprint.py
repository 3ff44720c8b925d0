"""The memory that a model takes while it trains: a lower bound."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from types import ModuleType

import torch
from torch import nn

from escala.data.base import Spec
from escala.engines.base import Footprint
from escala.engines.torch.building import build, dtype_of
from escala.workloads.models import given

#: What is kept for so many rows is compared, to find what is kept for one. Normalisation refuses a
#: single row.
_ROWS = (2, 3)


def workload_footprint(
    work: ModuleType,
    specs: Sequence[Spec],
    outputs: tuple[int, ...],
    settings: Mapping,
    knobs: Mapping,
) -> Footprint:
    """Return the footprint of the model of a workload, which is built for it."""
    rate = settings["learning_rate"]["value"]
    optimizer_for = partial(work.optimizer, settings=settings, learning_rate=rate, knobs=knobs)
    return footprint(build(work, specs, outputs, settings, knobs), optimizer_for, specs)


def footprint(
    model: nn.Module,
    optimizer_for: Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer],
    specs: Sequence[Spec],
) -> Footprint:
    """Return the footprint of a model on the processor; its buffers may change.

    Parameters
    ----------
    optimizer_for : returns the optimizer of some parameters.
    specs : of the inputs.
    """
    trained = sum(_bytes(each) for each in model.parameters() if each.requires_grad)
    few, more = (_kept(model, specs, rows) for rows in _ROWS)
    return Footprint(
        sum(map(_bytes, (*model.parameters(), *model.buffers()))),
        _copies(optimizer_for) * trained,
        # All gradients are there when the optimizer begins.
        trained,
        max(0, more - few),
    )


def _copies(optimizer_for: Callable) -> int:
    """Return how many numbers an optimizer keeps for each one of a parameter, which is a matrix."""
    size = 64
    parameter = nn.Parameter(torch.zeros(size, size))
    optimizer = optimizer_for([parameter])
    parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    kept = optimizer.state.get(parameter, {}).values()
    return sum(each.numel() for each in kept if isinstance(each, torch.Tensor)) // size**2


def _kept(model: nn.Module, specs: Sequence[Spec], rows: int) -> int:
    """Return the bytes that a forward pass of some rows keeps for the backward pass."""
    held = {each.untyped_storage().data_ptr() for each in (*model.parameters(), *model.buffers())}
    found: dict[int, int] = {}

    def note(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in held:
            found[storage.data_ptr()] = storage.nbytes()
        return tensor

    inputs = [torch.zeros((rows, *spec.shape), dtype=dtype_of(spec)) for spec in specs]
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        model(given(inputs))
    return sum(found.values())


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()
