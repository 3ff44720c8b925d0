"""Functions of a workload as PyTorch takes them, and what training would ignore of its model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from escala.core.errors import InputError
from escala.engines import functions
from escala.engines.functions import STEPS, file_of, unread
from escala.engines.torch import arrays
from escala.workloads.models import given

#: What trainers of other libraries call, by name.
UNCALLED = ("training_step", "validation_step", "configure_optimizers", "compute_loss")
#: What a module `model_torch` may hold that nothing here uses.
UNREAD = ("callbacks", "scheduler", "lr_scheduler", "collate_fn", *UNCALLED)


class Functions(functions.Functions):
    no_model = f"not a module of PyTorch {torch.__version__}"
    a_model = "a torch.nn.Module"
    tensor = staticmethod(torch.tensor)

    def array(self, tensor):
        return np.asarray(tensor.detach())

    def is_model(self, model):
        return isinstance(model, torch.nn.Module)

    def require_trainable(self, model, specs):
        if not any(each.requires_grad for each in model.parameters()):
            remedy = "keep layers as attributes of the module, or in an nn.ModuleList in place of "
            reason, remedy = "nothing of the model is trained", f"{remedy}a list"
            raise InputError(file_of(self.work), None, reason, remedy)

    def find_ignored(self, model, optimizer):
        for name in UNCALLED:
            if hasattr(model, name):
                yield (
                    f"the model has its own {name}, which is never called: {STEPS}",
                    f"remove {name}, and express it by forward and row_losses",
                )
        if not model.training:
            reason = (
                "the model is in the mode of evaluation, in which dropout and normalisation do "
            )
            yield f"{reason}nothing", "return model.train(); a layer in it may stay in this mode"
        yield from unread(self.work, UNREAD)
        if not isinstance(optimizer, torch.optim.Optimizer):
            yield (
                f"optimizer returns {type(optimizer).__name__}, and not an optimizer of PyTorch",
                "return a torch.optim.Optimizer",
            )
            return
        if isinstance(optimizer, torch.optim.LBFGS):
            reason = "LBFGS computes the loss several times in a step, and a step here computes it "
            reason += "once"
            yield reason, "return another optimizer, such as torch.optim.Adam"
        updated = {id(each) for group in optimizer.param_groups for each in group["params"]}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and id(parameter) not in updated:
                yield (
                    f"the optimizer does not update {name}, whose gradient is computed and "
                    "exchanged",
                    "give it all parameters, or set requires_grad_(False) for those that stay",
                )

    def shapes(self, model):
        return [each.shape for each in arrays.arrays(model)]

    def with_weights(self, model, weights):
        arrays.set_values(model, weights)
        return model

    def output_form(self, model, specs):
        device = next(model.parameters()).device
        rows = [
            torch.zeros((1, *spec.shape), dtype=getattr(torch, spec.dtype), device=device)
            for spec in specs
        ]
        with torch.no_grad(), evaluation(model):
            result = model(given(rows))
        if not isinstance(result, torch.Tensor) or result.shape[:1] != (1,):
            kind = f"a {type(result).__name__}"
            if isinstance(result, torch.Tensor):
                kind = f"a tensor of the shape {tuple(result.shape)}"
            remedy = "give one tensor with the rows in front, such as all outputs joined by "
            remedy += "torch.cat, and one target array, and take them apart in row_losses"
            raise InputError(
                file_of(self.work), None, f"the model gives {kind} for one row", remedy
            )
        return tuple(result.shape[1:])

    def outputs(self, model, inputs):
        return model(given(inputs))

    def compile(self, model, function, specs):
        device = next(model.parameters()).device

        @torch.no_grad()
        def run(*rows: np.ndarray):
            # The arrays may be mapped files, which no model may change.
            tensors = [torch.from_numpy(np.array(each)).to(device) for each in rows]
            with evaluation(model):
                found = function(*tensors)
            if isinstance(found, torch.Tensor):
                return found.cpu().numpy()
            predictions, sums = found
            return predictions.cpu().numpy(), sums

        return run

    def most_probable(self, outputs):
        return outputs.argmax(-1)

    def is_most_probable(self, targets, outputs):
        return (self.most_probable(outputs) == targets).float()

    @torch.no_grad()
    def outputs_of(self, model, weights, inputs):
        with evaluation(model):
            return super().outputs_of(model, weights, inputs)

    def gradients(self, model, weights, inputs, targets):
        outputs = model(given([self.tensor(each) for each in inputs]))
        loss = self.work.row_losses(self.tensor(targets), outputs, self.settings).sum()
        named = [each for each in model.named_parameters() if each[1].requires_grad]
        computed = [None] * len(named)
        if loss.requires_grad:
            computed = torch.autograd.grad(loss, [each for _, each in named], allow_unused=True)
        return [
            (name, each if each is None else each.to_dense().numpy())
            for (name, _), each in zip(named, computed, strict=True)
        ]

    def trainable_arrays(self, model):
        # In Keras's layout, as elsewhere; how many numbers there are is all that counts here.
        return [
            (each.name, each.shape, each.tensor.element_size())
            for each in arrays.arrays(model)
            if each.trained
        ]


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
