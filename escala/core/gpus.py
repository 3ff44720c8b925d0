"""The NVIDIA GPUs of this machine, by NVIDIA's management library (NVML)."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NamedTuple

#: The variable that lists the GPUs CUDA shows to a process, in order, by index or UUID.
VISIBLE = "CUDA_VISIBLE_DEVICES"


class Driver:
    """A session of NVML. It lasts until a `with` block ends, or else as long as this process.

    Attributes
    ----------
    gpus : NVML's handles of all GPUs; empty without a driver.
    missing : why there is no driver, or None.
    """

    def __init__(self):
        self.nvml, self.gpus, self.missing = None, [], None
        try:
            import pynvml
        except ModuleNotFoundError:
            # An environment of a framework, of the user's making.
            self.missing = "the package nvidia-ml-py is not installed"
            return
        self.nvml = pynvml
        try:
            pynvml.nvmlInit()
            number = pynvml.nvmlDeviceGetCount()
            self.gpus = [pynvml.nvmlDeviceGetHandleByIndex(each) for each in range(number)]
        except pynvml.NVMLError as error:
            self.missing = str(error)

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        if self.missing is None:
            with suppress(self.nvml.NVMLError):
                self.nvml.nvmlShutdown()

    def read(self, name: str, gpu: object) -> Any:
        """Return the result of NVML's function `nvmlDeviceGet{name}` for a GPU.

        Raises
        ------
        OSError : NVML reports an error.
        """
        try:
            return getattr(self.nvml, f"nvmlDeviceGet{name}")(gpu)
        except self.nvml.NVMLError as error:
            raise OSError(str(error)) from None

    def read_or_none(self, name: str, gpu: object) -> Any:
        """Return the result of `read`, or None if there is none."""
        with suppress(OSError):
            return self.read(name, gpu)
        return None


class Gpu(NamedTuple):
    """A GPU: its index or UUID for `CUDA_VISIBLE_DEVICES`, and its model."""

    identifier: str
    name: str


def available_gpus(environment: Mapping[str, str] = os.environ) -> list[Gpu]:
    """Return the GPUs that this process may use, in the order of use; empty without a driver.

    They are those that `CUDA_VISIBLE_DEVICES` names, up to the first that does not exist, or all if
    it is not set (CUDA C++ Programming Guide, "CUDA Environment Variables"). SLURM sets it in a job
    that was granted GPUs. Numbers are read as NVML's indices.
    """
    with Driver() as driver:
        return list(_named(driver, environment.get(VISIBLE))) if driver.missing is None else []


def _named(driver: Driver, visible: str | None) -> Iterator[Gpu]:
    if visible is None:
        for gpu in driver.gpus:
            yield Gpu(driver.read("UUID", gpu), driver.read("Name", gpu))
        return
    for identifier in map(str.strip, visible.split(",")):
        key, value = ("Index", int(identifier)) if identifier.isdecimal() else ("UUID", identifier)
        gpu = driver.read_or_none(f"HandleBy{key}", value)
        if gpu is None:
            return
        yield Gpu(identifier, driver.read("Name", gpu))
