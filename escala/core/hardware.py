"""Describe the hardware of a machine: processor, cores, memory, GPUs, and available memory."""

from __future__ import annotations

import hashlib
import math
import os
import platform
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import psutil

from escala.core.gpus import available_gpus

#: Names in /proc/cpuinfo of what tells processors from others, on x86 and on ARM.
_PROCESSOR = {
    "vendor": ("vendor_id", "CPU implementer"),
    "family": ("cpu family", "CPU architecture"),
    "model": ("model", "CPU part"),
    "stepping": ("stepping", "CPU revision"),
    "features": ("flags", "Features"),
}

#: Bytes of SLURM's units; without one it counts mebibytes.
_UNITS = {"K": 2**10, "": 2**20, "M": 2**20, "G": 2**30, "T": 2**40}


def describe(cpuinfo: Path = Path("/proc/cpuinfo")) -> dict:
    """Return this machine's processor, cores, memory and GPUs.

    Returns
    -------
    `cpu`, the processor's name for people, with family and model where they are known: virtual
    machines with processors of several generations call all of them by one name; `processor`, its
    vendor, family, model and stepping, and a digest of its features (flags), each None if it is not
    known; `cores_available`, the logical cores that this process may use; `cores_total`, those of
    the machine; `memory_bytes`, the memory that the kernel manages. This is some megabytes less
    than the installed memory, and differs a little between equal machines. `cpu_quota`, the cores
    that a control group allows, and `gpus`, the models of the GPUs that this process may use, are
    left out if there are none.
    """
    fields = _first_processor(cpuinfo)
    processor = {
        name: next((fields[field] for field in named if field in fields), None)
        for name, named in _PROCESSOR.items()
    }
    if processor["features"]:
        flags = " ".join(sorted(processor["features"].split()))
        processor["features"] = hashlib.sha256(flags.encode()).hexdigest()[:12]
    numbers = [f"{name} {processor[name]}" for name in ("family", "model") if processor[name]]
    found = {
        "cpu": (fields.get("model name") or platform.processor() or "unknown")
        + (f" ({' '.join(numbers)})" if numbers else ""),
        "processor": processor,
        "cores_available": len(available_cores()),
        "cores_total": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }
    optional = {"cpu_quota": cpu_quota(), "gpus": [gpu.name for gpu in available_gpus()]}
    return found | {name: value for name, value in optional.items() if value}


def memory_gib(memory_bytes: int) -> int:
    """Return the memory that is installed in a machine, in GiB.

    The memory that the kernel manages is rounded up to a multiple of an eighth of the next power of
    two, and at least to whole GiB. Kernel and firmware keep a few percent for themselves. This
    amount differs between machines of one kind, but is smaller than the step from one common size
    of memory to the next.

    Parameters
    ----------
    memory_bytes : what the kernel manages.
    """
    gib = memory_bytes / 2**30
    unit = max(1, 2 ** math.ceil(math.log2(gib)) // 8)
    return math.ceil(gib / unit) * unit


def available_memory(
    proc: Path = Path("/proc"),
    groups: Path = Path("/sys/fs/cgroup"),
    environment: Mapping[str, str] = os.environ,
) -> int:
    """Return the bytes of memory that further processes can use here without swapping.

    It is the minimum of three: the kernel's estimate for the machine, what the control groups of
    this process leave (man 7 cgroups), and what SLURM granted the job on this node (man sbatch).
    Only memory that the kernel cannot reclaim counts as used in a group, so caches of files do not.

    Parameters
    ----------
    proc, groups : where the kernel describes this process and the control groups.
    environment : holds the variables that SLURM sets in a job.
    """
    bounds = [psutil.virtual_memory().available]
    bounds += _left_in_groups(proc / "self/cgroup", groups)
    bounds += _granted(environment)
    return min(bounds)


def _left_in_groups(membership: Path, groups: Path) -> Iterator[int]:
    """Yield the bytes below the limit of each control group of this process (version 1 and 2)."""
    for version, folder in control_groups("memory", membership, groups):
        limit, used = (
            ("memory.limit_in_bytes", ("total_rss", "total_shmem"))
            if version == 1
            else ("memory.max", ("anon", "shmem"))
        )
        if (folder / limit).is_file() and (
            text := (folder / limit).read_text(encoding="utf-8")
        ) != "max\n":
            counted = (folder / "memory.stat").read_text(encoding="utf-8").split()
            statistics = dict(zip(counted[::2], map(int, counted[1::2]), strict=True))
            yield int(text) - sum(statistics.get(name, 0) for name in used)


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

    That is the smallest quota of its control groups (kernel documentation, `scheduler/sched-bwc`
    and `admin-guide/cgroup-v2`), as `docker run --cpus` sets it.
    """
    found = []
    for version, folder in control_groups("cpu", membership, groups):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if version == 1 else ("cpu.max",)
        with suppress(OSError, ValueError):
            words = " ".join((folder / name).read_text(encoding="utf-8") for name in names).split()
            if words[0] not in ("max", "-1"):
                found.append(int(words[0]) / int(words[1]))
    return min(found, default=None)


def _granted(environment: Mapping[str, str]) -> Iterator[int]:
    """Yield the bytes that SLURM granted this job on this node; nothing for 0, which means all.

    A user or a site may have set the variables for `srun`, which also reads units such as `4G`.
    """
    by_node, by_core = (
        int(found[1]) * _UNITS[found[2].upper()]
        if (found := re.fullmatch(r"(\d+)([KMGT]?)", environment.get(name, ""), re.I))
        else 0
        for name in ("SLURM_MEM_PER_NODE", "SLURM_MEM_PER_CPU")
    )
    cores = environment.get("SLURM_CPUS_ON_NODE", "")
    by_core *= int(cores) if cores.isdecimal() else 0
    yield from filter(None, (by_node, by_core))


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

    The first hardware thread of every physical core comes first, then the others: two processes
    must not share a core while another core is free. A quota, rounded down, limits their number; at
    least one remains.
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
    """Return the logical cores of the physical core that a logical one is part of, in order."""
    listed = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    if not listed.exists():
        return [core]
    siblings: list[int] = []
    for part in listed.read_text(encoding="utf-8").strip().split(","):
        first, _, last = part.partition("-")
        siblings += range(int(first), int(last or first) + 1)
    return siblings
