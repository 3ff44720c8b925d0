"""The knobs of a variant: which runs read each, and what a run does where it is not set.

A request holds just those knobs that its run reads and that differ from `omitted`, and a result is
known by its request. So a new knob, or another default of an old one in `schemas/`, changes no
request of a run that does not set it, and voids no measurement. `omitted` never changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

_MPI = frozenset({"horovod-mpi", "hybrid"})
_HOROVOD = _MPI | {"horovod-gloo", "wrapped-single"}
_DISTRIBUTE = frozenset({"mirrored", "multiworker-mirrored"})


class Knob(NamedTuple):
    """The declaration of a knob.

    Attributes
    ----------
    omitted : the value of a run that does not set it.
    strategies : those whose runs read it; None is all of them.
    steps : whether only workloads trained by steps read it.
    """

    omitted: Any
    strategies: frozenset[str] | None = None
    steps: bool = True


KNOBS = {
    "cores_per_process": Knob(1, steps=False),
    "threads": Knob({}, steps=False),
    "bind": Knob(True, steps=False),
    "busy_neighbours": Knob([], steps=False),
    "slowdown": Knob([]),
    "shard": Knob(True),
    "weighting": Knob("rows"),
    "accumulation": Knob(1),
    "convolution": Knob("layers"),
    "optimizer": Knob("keras"),
    "sparse_as_dense": Knob(True, _HOROVOD | _DISTRIBUTE),
    "factors": Knob(False, _HOROVOD),
    "compression": Knob("none", _HOROVOD),
    "fusion_threshold_mib": Knob(None, _HOROVOD),
    "cycle_time_ms": Knob(None, _HOROVOD),
    "autotune": Knob(False, _HOROVOD),
    "timeline": Knob(False, _HOROVOD),
    "yield_when_idle": Knob(True, _MPI),
    "eager_limit_mib": Knob(None, _MPI),
    "communication": Knob("auto", frozenset({"multiworker-mirrored"})),
}


#: Names of knobs and of their values in version 0.1, which 0.2 still takes, with a warning.
FORMER = {
    "stem": ("convolution", {"lookup": "lookup-table"}),
    "update": ("optimizer", {}),
}


def renamed(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Return knobs under their present names, with the present names of their values."""
    present = {}
    for name, value in knobs.items():
        new, values = FORMER.get(name, (name, {}))
        present[new] = values.get(value, value) if values else value
    return present


def significant(
    knobs: Mapping[str, Any], strategy: str, kind: Literal["steps", "fit"]
) -> dict[str, Any]:
    """Return the knobs that a run reads and that are not as they are omitted.

    Parameters
    ----------
    knobs : of the variant.
    strategy : of the run.
    kind : how its workload is trained.

    Raises
    ------
    KeyError : a knob is not declared.
    """
    return {
        name: value
        for name, value in sorted(knobs.items())
        if _reads(KNOBS[name], strategy, kind) and value != KNOBS[name].omitted
    }


def readable(knobs: Mapping[str, Any], strategy: str) -> dict[str, Any]:
    """Return the knobs that a strategy may read: asking for another is a `KeyError`."""
    return {
        name: value
        for name, value in knobs.items()
        if KNOBS[name].strategies is None or strategy in KNOBS[name].strategies
    }


def complete(knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Return all knobs, those that are not given as they are omitted."""
    return {name: knob.omitted for name, knob in KNOBS.items()} | dict(knobs)


def _reads(knob: Knob, strategy: str, kind: str) -> bool:
    return (kind == "steps" or not knob.steps) and (
        knob.strategies is None or strategy in knob.strategies
    )
