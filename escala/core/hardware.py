"""Describe the hardware of a machine: its CPU model, cores and memory."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path

import psutil


def describe() -> dict:
    """Return this machine's CPU model, cores and memory.

    Returns
    -------
    `cpu`, the name of the model; `cores_available`, the logical cores that this process may use;
    `cores_total`, those of the machine; `memory_bytes`, the memory that the kernel manages. This is
    some megabytes less than the installed memory, and differs a little between equal machines.
    """
    return {
        "cpu": _cpu_model(),
        "cores_available": len(available_cores()),
        "cores_total": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }


def memory_gib(memory_bytes: int) -> int:
    """Return the memory that is installed in a machine, in GiB.

    That is the memory which its kernel manages, rounded up to a multiple of an eighth of the next
    power of two, and at least to whole GiB. Kernel and firmware keep a few percent for themselves,
    an amount that differs between machines of one kind, and sizes of memory lie further apart.

    Parameters
    ----------
    memory_bytes : what the kernel manages.
    """
    gib = memory_bytes / 2**30
    unit = max(1, 2 ** math.ceil(math.log2(gib)) // 8)
    return math.ceil(gib / unit) * unit


def _cpu_model() -> str:
    """Return the processor's name as Linux gives it (man 5 proc)."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or "unknown"


def available_cores() -> list[int]:
    """Return the numbers of the logical cores this process may use, in the order to use them.

    The first hardware thread of every physical core comes first, then the others: two processes
    must not share a core while another core is free.
    """
    return sorted(os.sched_getaffinity(0), key=lambda core: (_thread_of_core(core), core))


def _thread_of_core(core: int) -> int:
    """Return the position of a logical core among the hardware threads of its physical core."""
    listed = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
    if not listed.exists():
        return 0
    siblings: list[int] = []
    for part in listed.read_text().strip().split(","):
        first, _, last = part.partition("-")
        siblings += range(int(first), int(last or first) + 1)
    return siblings.index(core)
