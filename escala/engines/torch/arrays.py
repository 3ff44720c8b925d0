"""The weights of a module as arrays in Keras's layout and order, which all engines use.

The arrays of a layer equal the arrays of the Keras layer of this type. A dense kernel is (inputs,
outputs), and a kernel of a convolution is (places…, inputs, filters). Layers come in the order in
which a module registers them. A workload registers layers in the order of its Keras model, so that
the arrays equal `Model.weights`. A tensor without a rule, such as a parameter of a user's own
layer, keeps its layout and comes after the other tensors of its layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from escala.core.errors import InputError
from escala.engines import layers

#: For each axis of Keras's array, its number in PyTorch's tensor.
Axes = tuple[int, ...]
#: By the type of a layer and the name of an attribute: the name of Keras's array, and the axes. The
#: name is empty if Keras has no such array.
_LAYERS: dict[type[nn.Module], dict[str, tuple]] = {
    nn.Linear: {"weight": ("kernel", 1, 0), "bias": ("bias", 0)},
    nn.Conv1d: {"weight": ("kernel", 2, 1, 0), "bias": ("bias", 0)},
    nn.Conv2d: {"weight": ("kernel", 2, 3, 1, 0), "bias": ("bias", 0)},
    nn.Embedding: {"weight": ("embeddings", 0, 1)},
    nn.modules.batchnorm._BatchNorm: {
        "weight": ("gamma", 0),
        "bias": ("beta", 0),
        "running_mean": ("moving_mean", 0),
        "running_var": ("moving_variance", 0),
        "num_batches_tracked": ("",),
    },
}


@dataclass(frozen=True)
class Array:
    """One array of a model.

    Attributes
    ----------
    name : path of the layer in the module, and the name that Keras gives to the array.
    tensor : the parameter or buffer that holds the array.
    axes : the axes of the tensor in the order of the array.
    law : the law of the initial value; None if the module sets its own initial value.
    """

    name: str
    tensor: torch.Tensor
    axes: Axes
    law: layers.Law | None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the array."""
        return tuple(self.tensor.shape[axis] for axis in self.axes)

    @property
    def trained(self) -> bool:
        """Return whether steps train the array. Statistics of a normalisation are not trained."""
        return self.tensor.requires_grad

    @property
    def value(self) -> np.ndarray:
        """A copy of the tensor, in the array's layout."""
        return np.array(as_array(self.tensor).transpose(self.axes), order="C")

    @torch.no_grad()
    def set(self, value: np.ndarray) -> None:
        """Set the tensor to the value of an array.

        Raises
        ------
        ValueError : the value has another shape.
        """
        if value.shape != self.shape:
            raise ValueError(f"{self.name} is {value.shape} in place of {self.shape}")
        whole = torch.empty(self.tensor.shape)
        whole.permute(self.axes).copy_(torch.from_numpy(np.array(value)))
        fill(self.tensor, whole)


def arrays(model: nn.Module) -> list[Array]:
    """Return the arrays of a model. An array of several layers is listed only at the first."""
    result, seen = [], set()
    for path, module in model.named_modules():
        tensors = dict(module.named_parameters(recurse=False))
        tensors |= dict(module.named_buffers(recurse=False))
        for name in module._non_persistent_buffers_set:
            del tensors[name]
        rules = next((rules for kind, rules in _LAYERS.items() if isinstance(module, kind)), {})
        # A parametrised layer keeps other tensors, from which it computes its weight.
        named = [
            (name, tensors.pop(attribute), tuple(axes))
            for attribute, (name, *axes) in rules.items()
            if attribute in tensors
        ]
        named += [(name, tensor, tuple(range(tensor.dim()))) for name, tensor in tensors.items()]
        laws = getattr(module, "laws", {})
        for name, tensor, axes in named:
            if name and id(tensor) not in seen:
                seen.add(id(tensor))
                result.append(Array(f"{path}/{name}".lstrip("/"), tensor, axes, laws.get(name)))
    return result


def values(model: nn.Module) -> dict[str, np.ndarray]:
    """Return copies of the arrays of a model by name."""
    return {array.name: array.value for array in arrays(model)}


def set_values(model: nn.Module, weights: Sequence[np.ndarray] | Mapping[str, np.ndarray]) -> None:
    """Set the arrays of a model.

    Parameters
    ----------
    weights : the values, in the order of `arrays`. Names do not matter.

    Raises
    ------
    ValueError : there are too many or too few arrays, or an array has another shape.
    """
    values = [*weights.values()] if isinstance(weights, Mapping) else weights
    for array, value in zip(arrays(model), values, strict=True):
        array.set(value)


def list_trained(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield name and tensor of the trained arrays. Names of a compiled model are its module's."""
    for array in arrays(getattr(model, "_orig_mod", model)):
        if array.trained:
            yield array.name, array.tensor


def initialise(model: nn.Module, seed: int) -> None:
    """Set the arrays of a model to the initial values of a seed, equal under every engine.

    Raises
    ------
    InputError : an array has no law.
    """
    targets = arrays(model)
    drawn = layers.draw_weights(((array.law, array.shape) for array in targets), seed)
    for array, value in zip(targets, drawn, strict=True):
        if value is None:
            raise InputError(
                "initial_weights",
                layers.SEEDED,
                f"nothing states the law by which {array.name} begins",
                "remove the setting, or make the layer by escala.engines.torch.layers",
            )
        array.set(value)


def parameters(model: nn.Module) -> int:
    """Return the count of numbers in all arrays, trained or not, as in Keras."""
    return sum(array.tensor.numel() for array in arrays(model))


def as_array(value: torch.Tensor | float) -> np.ndarray:
    """Return a copy of a whole tensor or number; bfloat16, which NumPy lacks, as float32.

    If ranks hold parts of the tensor, every rank must call this.
    """
    if not isinstance(value, torch.Tensor):
        return np.array(value)
    whole = value.detach()
    whole = whole.full_tensor() if hasattr(whole, "full_tensor") else whole
    return (whole.float() if whole.dtype == torch.bfloat16 else whole).cpu().numpy().copy()


@torch.no_grad()
def fill(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Set a tensor to a whole value; if ranks divide the tensor, set this rank's part."""
    tensor.copy_(distribute_like(tensor, value))


def distribute_like(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return a whole value with a tensor's device, type and division among ranks."""
    value = value.to(tensor.device, tensor.dtype)
    if not hasattr(tensor, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    # Each rank takes its part of its own copy of the value, so nothing is exchanged.
    return distribute_tensor(value, tensor.device_mesh, tensor.placements, src_data_rank=None)
