"""Horovod with control messages and data over MPI."""

from __future__ import annotations

from escala.strategies.horovod import Horovod, in_bytes

#: Open MPI's limits for messages over TCP: bytes sent at once, and bytes of each later piece.
_AT_ONCE = ("eager_limit", "rndv_eager_limit", "max_send_size")


class HorovodMPI(Horovod):
    name = "horovod-mpi"
    position = 2
    mpi = True

    @staticmethod
    def environment(knobs):
        at_once = in_bytes(knobs["eager_limit_mib"])
        eager = {f"OMPI_MCA_btl_tcp_{name}": str(at_once) for name in _AT_ONCE if at_once}
        return (
            Horovod.environment(knobs)
            | eager
            | {
                "HOROVOD_CONTROLLER": "mpi",
                "HOROVOD_CPU_OPERATIONS": "mpi",
                "OMPI_MCA_mpi_yield_when_idle": str(int(knobs["yield_when_idle"])),
            }
        )
