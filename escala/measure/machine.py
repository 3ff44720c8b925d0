"""On what a run was measured: machine, versions, and the code that measured it."""

from __future__ import annotations

import hashlib
import os
import platform
import socket
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import cpuinfo
import psutil

from escala.parallel.layout import available_cores

PACKAGES = (
    "tensorflow-cpu",
    "horovod",
    "openmpi",
    "numpy",
    "scikit-learn",
    "imbalanced-learn",
    "biopython",
    "snakemake",
)
MEASURING = ("acquire", "prepare", "workloads", "parallel", "measure")


def describe() -> dict:
    """Return the machine's CPU model, cores this process may use, memory in bytes and kernel."""
    return {
        "cpu": cpuinfo.get_cpu_info().get("brand_raw", platform.processor() or "unknown"),
        "cores_available": len(available_cores()),
        "cores_total": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "kernel": platform.release(),
        "hostname": socket.gethostname(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that decide a result."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found


def source_sha256() -> str:
    """Return one digest over the modules that bear on a measurement, names and content."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for path in sorted(path for part in MEASURING for path in (package / part).rglob("*.py")):
        digest.update(f"{path.relative_to(package)}\0".encode() + path.read_bytes())
    return digest.hexdigest()
