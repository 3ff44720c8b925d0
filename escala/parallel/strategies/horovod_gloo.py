"""Horovod whose control and data both go over Gloo: no MPI needed."""

from __future__ import annotations

from escala.parallel.strategies.horovod import Horovod


class HorovodGloo(Horovod):
    name = "horovod-gloo"
    launcher = "gloo"

    @staticmethod
    def environment(knobs):
        return {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CPU_OPERATIONS": "gloo"}
