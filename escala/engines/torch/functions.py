"""Functions of a workload for PyTorch, and the parts of its model that training would ignore."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from escala.core.errors import InputError
from escala.engines import functions
from escala.engines.functions import WHY_IGNORED, file_of, find_unread
from escala.engines.torch import arrays
from escala.workloads.models import as_model_input

#: Names of methods that trainers of other libraries call.
UNCALLED = ("training_step", "validation_step", "configure_optimizers", "compute_loss")
#: Names in a module `model_torch` that Escala does not use.
UNREAD = ("callbacks", "scheduler", "lr_scheduler", "collate_fn", *UNCALLED)


class Functions(functions.Functions):
    a_model = f"a torch.nn.Module of PyTorch {torch.__version__}"
    tensor = staticmethod(torch.tensor)

    def array(self, tensor):
        return np.asarray(tensor.detach())

    def is_model(self, model):
        return isinstance(model, torch.nn.Module)

    def require_trainable(self, model, specs):
        if not any(weight.requires_grad for weight in model.parameters()):
            remedy = (
                "keep layers as attributes of the module, or in an nn.ModuleList in place of a list"
            )
            raise InputError(file_of(self.work), None, "nothing of the model is trained", remedy)

    def find_ignored(self, model, optimizer):
        for name in UNCALLED:
            if hasattr(model, name):
                yield (
                    f"the model has its own {name}, which is never called: {WHY_IGNORED}",
                    f"remove {name}, and express it by forward and row_losses",
                )
        if not model.training:
            yield (
                "the model is in the mode of evaluation, in which dropout and normalisation do "
                "nothing",
                "return model.train(); single layers in it may stay in the mode of evaluation",
            )
        yield from find_unread(self.work, UNREAD)
        if not isinstance(optimizer, torch.optim.Optimizer):
            yield (
                f"optimizer returns {type(optimizer).__name__}, and not an optimizer of PyTorch",
                "return a torch.optim.Optimizer",
            )
            return
        if isinstance(optimizer, torch.optim.LBFGS):
            yield (
                "LBFGS computes the loss several times in a step, and a step here computes it once",
                "return another optimizer, such as torch.optim.Adam",
            )
        updated = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
        for name, parameter in model.named_parameters():
            if parameter.requires_grad and id(parameter) not in updated:
                yield (
                    f"the optimizer does not update {name}, whose gradient is computed and "
                    "exchanged",
                    "give it all parameters, or set requires_grad_(False) for those that stay",
                )

    def shapes(self, model):
        return [array.shape for array in arrays.arrays(model)]

    def with_weights(self, model, weights):
        arrays.set_values(model, weights)
        return model

    def output_form(self, model, specs):
        device = next(model.parameters()).device
        rows = [
            torch.zeros((1, *spec.shape), dtype=getattr(torch, spec.dtype), device=device)
            for spec in specs
        ]
        with torch.no_grad(), in_evaluation_mode(model):
            result = model(as_model_input(rows))
        shape = tuple(result.shape) if isinstance(result, torch.Tensor) else ()
        form = f" of the shape {shape}" if shape else ""
        self.require_one_output(shape[:1] == (1,), f"a {type(result).__name__}{form}")
        return shape[1:]

    def outputs(self, model, inputs):
        return model(as_model_input(inputs))

    def compile(self, model, function, specs):
        device = next(model.parameters()).device

        @torch.no_grad()
        def run(*rows: np.ndarray):
            # The arrays may be mapped files, and a model may not change files.
            tensors = [torch.from_numpy(np.array(array)).to(device) for array in rows]
            with in_evaluation_mode(model):
                result = function(*tensors)
            if isinstance(result, torch.Tensor):
                return result.cpu().numpy()
            predictions, sums = result
            return predictions.cpu().numpy(), sums

        return run

    def most_probable(self, outputs):
        return outputs.argmax(-1)

    def is_most_probable(self, targets, outputs):
        return (self.most_probable(outputs) == targets).float()

    @torch.no_grad()
    def outputs_of(self, model, weights, inputs):
        with in_evaluation_mode(model):
            return super().outputs_of(model, weights, inputs)

    def gradients(self, model, weights, inputs, targets):
        outputs = model(as_model_input([self.tensor(array) for array in inputs]))
        loss = self.work.row_losses(self.tensor(targets), outputs, self.settings).sum()
        trained = {n: weight for n, weight in model.named_parameters() if weight.requires_grad}
        computed = [None] * len(trained)
        if loss.requires_grad:
            computed = torch.autograd.grad(loss, [*trained.values()], allow_unused=True)
        return [
            (name, gradient if gradient is None else gradient.to_dense().numpy())
            for name, gradient in zip(trained, computed, strict=True)
        ]

    def trainable_arrays(self, model):
        return [
            (array.name, array.shape, array.tensor.element_size())
            for array in arrays.arrays(model)
            if array.trained
        ]


@contextmanager
def in_evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Set a model to evaluation within this context, then restore the mode of each layer.

    So a layer that the workload has frozen by `eval()` stays frozen.
    """
    training = [layer for layer in model.modules() if layer.training]
    model.eval()
    try:
        yield
    finally:
        for layer in training:
            layer.training = True
