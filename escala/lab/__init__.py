"""Emulate a SLURM cluster on one machine, with links of a selected rate between its nodes.

Every node is a network namespace with its own address and host name, and a `slurmd` that is pinned
to the cores of the node. A bridge joins the nodes and the scheduler.

| module | what it does |
|---|---|
| `state` | the lab's files, its description and its locks |
| `network` | bridge, namespaces and links: their rate, measurement and faults |
| `daemons` | `munged`, `slurmctld` and a `slurmd` per node, and their faults |
| `cluster` | the whole lab: up, status, down |

No other package of the library imports this package: commands pass `links` to other packages.
"""

from types import ModuleType

from escala.lab import network
from escala.lab.state import read_lab

__all__ = ["links", "read_lab"]


def links() -> ModuleType | None:
    """Return the controller of the links between nodes (`shape`, `measure`), None without a lab."""
    return network if read_lab() else None
