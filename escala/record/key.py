"""The cache key of a run: what determines its measurement, besides its data and its request.

That is the code that plans a run, starts its ranks, runs in them and scores them, with the
workload, the strategy and the probe that the run chooses; the versions of the packages that this
code imports (`escala.cache.store`), of the framework's environment if it has one of its own, and of
the compiler where something is compiled; and the kind of machine. The code that prepares data,
collects results and draws figures is not part of it.
"""

from __future__ import annotations

import hashlib
import json
from functools import cache

from escala import engines
from escala.cache import store
from escala.cache.sources import code_digest
from escala.core import hardware, other_memory, packages
from escala.data import KINDS
from escala.probes import PROBES
from escala.strategies import STRATEGIES
from escala.training.rank import BY_KIND
from escala.workloads import MODULES, TENSORFLOW, WORKLOADS

#: The module that a process of a run begins with.
CODE = "escala.training.rank"
#: Modules outside the ranks that affect a result: they plan, start and score a run.
AROUND = ("escala.record.plan", "escala.record.supervise", "escala.record.evaluation")
#: Serves processes that meet at Horovod's rendezvous.
SERVER = "escala.runtime.rendezvous"
#: The key of a request that only says where things are, and determines no result.
WHERE = "start"
#: Distributions that decide a result of TensorFlow or of a program, and are not imported.
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
        picked = parts(workload, engines.engine_name(strategy)) + ([kind.reader] if kind else [])
        picked += [BY_KIND[declared.kind if declared else "steps"]]
    instrument = PROBES[probe] if probe else None
    if declared is None or declared.kind == "steps":
        picked += engines.modules(strategy, instrument)
    picked += [instrument.__module__] if instrument else []
    picked += [SERVER] if STRATEGIES[strategy].meets_by == "rendezvous" else []
    return [*picked, STRATEGIES[strategy].__module__, *AROUND]


def parts(workload: str, engine: str | None) -> list[str]:
    """Return the package of a workload, and of one with modules for several engines the one used.

    The others of these modules are then reached only where it imports them.
    """
    declared = WORKLOADS.get(workload)
    if declared is None:
        return []
    if engine is None or declared.kind != "steps" or len(declared.engines) < 2:
        return [declared.package]
    used = f"{declared.package}.{MODULES[engine]}"
    return [declared.package, used, *filter(None, [declared.scores])]


def framework(workload: str, strategy: str) -> dict[str, str]:
    """Return the versions of the environment that trains a workload, empty of Escala's own."""
    declared, engine = WORKLOADS.get(workload), engines.engine_name(strategy)
    return engines.versions(engine) if declared and declared.kind == "steps" and engine else {}


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
    parameters = _determining(request) | {"record": RECORD}
    by_steps = getattr(WORKLOADS.get(names[0]), "kind", None) == "steps"
    # Of other runs nothing is compiled.
    engine, is_compiled = engines.engine_name(names[1]), request["knobs"].get("torch_compile")
    if by_steps and (engine == TENSORFLOW or is_compiled):
        parameters["compiler"] = _compiler()
    if own := framework(request["workload"], request["strategy"]):
        return store.Work(parameters | {"framework": own}, selected(*names))
    return store.Work(parameters, selected(*names), PACKAGES)


_compiler = cache(packages.compiler)


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
