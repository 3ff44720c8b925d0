"""The base of strategies whose ranks exchange through Open MPI."""

from __future__ import annotations

from escala.strategies.base import MPI, Strategy

#: Open MPI's limits for messages over TCP: bytes sent at once, and bytes of each later piece.
_AT_ONCE = ("eager_limit", "rndv_eager_limit", "max_send_size")


class OpenMPI(Strategy):
    meets_by = MPI

    @classmethod
    def environment(cls, knobs):
        found = super().environment(knobs)
        found["OMPI_MCA_mpi_yield_when_idle"] = str(int(knobs["yield_when_idle"]))
        if knobs["eager_limit_mib"] is not None:
            size = str(round(knobs["eager_limit_mib"] * 2**20))
            found |= {f"OMPI_MCA_btl_tcp_{name}": size for name in _AT_ONCE}
        return found
