"""On what a run was measured: the machine, and the versions of packages."""

from __future__ import annotations

import platform
import socket
from datetime import UTC
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from escala.core import hardware
from escala.runtime import allocation

#: Distributions of TensorFlow's ranks.
RANKS = ("tensorflow-cpu", "tensorflow", "horovod", "openmpi", "numpy")
#: Those that prepare data, start ranks and score them.
AROUND = ("scikit-learn", "imbalanced-learn", "biopython", "snakemake")


def describe() -> dict:
    """Return the machine's CPU model, cores this process may use, memory in bytes and kernel."""
    return hardware.describe() | {
        "kernel": platform.release(),
        "hostname": socket.gethostname(),
    }


def job() -> dict | None:
    """Return what SLURM tells of the job that this process is in; None outside of a job."""
    number = allocation.number()
    if number is None:
        return None
    found = allocation.job_of(number)
    times = {"submitted": found.submitted, "started": found.started}
    return {
        "number": number,
        "step": None,
        "exclusive": found.exclusive,
        "nodes": allocation.hosts(found),
        "slurm": allocation.version(),
        **{
            name: at and at.astimezone(UTC).isoformat(timespec="seconds")
            for name, at in times.items()
        },
    }


def versions(
    program: dict | None = None, framework: dict[str, str] | None = None
) -> dict[str, str]:
    """Return the versions of Python and of the packages that decide a result.

    Parameters
    ----------
    program : the identity of a program (`escala.workloads.program`), whose own versions are taken.
    framework : the versions of the environment of the ranks, if they have one of their own.
    """
    if program is not None:
        own = program["versions"]
        return ({"python": own["python"]} | own["packages"]) if own else {}
    names = AROUND if framework else RANKS + AROUND
    found = {"python": platform.python_version()} | {name: _version(name) for name in names}
    return found | (framework or {})


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
