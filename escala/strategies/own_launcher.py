"""A program that starts its ranks itself: `torchrun`, `accelerate launch`, `mp.spawn`, ….

One process a node is started, on the cores of all ranks of the node. The command says to it where
it is and how many ranks it starts: `{ranks_of_node}`, `{nodes}`, `{node}`, `{address}`, `{port}`.
"""

from __future__ import annotations

from escala.strategies.base import UNKNOWN, Layouts, Strategy
from escala.strategies.programs import interface_variables


class OwnLauncher(Strategy):
    position = 12
    programs = UNKNOWN
    layouts = Layouts(process_per_node=True)

    @classmethod
    def process_variables(cls, place, interface):
        return interface_variables(interface) | {
            # Open MPI 4 and 5 would bind ranks to the first cores of the machine, not to theirs.
            "OMPI_MCA_hwloc_base_binding_policy": "none",
            "PRTE_MCA_hwloc_default_binding_policy": "none",
        }
