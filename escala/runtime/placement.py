"""Assign nodes, cores and ranks to the processes of a run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from escala.runtime.layout import Layout, assign_cores
from escala.strategies import Strategy
from escala.strategies.base import Place

#: Ports of a node besides those of its processes.
EXTRA_PORTS = 2


@dataclass(frozen=True)
class Node:
    """One machine of a run, described by `escala.runtime.node`.

    `cores` are the logical cores that the run may use, in this order. `interface` and `address`
    belong to the network that its ranks exchange over. `ports` were free. `machine` is the result
    of `escala.core.hardware.describe` with the `speed_seconds` of its first core
    (`escala.core.speed`).
    `single_copy` says whether a process there may read the memory of another one.
    """

    host: str
    interface: str
    address: str
    cores: list[int]
    ports: list[int]
    machine: dict
    single_copy: bool = True


@dataclass(frozen=True)
class Launch:
    """The launcher of a run's processes, and its nodes, in the order of their ranks.

    Attributes
    ----------
    job : SLURM's number of the job whose steps are started, or None without one.
    names : SLURM's names of the nodes, if they were chosen among those of the job.
    here : the address of this machine for the processes, where it serves them.
    """

    launcher: str
    nodes: list[Node]
    job: str | None
    names: tuple[str, ...] = ()
    here: str | None = None


def processes_per_node(layout: Layout, strategy: type[Strategy]) -> int:
    return 1 if strategy.layouts.process_per_node else layout.processes


def places(
    layout: Layout, strategy: type[Strategy], knobs: dict, nodes: Sequence[Node]
) -> list[dict]:
    """Return the place of every process of a run, in the form that `Place.of` reads.

    Ranks are numbered node by node. A rank gets `cores_per_process` cores of its node, and a
    process gets those of all its ranks. A process that is not bound gets all cores of the node.
    """
    per_node = processes_per_node(layout, strategy)
    ranks_each = layout.processes // per_node
    addresses = [
        f"{node.address}:{node.ports[local]}" for node in nodes for local in range(per_node)
    ]
    extra_addresses = [f"{nodes[0].address}:{port}" for port in nodes[0].ports[per_node:]]
    found = []
    for number, node in enumerate(nodes):
        for local, cores in enumerate(
            assign_cores(per_node, knobs["cores_per_process"] * ranks_each, node.cores)
        ):
            process = number * per_node + local
            found.append(
                asdict(
                    Place(
                        process=process,
                        processes=layout.nodes * per_node,
                        ranks=list(range(process * ranks_each, (process + 1) * ranks_each)),
                        node=number,
                        nodes=layout.nodes,
                        local=local,
                        processes_per_node=per_node,
                        host=node.host,
                        cores=cores if knobs["bind"] else sorted(node.cores),
                        addresses=addresses,
                        extra_addresses=extra_addresses,
                        interface=node.interface,
                    )
                )
            )
    return found
