"""Horovod with control messages and data over Gloo, without MPI."""

from __future__ import annotations

import os

from escala.strategies.horovod import Horovod


class HorovodGloo(Horovod):
    name = "horovod-gloo"
    position = 3
    trains_by = frozenset({"steps", "command"})
    library_of_programs = "horovod"
    rendezvous = True

    @staticmethod
    def environment(knobs):
        return Horovod.environment(knobs) | {
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
        }

    @staticmethod
    def process_variables(place, interface):
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

    def start(self):
        os.environ.update(self.process_variables(self.place, ""))
        return super().start()
