"""The base of strategies that only start programs: nothing of a framework is theirs."""

from __future__ import annotations

from escala.strategies.base import Strategy


class ProgramStrategy(Strategy):
    trains_by = frozenset({"command"})

    def start(self):
        raise RuntimeError(f"{self.name} starts programs, and trains nothing itself")

    broadcast = total = stop = start


def torchrun_variables(place, interface):
    """Return the variables by which processes find each other, as `torchrun` sets them.

    torch.distributed, "Environment variable initialization". The port of `MASTER_PORT` was free
    when the run was prepared.
    """
    address, port = place.extra_addresses[0].rsplit(":", 1)
    return {
        "RANK": str(place.process),
        "WORLD_SIZE": str(place.processes),
        "LOCAL_RANK": str(place.local),
        "LOCAL_WORLD_SIZE": str(place.processes_per_node),
        "GROUP_RANK": str(place.node),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }
