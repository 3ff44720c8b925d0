"""On what a run was measured: the machine, and the versions of packages."""

from __future__ import annotations

import platform
import socket
from importlib.metadata import PackageNotFoundError, version

from escala.core import hardware

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


def describe() -> dict:
    """Return the machine's CPU model, cores this process may use, memory in bytes and kernel."""
    return hardware.describe() | {
        "kernel": platform.release(),
        "hostname": socket.gethostname(),
    }


def versions(program: dict | None = None) -> dict[str, str]:
    """Return the versions of Python and of the packages that decide a result.

    Parameters
    ----------
    program : the identity of a program (`escala.workloads.program`), whose own versions are taken.
    """
    if program is not None:
        own = program["versions"]
        return ({"python": own["python"]} | own["packages"]) if own else {}
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
