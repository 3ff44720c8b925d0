"""One process that makes Horovod's calls: shows the wrapper's cost without communication."""

from __future__ import annotations

from escala.strategies.base import Layouts
from escala.strategies.horovod import Horovod, over


class WrappedSingle(Horovod):
    position = 1
    layouts = Layouts(one_rank=True)

    @classmethod
    def environment(cls, knobs):
        return super().environment(knobs) | over("gloo")
