"""On what a run was measured: the machine, and the versions of packages."""

from __future__ import annotations

import platform
import socket
from datetime import UTC

from escala.core import hardware, packages
from escala.runtime import allocation

#: Distributions that prepare data, start ranks and score them.
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


def versions() -> dict[str, str]:
    """Return the versions of the packages that prepare data, start ranks and score them."""
    return packages.versions(AROUND)
