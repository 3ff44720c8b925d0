"""One process that makes Horovod's calls: shows the wrapper's cost without communication."""

from __future__ import annotations

from escala.strategies.horovod import Horovod


class WrappedSingle(Horovod):
    name = "wrapped-single"
    position = 1
    only_one_rank = True
    writes_timeline = False

    @staticmethod
    def environment(knobs):
        return Horovod.environment(knobs) | {
            "HOROVOD_CONTROLLER": "gloo",
            "HOROVOD_CPU_OPERATIONS": "gloo",
        }
