"""A made-up NVML: what a driver says of some GPUs."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import NamedTuple


class Gpu(NamedTuple):
    """A GPU; what is None is not told.

    `used` is its use in percent, `memory` that of every process on it in bytes, and `energy`
    returns its counter in mJ.
    """

    uuid: str = "GPU-a"
    name: str = "Model 0"
    used: int | None = 0
    memory: Mapping[int, int | None] = types.MappingProxyType({})
    energy: Callable[[], int] | None = None


class Nvml(types.SimpleNamespace):
    """The library; `gpus` None is a machine without a driver."""

    class NVMLError(Exception):
        pass

    def __init__(self, gpus: list[Gpu] | None):
        self.gpus, self.open = gpus, 0

    def _unless(self, missing: bool, message: str) -> None:
        if missing:
            raise self.NVMLError(message)

    def nvmlInit(self) -> None:
        self._unless(self.gpus is None, "no driver")
        self.open += 1

    def nvmlShutdown(self) -> None:
        self.open -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> Gpu:
        self._unless(number >= len(self.gpus), "invalid argument")
        return self.gpus[number]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:
        found = [gpu for gpu in self.gpus if gpu.uuid == uuid]
        self._unless(not found, "not found")
        return found[0]

    def nvmlDeviceGetUUID(self, gpu: Gpu) -> str:
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: Gpu) -> str:
        return gpu.name

    def nvmlDeviceGetUtilizationRates(self, gpu: Gpu) -> types.SimpleNamespace:
        self._unless(gpu.used is None, "Not Supported")
        return types.SimpleNamespace(gpu=gpu.used)

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: Gpu) -> list[types.SimpleNamespace]:
        return [types.SimpleNamespace(pid=p, usedGpuMemory=m) for p, m in gpu.memory.items()]

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: Gpu) -> int:
        self._unless(gpu.energy is None, "Not Supported")
        return gpu.energy()
