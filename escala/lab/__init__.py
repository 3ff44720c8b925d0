"""The lab: a SLURM cluster on one machine, with links of a chosen rate between its nodes.

Every node is a network namespace with an address and a host name of its own and a `slurmd` that is
pinned to the node's cores. A bridge joins the nodes and the scheduler, which runs beside them.

| module | what it does |
|---|---|
| `state` | what stands where, and who may change it |
| `network` | bridge, namespaces, links: their rate, its measurement, their faults |
| `daemons` | `munged`, `slurmctld` and a `slurmd` per node, and the faults of these |
| `cluster` | all of it: up, status, down |

What a job of the lab needs of it is here.
"""

from escala.lab.network import measure, shape
from escala.lab.state import location

__all__ = ["location", "measure", "shape"]
