"""Any program whose processes find each other through MPI."""

from __future__ import annotations

from escala.strategies.shared import open_mpi
from escala.strategies.shared.programs import ProgramStrategy, meeting_variables


class MPI(ProgramStrategy):
    name = "mpi"
    position = 9
    library_of_programs = "mpi"
    mpi = True

    @staticmethod
    def environment(knobs):
        return open_mpi.environment(knobs)

    @staticmethod
    def process_variables(place, interface):
        # `mpirun` sets the place of a process, `srun` does not, and programs read it.
        return meeting_variables(place, interface) | {
            "OMPI_COMM_WORLD_RANK": str(place.process),
            "OMPI_COMM_WORLD_SIZE": str(place.processes),
            "OMPI_COMM_WORLD_LOCAL_RANK": str(place.local),
            "OMPI_COMM_WORLD_LOCAL_SIZE": str(place.processes_per_node),
            "OMPI_COMM_WORLD_NODE_RANK": str(place.local),
        }
