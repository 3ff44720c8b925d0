"""Any program whose processes find each other through MPI."""

from __future__ import annotations

from escala.strategies.open_mpi import OpenMPI
from escala.strategies.programs import meeting_variables


class MPI(OpenMPI):
    position = 9
    programs = "mpi"

    @classmethod
    def process_variables(cls, place, interface):
        # `mpirun` sets the place of a process, `srun` does not, and programs read it.
        return meeting_variables(place, interface) | {
            "OMPI_COMM_WORLD_RANK": str(place.process),
            "OMPI_COMM_WORLD_SIZE": str(place.processes),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(place.local),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(place.processes_per_node),
            "OMPI_COMM_WORLD_NODE_RANK": str(place.local),
        }
