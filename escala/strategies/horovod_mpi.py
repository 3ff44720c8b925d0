"""Horovod with control messages and data over MPI."""

from __future__ import annotations

from escala.strategies.horovod import Horovod
from escala.strategies.shared import open_mpi


class HorovodMPI(Horovod):
    name = "horovod-mpi"
    position = 2
    trains_by = frozenset({"steps", "command"})
    library_of_programs = "horovod"
    mpi = True

    @staticmethod
    def environment(knobs):
        return (
            Horovod.environment(knobs)
            | open_mpi.environment(knobs)
            | {"HOROVOD_CONTROLLER": "mpi", "HOROVOD_CPU_OPERATIONS": "mpi"}
        )
