"""Describe the hardware of a machine: its CPU model, cores and memory."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import psutil

from escala.parallel.layout import available_cores


def describe() -> dict:
    """Return this machine's CPU model, cores and memory.

    Returns
    -------
    `cpu`, the name of the model; `cores_available`, the logical cores that this process may use;
    `cores_total`, those of the machine; `memory_bytes`, what the kernel manages, which is some
    megabytes less than what is installed and differs by as much between machines that are alike.
    """
    return {
        "cpu": _cpu_model(),
        "cores_available": len(available_cores()),
        "cores_total": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
    }


def _cpu_model() -> str:
    """Return the processor's name as Linux gives it (man 5 proc)."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        if key.strip() == "model name":
            return value.strip()
    return platform.processor() or "unknown"
