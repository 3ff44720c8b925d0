"""Horovod with control messages and data over MPI."""

from __future__ import annotations

from escala.strategies.horovod import Horovod, over
from escala.strategies.open_mpi import OpenMPI


class HorovodMPI(OpenMPI, Horovod):
    position = 2
    programs = "horovod"

    @classmethod
    def environment(cls, knobs):
        return super().environment(knobs) | over("mpi")
