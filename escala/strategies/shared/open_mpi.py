"""Variables of Open MPI that knobs set, for every strategy whose ranks exchange through it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Open MPI's limits for messages over TCP: bytes sent at once, and bytes of each later piece.
_AT_ONCE = ("eager_limit", "rndv_eager_limit", "max_send_size")


def environment(knobs: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables, from the knobs of `mpi.yaml`."""
    at_once = in_bytes(knobs["eager_limit_mib"])
    eager = {f"OMPI_MCA_btl_tcp_{name}": str(at_once) for name in _AT_ONCE if at_once}
    return eager | {"OMPI_MCA_mpi_yield_when_idle": str(int(knobs["yield_when_idle"]))}


def in_bytes(mebibytes: float | None) -> int | None:
    """Convert MiB to whole bytes; None stays None and means the library's default."""
    return None if mebibytes is None else round(mebibytes * 2**20)
