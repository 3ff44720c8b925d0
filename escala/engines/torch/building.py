"""Build the network of a workload, and refuse what training would ignore."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch
from torch import nn

from escala.core.errors import InputError
from escala.data.base import Spec
from escala.engines.base import STEPS, file_of, refuse, unread
from escala.workloads.models import given

#: What trainers of other libraries call, by name.
UNCALLED = ("training_step", "validation_step", "configure_optimizers", "compute_loss")
#: What a module `model_torch` may hold that nothing here uses.
UNREAD = ("callbacks", "scheduler", "lr_scheduler", "collate_fn", *UNCALLED)


def build(
    work: ModuleType,
    specs: Sequence[Spec],
    outputs: tuple[int, ...],
    settings: Mapping,
    knobs: Mapping,
) -> nn.Module:
    """Return the model of a workload, untrained, on the processor.

    Parameters
    ----------
    work : the module `model_torch` of the workload.
    specs, outputs, settings, knobs : the arguments of its `build`.

    Raises
    ------
    InputError : `build` gives no `torch.nn.Module`, or one without a parameter to train.
    """
    model = work.build(specs, outputs, settings, knobs)
    if not isinstance(model, nn.Module):
        raise InputError(
            file_of(work),
            None,
            f"build returns {type(model).__name__}, not a module of PyTorch {torch.__version__}",
            "return a torch.nn.Module",
        )
    if not any(each.requires_grad for each in model.parameters()):
        reason = "nothing of the model is trained"
        remedy = (
            "keep layers as attributes of the module, or in an nn.ModuleList in place of a list"
        )
        raise InputError(file_of(work), None, reason, remedy)
    return model


def output_form(work: ModuleType, model: nn.Module, specs: Sequence[Spec]) -> tuple[int, ...]:
    """Return the shape of a model's output for one row, which is computed.

    Raises
    ------
    InputError : the model gives something else than one tensor with the row in front.
    """
    device = next(model.parameters()).device
    rows = [torch.zeros((1, *spec.shape), dtype=dtype_of(spec), device=device) for spec in specs]
    with torch.no_grad(), evaluation(model):
        result = model(given(rows))
    if not isinstance(result, torch.Tensor) or result.shape[:1] != (1,):
        raise InputError(
            file_of(work),
            None,
            f"the model gives {_described(result)} for one row",
            "give one tensor with the rows in front, such as all outputs joined by torch.cat, and "
            "one target array, and take them apart in row_losses",
        )
    return tuple(result.shape[1:])


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Let a model evaluate, and leave each of its layers in the mode that it had.

    A layer that the workload has frozen by `eval()` stays so.
    """
    training = [layer for layer in model.modules() if layer.training]
    model.eval()
    try:
        yield
    finally:
        for layer in training:
            layer.training = True


def dtype_of(spec: Spec) -> torch.dtype:
    """Return PyTorch's type of the numbers of a spec."""
    return getattr(torch, spec.dtype)


def refuse_ignored(work: ModuleType, model: nn.Module, optimizer: Any) -> None:
    """Refuse a workload with a part that a run would ignore.

    Raises
    ------
    InputError : with the first such part, and what to do in its place.
    """
    refuse(work, _ignored(work, model, optimizer))


def _ignored(work: ModuleType, model: nn.Module, optimizer: Any) -> Iterator[tuple[str, str]]:
    """Yield what a run would ignore, each with the remedy."""
    for name in UNCALLED:
        if hasattr(model, name):
            yield (
                f"the model has its own {name}, which is never called: {STEPS}",
                f"remove {name}, and express it by forward and row_losses",
            )
    if not model.training:
        yield (
            "the model is in the mode of evaluation, in which dropout and normalisation do nothing",
            "return model.train(); a layer in it may stay in this mode",
        )
    yield from unread(work, UNREAD)
    if not isinstance(optimizer, torch.optim.Optimizer):
        yield (
            f"optimizer returns {type(optimizer).__name__}, and not an optimizer of PyTorch",
            "return a torch.optim.Optimizer",
        )
        return
    if isinstance(optimizer, torch.optim.LBFGS):
        reason = "LBFGS computes the loss several times in a step, and a step here computes it once"
        yield reason, "return another optimizer, such as torch.optim.Adam"
    updated = {id(each) for group in optimizer.param_groups for each in group["params"]}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and id(parameter) not in updated:
            yield (
                f"the optimizer does not update {name}, whose gradient is computed and exchanged",
                "give it all parameters, or set requires_grad_(False) for those that stay",
            )


def _described(result: Any) -> str:
    if isinstance(result, torch.Tensor):
        return f"a tensor of the shape {tuple(result.shape)}"
    return f"a {type(result).__name__}"
