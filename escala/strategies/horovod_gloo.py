"""Horovod with control messages and data over Gloo, without MPI."""

from __future__ import annotations

from escala.strategies.base import RENDEZVOUS
from escala.strategies.horovod import Horovod, over


class HorovodGloo(Horovod):
    position = 3
    programs = "horovod"
    meets_by = RENDEZVOUS

    @classmethod
    def environment(cls, knobs):
        return super().environment(knobs) | over("gloo")

    @classmethod
    def process_variables(cls, place, interface):
        # The variables that `horovodrun` sets for each process that it starts.
        return {
            "HOROVOD_HOSTNAME": place.host,
            "HOROVOD_RANK": str(place.process),
            "HOROVOD_SIZE": str(place.processes),
            "HOROVOD_LOCAL_RANK": str(place.local),
            "HOROVOD_LOCAL_SIZE": str(place.processes_per_node),
            "HOROVOD_CROSS_RANK": str(place.node),
            "HOROVOD_CROSS_SIZE": str(place.nodes),
        }
