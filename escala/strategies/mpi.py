"""Any program whose processes find each other through MPI."""

from __future__ import annotations

from escala.strategies.shared import open_mpi
from escala.strategies.shared.programs import ProgramStrategy


class MPI(ProgramStrategy):
    name = "mpi"
    position = 9
    mpi = True

    @staticmethod
    def environment(knobs):
        return open_mpi.environment(knobs)
