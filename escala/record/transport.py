"""Read from the logs of ranks which transport Open MPI used between nodes, and check it.

Open MPI selects a component of its framework `pml`: `ucx`, which uses InfiniBand and other RDMA
whatever the interface, `cm`, or `ob1`. With `ob1` a component of `btl` carries the messages to each
node, such as `tcp`. `escala.runtime.mpi.transport` lets it log both.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from escala.record.outcome import Outcome
from escala.strategies import STRATEGIES

_PML = re.compile(r"^\[\S+:\d+\] select: component (\w+) selected$", re.MULTILINE)
_BTL = re.compile(
    r"^\[(\S+):\d+\] mca: bml: Using (\w+) btl for send to \S+ on node (\S+)$", re.MULTILINE
)
#: The component of `pml`, and those of `btl` between nodes, that a transport of an experiment has.
_COMPONENTS = {"tcp": ("ob1", {"tcp"}), "ucx": ("ucx", set())}


def recorded(request: dict, folder: Path, interface: str | None) -> Outcome:
    """Tell what MPI ranks exchanged by; fail if it is not what was asked for.

    Parameters
    ----------
    folder : the ranks' folder, with their logs.
    interface : of the ranks, unless it is UCX that chooses.
    """
    asked = request["link"].get("transport")
    if STRATEGIES[request["strategy"]].meets_by != "mpi":
        return Outcome("ok")
    pml, between = chosen(folder)
    ranks = {}
    if pml is not None:
        obeyed = asked == "ucx" or between == {"tcp"}
        # UCX takes the interface that the experiment names, if any.
        interface = request["link"]["interface"] if asked == "ucx" else interface
        ranks["transport"] = {
            "pml": pml,
            "btl": sorted(between) if pml == "ob1" else None,
            "interface": interface if obeyed else None,
        }
    ok = Outcome("ok", found={"ranks": ranks})
    if asked is None:
        return ok
    wanted, carriers = _COMPONENTS[asked]
    if pml == wanted and between <= carriers:
        return ok
    found = "Open MPI said nothing of its choice" if pml is None else f"Open MPI chose pml {pml}"
    by = f", btl {', '.join(sorted(between))} between nodes" if between else ""
    remedy = f"see `escala check` in a job; leave networks.{request['network']}.transport out"
    reason = f"transport {asked} was asked for, and {found}{by}. Remedy: {remedy}"
    return replace(ok, status="failed", reason=reason)


def chosen(folder: Path) -> tuple[str | None, set[str]]:
    """Return the component of `pml` of all ranks, and those of `btl` that carried between nodes.

    Ranks without the same component have all of them, joined by a comma; None without any line.
    """
    selected, between = set(), set()
    for log in sorted(folder.glob("rank*.log")):
        text = log.read_text(encoding="utf-8", errors="replace")
        selected |= set(_PML.findall(text))
        between |= {btl for here, btl, there in _BTL.findall(text) if here != there}
    return ", ".join(sorted(selected)) or None, between
