"""Layouts such as `2x1`: the nodes of a run, and the rows, cores and ranks of its processes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from escala.strategies import Strategy
from escala.strategies.base import Place


class Layout(str):
    """`nodes` machines with `processes` ranks on each. Its text is `NODESxPROCS`."""

    nodes: int
    processes: int

    def __new__(cls, nodes: int, processes: int) -> Layout:
        self = super().__new__(cls, f"{nodes}x{processes}")
        self.nodes, self.processes = nodes, processes
        return self

    def __getnewargs__(self) -> tuple[int, int]:
        return self.nodes, self.processes

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read `NODESxPROCS`.

        Raises
        ------
        ValueError : `text` is not a layout.
        """
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
        if match is None:
            raise ValueError(f"{text!r} is not of the form NODESxPROCS, such as 1x2")
        return cls(*map(int, match.groups()))

    @property
    def ranks(self) -> int:
        return self.nodes * self.processes


def with_layout(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a file with its `layout` parsed."""
    return {**content, "layout": Layout.parse(content["layout"])}


def global_batch(training: Mapping[str, Any], ranks: int) -> int:
    """Return the rows of a step, over all ranks, by the settings of a training."""
    batch = training["batch"]
    return batch["rows"] * (ranks if batch["per"] == "rank" else 1)


#: How many ports a node has besides one for each process. Processes meet at these ports of the
#: first node.
EXTRA_PORTS = 2


@dataclass(frozen=True)
class Node:
    """One machine of a run, described by `escala.runtime.node`.

    Attributes
    ----------
    interface, address : the interface and the address by which its ranks exchange.
    cores : the logical cores that the run may use, in this order.
    ports : the numbers of free ports.
    machine : the result of `escala.core.hardware.describe` with the `speed_seconds` of its first
        core (`escala.runtime.node`).
    single_copy : whether a process there may read the memory of another one.
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
    job : SLURM's number of the job whose steps are started; None without a job.
    names : SLURM's names of the nodes, if they were chosen from the nodes of the job.
    here : the address at which the processes reach a server of this machine.
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
    """Return the place of every process of a run, as `Place.of` reads it.

    Ranks are numbered node by node. A rank gets `cores_per_process` cores of its node. A process
    gets the cores of all its ranks. A process that is not bound gets all cores of the node.
    """
    per_node = processes_per_node(layout, strategy)
    process_ranks = layout.processes // per_node
    process_cores = knobs["cores_per_process"] * process_ranks
    addresses = [
        f"{node.address}:{node.ports[local]}" for node in nodes for local in range(per_node)
    ]
    extra_addresses = [f"{nodes[0].address}:{port}" for port in nodes[0].ports[per_node:]]
    entries = []
    for number, node in enumerate(nodes):
        for local in range(per_node):
            # If there are too few cores, processes share them.
            positions = range(local * process_cores, (local + 1) * process_cores)
            cores = sorted({node.cores[position % len(node.cores)] for position in positions})
            process = number * per_node + local
            entries.append(
                asdict(
                    Place(
                        process=process,
                        processes=layout.nodes * per_node,
                        ranks=list(range(process * process_ranks, (process + 1) * process_ranks)),
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
    return entries
