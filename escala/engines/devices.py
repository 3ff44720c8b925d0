"""Give each process of a run the GPUs of its ranks, or none."""

from __future__ import annotations

import os

from escala.core.errors import Unavailable
from escala.core.gpus import VISIBLE, available_gpus
from escala.strategies.base import Place

#: What `CUDA_VISIBLE_DEVICES` holds to show no GPU.
_NONE = "-1"
#: With this variable TensorFlow takes GPU memory only as needed, so processes can share a GPU.
_GROW = "TF_FORCE_GPU_ALLOW_GROWTH"


def show_device(device: str, place: Place, has_nccl: bool = False) -> None:
    """Show this process and its children only the GPUs of its ranks.

    Call it before any framework is imported. The GPUs of a node are dealt to its ranks in turn, so
    ranks share them if there are fewer GPUs than ranks.

    Parameters
    ----------
    device : `auto`, `gpu` or `cpu`; without a GPU, `auto` changes nothing.
    has_nccl : whether ranks on GPUs exchange by NCCL, which takes no GPU for two of them.

    Raises
    ------
    Unavailable : `device` is `gpu`, and there is none that this process may use; or ranks would
        share one, and cannot.
    """
    if device == "cpu":
        os.environ[VISIBLE] = _NONE
        return
    gpus = available_gpus()
    if not gpus and device == "gpu":
        raise Unavailable("device: gpu needs a GPU and NVIDIA's driver; see `escala check`")
    ranks = place.processes_per_node * len(place.ranks)
    if has_nccl and 0 < len(gpus) < ranks:
        raise Unavailable(
            f"NCCL takes a GPU for each of {ranks} ranks, and the node has {len(gpus)}. Remedy: a "
            f"layout with at most {len(gpus)} on a node, ddp-gloo, or device: cpu"
        )
    if gpus:
        first = place.local * len(place.ranks)
        numbers = {(first + rank) % len(gpus): None for rank in range(len(place.ranks))}
        os.environ[VISIBLE] = ",".join(gpus[number].identifier for number in numbers)
        os.environ[_GROW] = "true"
