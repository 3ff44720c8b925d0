"""The place of one process of a run among the others."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """The place of one process of a run among the others.

    `process` of `processes` is its number; `ranks` are those it holds; `local` is its number on its
    `node`. `addresses` are of all processes in their order, `ADDRESS:PORT`; `extra_addresses` are
    two more on the first node. `memory` is what its node had available before the run started, in
    bytes, None if unknown. `interface` is that of the network over which the processes exchange.
    """

    process: int
    processes: int
    ranks: list[int]
    node: int
    nodes: int
    local: int
    processes_per_node: int
    host: str
    cores: list[int]
    addresses: list[str]
    extra_addresses: list[str]
    memory: int | None = None
    interface: str = ""

    @classmethod
    def of(cls, plan: dict, process: int) -> Place:
        """Return the place of a process from what `places` put into a run's plan."""
        return cls(**plan["places"][process])
