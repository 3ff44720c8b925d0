"""Functions of a workload as PyTorch takes them."""

from __future__ import annotations

import numpy as np
import torch

from escala.engines import functions
from escala.engines.torch import arrays, building
from escala.workloads.models import given


class Functions(functions.Functions):
    def build(self, specs, outputs, knobs):
        return building.build(self.work, specs, outputs, self.settings, knobs)

    def shapes(self, model):
        return [each.shape for each in arrays.arrays(model)]

    def trained(self, model, weights):
        arrays.set_values(model, weights)
        return model

    def output_form(self, model, specs):
        return building.output_form(self.work, model, specs)

    def outputs(self, model, inputs):
        return model(given(inputs))

    def compiled(self, model, function, specs):
        device = next(model.parameters()).device

        @torch.no_grad()
        def run(*rows: np.ndarray):
            # The arrays may be mapped files, which no model may change.
            tensors = [torch.from_numpy(np.array(each)).to(device) for each in rows]
            with building.evaluation(model):
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
