"""On what a run was measured: machine, versions, and the code that measured it."""

from __future__ import annotations

import platform
import socket
from importlib.metadata import PackageNotFoundError, version

from escala import hardware
from escala.sources import code_digest
from escala.workloads import WORKLOADS

PACKAGES = (
    "tensorflow-cpu",
    "tensorflow",
    "horovod",
    "openmpi",
    "numpy",
    "scikit-learn",
    "imbalanced-learn",
    "biopython",
    "snakemake",
)
#: What must agree for two measurements to be of one machine.
FINGERPRINT = ("cpu", "cores_available", "memory_bytes", "hostname")


def describe() -> dict:
    """Return the machine's CPU model, cores this process may use, memory in bytes and kernel."""
    return hardware.describe() | {
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


def fingerprint() -> dict:
    """Return what tells this machine from others, as far as a measurement goes."""
    described = describe()
    return {key: described[key] for key in FINGERPRINT}


def chosen_modules(workload: str) -> list[str]:
    """Return the modules that a run of a workload picks from the registry."""
    return [WORKLOADS[workload].module] if workload in WORKLOADS else []


def source_sha256(workload: str) -> str:
    """Return one digest over the code that a measurement of a workload runs; see `sources`."""
    return code_digest("scripts.train", chosen=chosen_modules(workload))
