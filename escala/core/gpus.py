"""The NVIDIA GPUs of this machine that a process may use."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

#: The GPUs that CUDA shows to a process, and their order, as numbers or UUIDs.
VISIBLE = "CUDA_VISIBLE_DEVICES"


class Gpu(NamedTuple):
    """A GPU: what names it in `CUDA_VISIBLE_DEVICES`, and its model."""

    identifier: str
    name: str


def available_gpus(environment: Mapping[str, str] = os.environ) -> list[Gpu]:
    """Return the GPUs that this process may use, in the order to use them; none without a driver.

    They are those that `CUDA_VISIBLE_DEVICES` names, up to the first that does not exist, or all if
    it is not set (CUDA C++ Programming Guide, "CUDA Environment Variables"). SLURM sets it in a job
    that was granted GPUs. Numbers are taken for those of the driver.
    """
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        return list(_named(pynvml, environment.get(VISIBLE)))
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _named(nvml: Any, visible: str | None) -> Iterator[Gpu]:
    if visible is None:
        for number in range(nvml.nvmlDeviceGetCount()):
            handle = nvml.nvmlDeviceGetHandleByIndex(number)
            yield Gpu(nvml.nvmlDeviceGetUUID(handle), nvml.nvmlDeviceGetName(handle))
        return
    for identifier in visible.split(","):
        try:
            handle = (
                nvml.nvmlDeviceGetHandleByIndex(int(identifier))
                if identifier.strip().isdecimal()
                else nvml.nvmlDeviceGetHandleByUUID(identifier.strip())
            )
        except nvml.NVMLError:
            return
        yield Gpu(identifier.strip(), nvml.nvmlDeviceGetName(handle))
