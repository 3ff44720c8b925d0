"""Describe the hardware of a machine: processor, cores, memory and GPUs."""

from __future__ import annotations

import hashlib
import math
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

#: The variable that lists the GPUs CUDA shows to a process, in order, by index or UUID.
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"


class Driver:
    """A session of NVML. It ends with a `with` block, or without a block with this process.

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
            # This may be an environment of a framework that the user made.
            self.missing = "the package nvidia-ml-py is not installed"
            return
        self.nvml = pynvml
        try:
            pynvml.nvmlInit()
            number = pynvml.nvmlDeviceGetCount()
            self.gpus = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(number)]
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

    `CUDA_VISIBLE_DEVICES` names them, and ends at the first name that does not exist. If it is not
    set, they are all GPUs (CUDA C++ Programming Guide, "CUDA Environment Variables"). SLURM sets it
    in a job that was granted GPUs. Numbers are read as NVML's indices.
    """
    visible, gpus = environment.get(VISIBLE_GPUS), []
    with Driver() as driver:
        if visible is None:
            return [Gpu(driver.read("UUID", gpu), driver.read("Name", gpu)) for gpu in driver.gpus]
        for name in map(str.strip, visible.split(",")) if driver.missing is None else ():
            key, value = ("Index", int(name)) if name.isdecimal() else ("UUID", name)
            gpu = driver.read_or_none(f"HandleBy{key}", value)
            if gpu is None:
                break
            gpus.append(Gpu(name, driver.read("Name", gpu)))
    return gpus


#: The properties that distinguish processors, with their fields in /proc/cpuinfo on x86 and ARM.
_PROCESSOR = {
    "vendor": ("vendor_id", "CPU implementer"),
    "family": ("cpu family", "CPU architecture"),
    "model": ("model", "CPU part"),
    "stepping": ("stepping", "CPU revision"),
    "features": ("flags", "Features"),
}


def describe(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict:
    """Return this machine's processor, cores, memory and GPUs.

    Returns
    -------
    `cpu`, the processor's name for people, with family and model where they are known, because
    virtual machines give processors of several generations the same name; `processor`, its vendor,
    family, model and stepping, and a digest of its features (flags), each None if it is not known;
    `cores_available`, the logical cores that this process may use; `cores_total`, the logical cores
    of the machine; `memory_bytes`, the memory that the kernel manages. This is some megabytes less
    than the installed memory, and differs a little between equal machines. `cpu_quota`, the cores
    that a control group allows, and `gpus`, the models of the GPUs that this process may use, are
    left out if there are none.
    """
    fields = _first_processor(cpuinfo)
    processor = {
        name: next((fields[field] for field in candidates if field in fields), None)
        for name, candidates in _PROCESSOR.items()
    }
    if processor["features"]:
        flags = " ".join(sorted(processor["features"].split()))
        processor["features"] = hashlib.sha256(flags.encode()).hexdigest()[:12]
    numbers = [f"{name} {processor[name]}" for name in ("family", "model") if processor[name]]
    described = {
        "cpu": (fields.get("model name") or platform.processor() or "unknown")
        + (f" ({' '.join(numbers)})" if numbers else ""),
        "processor": processor,
        "cores_available": len(available_cores()),
        "cores_total": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }
    optional = {"cpu_quota": cpu_quota(), "gpus": [gpu.name for gpu in available_gpus()]}
    return described | {name: value for name, value in optional.items() if value}


def memory_gib(memory_bytes: int) -> int:
    """Return the memory that is installed in a machine, in GiB.

    The memory that the kernel manages is rounded up to a multiple of an eighth of the next power of
    two, and at least to whole GiB. Kernel and firmware keep a few percent for themselves. The
    amount that they keep differs between machines of one model. It is smaller than the difference
    between one common size of memory and the next.

    Parameters
    ----------
    memory_bytes : the memory that the kernel manages.
    """
    gib = memory_bytes / 2**30
    unit = max(1, 2 ** math.ceil(math.log2(gib)) // 8)
    return math.ceil(gib / unit) * unit


def control_groups(
    controller: str,
    membership: Path = Path("/proc/self/cgroup"),
    groups: Path = Path("/sys/fs/cgroup"),
) -> Iterator[tuple[int, Path]]:
    """Yield the control groups of this process for a controller, each before its parent.

    Yields
    ------
    The version of the interface, 1 or 2, and a folder (man 7 cgroups). The folder may be missing:
    in a container the path may be the host's, and the root folder is then the container's own
    group.
    """
    lines = membership.read_text(encoding="utf-8").splitlines() if membership.is_file() else []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if controllers and controller not in controllers.split(","):
            continue
        root = groups / controller if controllers else groups
        group = root / path.strip("/")
        for folder in (group, *group.parents):
            yield (1 if controllers else 2), folder
            if folder == root:
                break


def cpu_quota(
    membership: Path = Path("/proc/self/cgroup"), groups: Path = Path("/sys/fs/cgroup")
) -> float | None:
    """Return the CPU quota of this process in cores, None without one.

    The result is the smallest quota of its control groups (kernel documentation,
    `scheduler/sched-bwc` and `admin-guide/cgroup-v2`), as `docker run --cpus` sets it.
    """
    quotas = []
    for version, folder in control_groups("cpu", membership, groups):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if version == 1 else ("cpu.max",)
        with suppress(OSError, ValueError):
            words = " ".join((folder / name).read_text(encoding="utf-8") for name in names).split()
            if words[0] not in ("max", "-1"):
                quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def has_instructions(name: str) -> bool:
    """Return whether the processor has an instruction set, by its flag in /proc/cpuinfo."""
    return name in _first_processor(Path("/proc/cpuinfo")).get("flags", "").split()


def _first_processor(cpuinfo: Path) -> dict[str, str]:
    """Return the fields of the first processor by name, without empty ones (man 5 proc)."""
    first = cpuinfo.read_text(encoding="utf-8").partition("\n\n")[0]
    fields = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in fields if value.strip()}


def available_cores() -> list[int]:
    """Return the numbers of the logical cores that this process may use, in the order of use.

    The first hardware threads of all physical cores come first, then the second threads: two
    processes must not share a core while another core is free. A quota, rounded down, limits the
    number of cores; at least one remains.
    """
    cores = sorted(
        os.sched_getaffinity(0), key=lambda core: (hardware_threads(core).index(core), core)
    )
    quota = cpu_quota()
    return cores if quota is None else cores[: max(1, int(quota))]


def quota_clause(quota: float | None) -> str:
    """Return a clause for messages about too few cores; empty without a quota."""
    return "" if quota is None else f" by a quota of the control group of {quota:.3g} cores"


def hardware_threads(core: int) -> list[int]:
    """Return the logical cores, in order, that share a physical core with a logical core."""
    listed = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    if not listed.exists():
        return [core]
    siblings: list[int] = []
    for part in listed.read_text(encoding="utf-8").strip().split(","):
        first, _, last = part.partition("-")
        siblings += range(int(first), int(last or first) + 1)
    return siblings
