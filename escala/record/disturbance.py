"""Decide from the load of the nodes whether other work disturbed a run.

Three quantities count, each in cores: its core seconds during the training steps, divided by their
seconds.

- *foreign*: what processes outside the run computed. It is the time of all programs and of the
  kernel without interrupts, less that of the run's own processes.
- *steal*: what other virtual machines took from this one.
- *throttled*: what a quota of a control group held back.

A run is disturbed if one of them exceeds `THRESHOLD_CORES` by more than the kernel's counts may be
wrong. It counts in hundredths of a second, and looks only at each tick at what a core does. The
time of the run decides nothing. Page faults that read from a disk and pressure are recorded next to
them; a run causes them itself, so they do not decide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

from escala.core import load
from escala.core.load import TICK_SECONDS

#: The services of an idle machine take less, and a program that computes alongside a run more: even
#: where it shares each core with several threads of the run.
THRESHOLD_CORES = 0.1

#: Quantities that decide, with what they tell of a node.
_TEXTS = {
    "foreign": "{:.2f} core of other processes",
    "steal": "{:.2f} core taken by other virtual machines",
    "throttled": "{:.2f} core held back by a quota",
}
#: What is recorded of an attempt that was measured again.
_OF_ATTEMPT = ("disturbed", "nodes")


def disturbance(processes: Iterable[Mapping[str, Any]]) -> dict:
    """Return what a run.json holds of the load of its nodes, and the verdict.

    Nodes that are one machine, as those of the lab, have one load, and their ranks are its own.

    Parameters
    ----------
    processes : what each process measured, in their order: its `load`, of the first process of each
        node, with `node`, `host` and `boot`.

    Returns
    -------
    `disturbed` is None if it cannot be known, and `reason` then says why.
    """
    machines: dict[str, list[Mapping]] = {}
    for process in processes:
        if process.get("load"):
            machines.setdefault(process["boot"], []).append(process)
        else:
            machines.setdefault(process["boot"], [])
    nodes = [_node(members) for members in machines.values() if members]
    several = len(nodes) > 1
    reasons = [
        text + f" on {node['host']}" * several for node in nodes for text in node.pop("reasons")
    ]
    unknown = [f"{node['host']}: {node['unavailable']}" for node in nodes if node["unavailable"]]
    if len(nodes) < len(machines):
        unknown.append("no process that trains on a node read its load")
    return {
        "disturbed": True if reasons else None if unknown else False,
        "reason": "; ".join(reasons or unknown) or None,
        "nodes": nodes,
        "earlier": [],
    }


def _node(members: list[Mapping]) -> dict:
    """Return the load of one machine, and the reasons why it disturbed the run."""
    first = members[0]["load"]
    own = load.total(each["load"] for each in members)
    seconds, error = first["seconds"], _error(members)
    quantities = {
        "foreign": None if first["busy"] is None else first["busy"] - own["own"],
        "steal": first["steal"],
        "throttled": first["throttled"],
    }
    unavailable = None
    if first["busy"] is None:
        unavailable = "/proc/stat cannot be read"
    elif first["busy"] < own["own"] / 2 - error:
        unavailable = "/proc/stat does not count what the run computed"
        quantities["foreign"] = None
    known = {name: max(0.0, value) for name, value in quantities.items() if value is not None}
    return {
        "host": members[0]["host"],
        "seconds": seconds,
        "unavailable": unavailable,
        "reasons": [
            _TEXTS[name].format(value / seconds)
            for name, value in known.items()
            if value > THRESHOLD_CORES * seconds + error
        ],
        "own_cores": own["own"] / seconds,
        **{
            f"{name}_cores": known[name] / seconds if name in known else None for name in quantities
        },
        "error_cores": error / seconds,
        "pressure": first["pressure"] and min(1.0, first["pressure"] / seconds),
        "major_faults": None if own["major_faults"] is None else int(own["major_faults"]),
    }


def _error(members: list[Mapping]) -> float:
    """Return the core seconds by which the difference of two counts may be wrong.

    That is three standard deviations. Each count is cut to whole ticks, at both ends of each
    stretch of time; those of a process are two. And the kernel samples what a core does: its busy
    ticks are binomial.
    """
    first = members[0]["load"]
    processes = sum(each["load"]["processes"] for each in members)
    counts = first["stretches"] * (first["cores"] + 2 * processes)
    ticks = first["seconds"] * first["cores"] / TICK_SECONDS
    busy = min(1.0, (first["busy"] or 0.0) / (first["seconds"] * first["cores"]))
    # The difference of two cut counts has a triangular distribution from -1 to 1 tick.
    return 3 * TICK_SECONDS * math.sqrt(counts / 6 + ticks * busy * (1 - busy))


def attempt(run: Mapping[str, Any]) -> dict:
    """Return what a later measurement of a run keeps of this one."""
    found = run.get("disturbance") or {}
    return {
        "started": run["started"],
        "status": run["status"],
        "train_seconds": (run["seconds"] or {}).get("train"),
        **{name: found.get(name) for name in _OF_ATTEMPT},
        "reason": found.get("reason") or run["reason"],
    }


def earlier(run: Mapping[str, Any]) -> list[dict]:
    """Return the attempts at a run that its measurement replaced, or that did not end ok."""
    return (run.get("disturbance") or {}).get("earlier", [])


def is_disturbed(run: Mapping[str, Any]) -> bool:
    """Return whether a run.json says that other work disturbed the run."""
    return bool((run.get("disturbance") or {}).get("disturbed"))
