"""What determines a measurement, besides its data and its request.

That is the code which runs in the ranks and starts them, with the workload and the strategy that
the run chooses; the versions of the packages that this code imports (`escala.store`); and the kind
of machine. What prepares, tabulates or draws is no part of it.
"""

from __future__ import annotations

from escala import hardware
from escala.parallel.strategies import STRATEGIES
from escala.sources import code_digest
from escala.workloads import WORKLOADS

#: The module that a process of a run begins with.
CODE = "escala.parallel.rank"
#: Distributions that decide a result and are not imported.
PACKAGES = ("openmpi", "keras")
#: Raise it when what is recorded of a run changes its meaning: all is measured again.
RECORD = 1
_GIB = 2**30


def chosen(workload: str, strategy: str) -> list[str]:
    """Return the modules that a run picks by name, and the one that scores it."""
    picked = [WORKLOADS[workload].module] if workload in WORKLOADS else []
    return [*picked, STRATEGIES[strategy].__module__, "escala.measure.evaluation"]


def code_sha256(workload: str, strategy: str) -> str:
    """Return one digest, in hexadecimal, of the code that a measurement runs."""
    return code_digest(CODE, chosen=chosen(workload, strategy))


def machine() -> dict:
    """Return what tells this kind of machine from others.

    Two machines of a kind stand for each other. Memory is in whole GiB: kernels keep back a few
    megabytes more or less.
    """
    described = hardware.describe()
    memory = round(described.pop("memory_bytes") / _GIB)
    return described | {"memory_gib": memory}
