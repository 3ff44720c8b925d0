"""The cache key of a run: what determines its measurement, besides its data and its request.

That is the code that plans a run, starts its ranks, runs in them and scores them, with the
workload, the strategy and the probe that the run chooses; the versions of the packages that this
code imports (`escala.cache.store`); and the kind of machine. The code that prepares data, collects
results and draws figures is not part of it.
"""

from __future__ import annotations

import hashlib
import json

from escala import engines
from escala.cache import store
from escala.cache.sources import code_digest
from escala.core import hardware, other_memory
from escala.data import KINDS
from escala.probes import PROBES
from escala.strategies import STRATEGIES
from escala.training.rank import BY_KIND
from escala.workloads import WORKLOADS

#: The module that a process of a run begins with.
CODE = "escala.training.rank"
#: Modules outside the ranks that affect a result: they plan, start and score a run.
AROUND = ("escala.record.plan", "escala.record.supervise", "escala.record.evaluation")
#: The key of a request that only says where things are, and determines no result.
WHERE = "start"
#: Distributions that decide a result and are not imported.
PACKAGES = ("openmpi", "keras")
#: Raise it when what is recorded of a run changes its meaning: all is measured again.
RECORD = 1


def selected(workload: str, strategy: str, probe: str | None) -> list[str]:
    """Return the modules that decide a run besides `CODE`: those it picks by name, and `AROUND`.

    Parameters
    ----------
    probe : the name of the probe, None for a timing run.
    """
    declared = WORKLOADS.get(workload)
    kind = declared and KINDS.get(declared.data_kind)
    if declared and declared.kind == "command":
        # Its own files are in the request.
        picked = [BY_KIND["command"]]
    else:
        picked = [*([declared.package] if declared else []), *([kind.reader] if kind else [])]
        picked += [BY_KIND[declared.kind if declared else "steps"]]
    instrument = PROBES[probe] if probe else None
    if declared is None or declared.kind == "steps":
        picked += engines.modules(strategy, instrument)
    picked += [instrument.__module__] if instrument else []
    return [*picked, STRATEGIES[strategy].__module__, *AROUND]


def code_sha256(workload: str, strategy: str, probe: str | None) -> str:
    """Return one digest, in hexadecimal, of the code that a measurement runs."""
    return code_digest(CODE, selected=selected(workload, strategy, probe))


def request_sha256(request: dict) -> str:
    """Return the digest of a request, in hexadecimal."""
    # As a job reads it: keys of JSON are text.
    written = json.dumps(json.loads(json.dumps(_determining(request))), sort_keys=True)
    return hashlib.sha256(written.encode()).hexdigest()


def work(request: dict) -> store.Work:
    """Return what distinguishes the measurement of a request from others of its split."""
    names = request["workload"], request["strategy"], request["instrument"]
    return store.Work(_determining(request) | {"record": RECORD}, selected(*names))


def _determining(request: dict) -> dict:
    return {key: value for key, value in request.items() if key != WHERE}


def machine() -> dict:
    """Return what tells this kind of machine from others.

    A measurement of one machine is also used for others of its kind. Memory is what is installed
    (`escala.core.hardware.memory_gib`), as in `escala.record.comparable`. Where processes may not
    read each other's memory, MPI ranks exchange in another way.
    """
    described = hardware.describe()
    installed = hardware.memory_gib(described.pop("memory_bytes"))
    return described | {"memory_gib": installed, "single_copy": other_memory.may_be_read()}
