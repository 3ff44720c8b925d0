"""The nodes of a run, the places of its processes, and the links and transports between nodes.

Open MPI selects a component of its framework `pml`: `ucx`, `cm` or `ob1`. `ucx` uses InfiniBand and
other RDMA, whatever the interface. With `ob1` a component of `btl` carries the messages to each
node, such as `tcp`. `escala.runtime.mpi.transport` lets Open MPI log both choices.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from escala.core.errors import InputError
from escala.core.hardware import hardware_threads, quota_clause
from escala.record.schema import Outcome
from escala.runtime import allocation, asking, launch
from escala.runtime.layout import Launch, places
from escala.strategies import STRATEGIES
from escala.training.process import Plan


class Links(Protocol):
    """Controls the links between emulated nodes, which share one machine."""

    def shape(self, rate: str) -> None:
        """Set the rate of every link, such as `100mbit` or `native`."""

    def measure(self, source: str, target: str) -> dict[str, float]:
        """Return `mbit_per_second` and `latency_ms` from one node to another."""


def place_ranks(request: dict, plan: Plan, links: Links | None) -> tuple[Launch, dict]:
    """Find the nodes of a run, and write the place of every process into its plan.

    Parameters
    ----------
    request : request of the run. Its `nodes` are the names of the nodes to use; empty without a
        choice.
    links : controller of the links between nodes, None where they are real.

    Returns
    -------
    The launcher and the nodes, and `ranks` of the run.json.

    Raises
    ------
    InputError : there are fewer nodes or cores than the layout needs.
    """
    layout, strategy = request["layout"], STRATEGIES[request["strategy"]]
    per_process = plan["knobs"]["cores_per_process"]
    choice = launch.survey(
        layout, strategy, request["link"]["interface"], request["launcher"], request["nodes"]
    )
    fewest = min(choice.nodes, key=lambda node: len(node.cores))
    needed, available = layout.processes * per_process, len(fewest.cores)
    if needed > available and not request["oversubscribe"]:
        raise InputError(
            "layout",
            request["layout"],
            f"needs {needed} cores on each node, and {available} are available"
            f"{quota_clause(fewest.machine.get('cpu_quota'))}",
            "ask for fewer processes or set oversubscribe: true",
        )
    if "start" in plan:
        plan["start"]["interface"] = choice.nodes[0].interface
    plan["places"] = places(layout, strategy, plan["knobs"], choice.nodes)
    # Nodes of the lab are parts of one machine, and may have a physical core in common.
    taken = [{min(hardware_threads(core)) for core in node.cores} for node in choice.nodes]
    are_shared = len(set().union(*taken)) < sum(map(len, taken))
    ranks = {
        "launcher": choice.launcher,
        "hosts": [node.host for node in choice.nodes],
        "machines": [node.machine for node in choice.nodes],
        "interface": choice.nodes[0].interface,
        "oversubscribed": needed > available or (links is not None and are_shared),
        # The lab may be up beside runs that do not use it.
        "emulated": links is not None and allocation.job_number() is not None,
        "cores": [place["cores"] for place in plan["places"]],
    }
    if strategy.meets_by == "mpi" and layout.processes > 1:
        ranks["single_copy"] = launch.single_copy(choice.nodes)
    return choice, {"ranks": ranks}


def experiment_folder(request: dict, folder: Path) -> Path:
    """Return the folder of a run's experiment, or that of a run outside of an experiment."""
    return next((path for path in folder.parents if path.name == request["experiment"]), folder)


def set_links(request: dict, choice: Launch, links: Links | None, folder: Path) -> Outcome:
    """Set the links between nodes to the requested rate, and measure the rate.

    Real links are measured once in a job, by TCP. If the experiment asks for UCX, they are not
    measured.

    Parameters
    ----------
    folder : folder of the run, in the folder of its experiment.
    """
    rate, hosts = request["link"]["rate"], [node.host for node in choice.nodes]
    if len(hosts) == 1:
        return Outcome("ok")
    if rate and links is None:
        return Outcome(
            "unavailable",
            f"the rate {rate} can be set only on the links of the lab; see docs/how-to/lab.md",
        )
    link = request["link"] | {"mbit_per_second": None, "latency_ms": None}
    if links is not None:
        links.shape(rate or "native")
        link |= links.measure(hosts[0], hosts[1])
    elif choice.job and request["link"].get("transport") != "ucx":
        name = f"link-{choice.job}-{choice.nodes[0].interface}.json"
        known = experiment_folder(request, folder) / "logs" / name
        link |= asking.measure_link(choice, known) | {"measured_by": asking.LINK_MEASURED_BY}
    return Outcome("ok", measured={"link": link})


_PML = re.compile(r"^\[\S+:\d+\] select: component (\w+) selected$", re.MULTILINE)
_BTL = re.compile(
    r"^\[(\S+):\d+\] mca: bml: Using (\w+) btl for send to \S+ on node (\S+)$", re.MULTILINE
)
#: The component of `pml` of each transport, and the components of `btl` between nodes.
_COMPONENTS = {"tcp": ("ob1", {"tcp"}), "ucx": ("ucx", set())}


def check_transport(request: dict, folder: Path, interface: str | None) -> Outcome:
    """Read by which transport MPI ranks exchanged. Fail if the experiment asks for another one.

    Parameters
    ----------
    folder : the ranks' folder, with their logs.
    interface : interface of the ranks; with UCX, that of the experiment counts instead.
    """
    transport = request["link"].get("transport")
    if STRATEGIES[request["strategy"]].meets_by != "mpi":
        return Outcome("ok")
    pml, between = read_transport(folder)
    ranks = {}
    if pml is not None:
        obeyed = transport == "ucx" or between == {"tcp"}
        # With UCX, the interface is known only if the experiment names it.
        interface = request["link"]["interface"] if transport == "ucx" else interface
        ranks["transport"] = {
            "pml": pml,
            "btl": sorted(between) if pml == "ob1" else None,
            "interface": interface if obeyed else None,
        }
    ok = Outcome("ok", measured={"ranks": ranks})
    if transport is None:
        return ok
    wanted, carriers = _COMPONENTS[transport]
    if pml == wanted and between <= carriers:
        return ok
    chosen = "Open MPI said nothing of its choice" if pml is None else f"Open MPI chose pml {pml}"
    by = f", btl {', '.join(sorted(between))} between nodes" if between else ""
    remedy = f"see `escala check` in a job; leave networks.{request['network']}.transport out"
    reason = f"transport {transport} was asked for, and {chosen}{by}. Remedy: {remedy}"
    return replace(ok, status="failed", reason=reason)


def read_transport(folder: Path) -> tuple[str | None, set[str]]:
    """Return the component of `pml`, and those of `btl` that carried messages between nodes.

    If ranks have several components of `pml`, commas join their names. None: no log names one.
    """
    selected, between = set(), set()
    for log in sorted(folder.glob("rank*.log")):
        text = log.read_text(encoding="utf-8", errors="replace")
        selected |= set(_PML.findall(text))
        between |= {btl for here, btl, there in _BTL.findall(text) if here != there}
    return ", ".join(sorted(selected)) or None, between
