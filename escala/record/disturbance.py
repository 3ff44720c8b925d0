"""Decide from the load of the nodes whether other work disturbed a run.

Three quantities are summed. Each is in cores: its core seconds during the training steps, divided
by the duration of these steps.

- *foreign*: what processes outside the run computed. It is the time of all programs and of the
  kernel without interrupts, less the time of the run's own processes.
- *steal*: what other virtual machines took from this one.
- *throttled*: what a quota of a control group held back.

A run is disturbed if the sum exceeds a limit. The limit is the same for every configuration, so the
same neighbour is detected with the same probability beside each of them. If the sum were divided by
the cores that a run uses, a neighbour would count half beside twice the ranks. Only for runs of a
fraction of a second the limit is higher: it is the possible error of the kernel's counts.

A fixed kernel on the cores of the run, before and after it (`escala.runtime.node`), decides too. It
shows what slows cores and is counted nowhere: a lower frequency, another virtual machine whose
time is not reported as steal, a neighbour that uses the bandwidth of the memory. Its times are
compared with the usual times: the medians of the same session on the same cores. The cores are the
same, because several cores at once are slower than one, and cores may differ. The first runs have
no usual times yet. Only the cores of this machine are timed. Disturbances of a GPU or a network,
and short ones during the run, are not seen.

A process of the run that was stopped decides, too. The time of the run decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from escala.core.files import read_json, write_json
from escala.core.proc import TICK_SECONDS
from escala.runtime.node import seconds_of_kernel

#: A run is disturbed if a core takes more than this many times its usual time. Equal kernels on a
#: quiet machine differ by a few percent; a neighbour on the sibling of a core, or a core that gets
#: four fifths of its time, makes a larger difference.
SLOWDOWN = 1.25
#: Fewest earlier times on the same cores that give the usual time: those of two runs.
_USUAL_FROM = 4
#: The kernel runs this many times, and its least time counts: a kernel that is held up for a moment
#: is not slow.
_TIMES = 2


class Kernel:
    """The times of the fixed kernel before and after a run.

    Parameters
    ----------
    cores : cores of the run; None if some of these cores are on another machine.
    """

    def __init__(self, cores: Sequence[int] | None):
        self._cores, self._times = cores, []
        self._unavailable = None if cores else "not timed: the run has cores of another machine"

    def time(self) -> None:
        """Time the kernel. If this process may not use the cores, the times are unavailable."""
        if self._unavailable is None:
            try:
                kernels = [seconds_of_kernel(self._cores) for _ in range(_TIMES)]
            except ValueError as error:
                self._unavailable = f"not timed: {error}"
                return
            walls = ((core.wall for core in cores) for cores in kernels)
            self._times.append([1000 * min(core) for core in zip(*walls, strict=True)])

    def judge(self, times_file: Path) -> dict[str, Any]:
        """Return the part of a run.json on the kernel, and add its times to those of the session.

        Parameters
        ----------
        times_file : the file with the times of the session, by the cores.

        Returns
        -------
        The `cores`; of each core `before_ms`, `after_ms` and the usual time `usual_ms`; `slowdown`
        and `unavailable`, why the kernel was not timed. For `slowdown`, each time is divided by the
        usual time of its core. The largest of these quotients is divided by its usual value, since
        the slowest of many cores is slower than a single core. `slowdown` is None if no usual time
        is known yet.
        """
        keys = ("cores", "before_ms", "after_ms", "usual_ms", "slowdown")
        if self._unavailable:
            return dict.fromkeys(keys) | {"unavailable": self._unavailable}
        times = read_json(times_file) if times_file.exists() else {}
        earlier_times = times.setdefault(",".join(map(str, self._cores)), [])
        usual, slowdown = None, None
        if len(earlier_times) >= _USUAL_FROM:
            usual = np.median(earlier_times, axis=0)
            usual_slowest = np.median(np.max(earlier_times / usual, axis=1))
            slowdown = float(np.max(self._times / usual) / usual_slowest)
            usual = usual.tolist()
        earlier_times += self._times
        write_json(times_file, times, durable=False)
        values = list(self._cores), *self._times, usual, slowdown
        return dict(zip(keys, values, strict=True)) | {"unavailable": None}


#: Limit in cores. The services of an idle machine take less. A program that computes alongside a
#: run takes more, even if it shares each core with several threads of the run.
THRESHOLD_CORES = 0.1
#: On a large machine the limit is this fraction of its cores, because its services grow with it.
THRESHOLD_FRACTION = 0.01
#: Number of counts of `/proc/stat` that are summed. Each is truncated to whole ticks at both ends
#: of an interval.
_CUT_COUNTS = 5

#: The quantities that decide, with a phrase on the value at a node.
_TEXTS = {
    "foreign": "{:.2f} core of other processes",
    "steal": "{:.2f} core taken by other virtual machines",
    "throttled": "{:.2f} core held back by a quota",
}


def disturbance(processes: Iterable[Mapping[str, Any]]) -> dict:
    """Return the part of a run.json on the load of its nodes, and the verdict.

    Nodes that are one machine, such as those of the lab, have one load. The ranks of all these
    nodes are the run's own processes.

    Parameters
    ----------
    processes : what each process measured, in their order: `node`, `host`, `boot`, and, in the
        first process of each node, `load`: the `sums` of `escala.core.load.Load`.

    Returns
    -------
    `disturbed` is None if the load is not known. `reason` then says why.
    """
    machines: dict[str, list[Mapping]] = {}
    for process in processes:
        members = machines.setdefault(process["boot"], [])
        if process.get("load"):
            members.append(process)
    nodes = [_node(members) for members in machines.values() if members]
    several = len(nodes) > 1
    reasons = [
        reason + f" on {node['host']}" * several for node in nodes if (reason := node.pop("reason"))
    ]
    unknown = [f"{node['host']}: {node['unavailable']}" for node in nodes if node["unavailable"]]
    if len(nodes) < len(machines):
        unknown.append("no process that trains on a node read its load")
    return {
        "disturbed": True if reasons else None if unknown else False,
        "reason": "; ".join(reasons or unknown) or None,
        "nodes": nodes,
        "kernel": None,
        "earlier": [],
    }


def with_kernel(record: Mapping[str, Any], kernel: Mapping[str, Any]) -> dict:
    """Return the record of `disturbance` with the result of `Kernel.judge` and its verdict."""
    record = {**record, "kernel": dict(kernel)}
    if (slowdown := kernel["slowdown"] or 0) <= SLOWDOWN:
        return record
    text = f"a fixed kernel on the run's cores took {slowdown:.2f} times its usual time"
    return _add_reason(record, text)


def with_stops(record: Mapping[str, Any], seconds: float) -> dict:
    """Return the record of `disturbance`, disturbed if processes of the run stood still."""
    text = (
        f"processes of the run were stopped for {seconds:.1f} s, as by SIGSTOP or a suspended job"
    )
    return _add_reason(record, text) if seconds else dict(record)


def _add_reason(record: Mapping[str, Any], reason: str) -> dict:
    reasons = [record["reason"]] if record["disturbed"] else []
    return {**record, "disturbed": True, "reason": "; ".join([*reasons, reason])}


def cores_of_others(run: Mapping[str, Any]) -> float | None:
    """Return the cores that others took of the nodes of a run; None if that is not known."""
    nodes = (run.get("disturbance") or {}).get("nodes") or ()
    known = [cores for node in nodes if (cores := node.get("taken_cores")) is not None]
    return sum(known) if known else None


def _node(members: list[Mapping]) -> dict:
    """Return the part of a run.json on one machine, from its processes that read the load.

    The key `reason` names what disturbed the run on this machine; None if nothing did.
    """
    first = members[0]["load"]
    run_seconds = sum(member["load"]["own"] for member in members)
    seconds = first["seconds"]
    quantities = {
        "foreign": None if first["busy"] is None else first["busy"] - run_seconds,
        "steal": first["steal"],
        "throttled": first["throttled"],
    }
    unavailable = None
    if first["busy"] is None:
        unavailable = "/proc/stat cannot be read"
    elif first["counted"] < seconds * first["cores"] / 2:
        unavailable = "/proc/stat does not count what the cores do"
        quantities["foreign"] = None
    known = {
        name: max(0.0, value) / seconds for name, value in quantities.items() if value is not None
    }
    # The difference of two truncated counts has a triangular distribution from -1 to 1 tick, with a
    # variance of a sixth.
    error = 3 * TICK_SECONDS * math.sqrt(_CUT_COUNTS * first["stretches"] / 6) / seconds
    taken = sum(known.values())
    limit = max(THRESHOLD_CORES, THRESHOLD_FRACTION * first["cores"], error)
    reasons = [_TEXTS[name].format(cores) for name, cores in known.items() if round(cores, 2)]
    return {
        "host": members[0]["host"],
        "seconds": seconds,
        "unavailable": unavailable,
        "reason": " and ".join(reasons) if taken > limit else None,
        "own_cores": run_seconds / seconds,
        **{f"{name}_cores": known.get(name) for name in quantities},
        "taken_cores": taken if known else None,
        "limit_cores": limit,
    }


def attempt(run: Mapping[str, Any]) -> dict:
    """Return the summary of a measurement, which a later measurement of the same run keeps."""
    now = run.get("disturbance") or {}
    return {
        "started": run["started"],
        "status": run["status"],
        "train_seconds": (run["seconds"] or {}).get("train"),
        **{name: now.get(name) for name in ("disturbed", "nodes", "kernel")},
        "reason": now.get("reason") or run["reason"],
    }


def earlier(run: Mapping[str, Any]) -> list[dict]:
    """Return the attempts at a run that the present measurement replaced."""
    return (run.get("disturbance") or {}).get("earlier", [])


def is_disturbed(run: Mapping[str, Any]) -> bool:
    """Return whether a run.json says that other work disturbed the run."""
    return bool((run.get("disturbance") or {}).get("disturbed"))
