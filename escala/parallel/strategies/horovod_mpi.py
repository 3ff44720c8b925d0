"""Horovod whose control and data both go over MPI."""

from __future__ import annotations

from escala.parallel.strategies.horovod import Horovod


class HorovodMPI(Horovod):
    name = "horovod-mpi"
    mpi = True

    @staticmethod
    def environment(knobs):
        return Horovod.environment(knobs) | {
            "HOROVOD_CONTROLLER": "mpi",
            "HOROVOD_CPU_OPERATIONS": "mpi",
            "OMPI_MCA_mpi_yield_when_idle": str(int(knobs["yield_when_idle"])),
        }
