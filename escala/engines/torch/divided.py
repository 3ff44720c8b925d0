"""Tensors of which each rank holds a part, PyTorch's `DTensor`, in place of whole ones."""

from __future__ import annotations

import torch


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return the whole tensor, for which every rank must call this."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


@torch.no_grad()
def fill(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Set a tensor, or this rank's part of it, to a whole value."""
    tensor.copy_(like(tensor, value))


def like(tensor: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return a whole value with the device, the type and the division of a tensor."""
    value = value.to(tensor.device, tensor.dtype)
    if not hasattr(tensor, "full_tensor"):
        return value
    from torch.distributed.tensor import distribute_tensor

    # Each rank takes its part of its own value, so nothing is exchanged.
    return distribute_tensor(value, tensor.device_mesh, tensor.placements, src_data_rank=None)
