"""One process, which has nothing to synchronise."""

from __future__ import annotations

from escala.strategies.base import UNKNOWN, Layouts, Strategy


class Single(Strategy):
    position = 0
    engine = "tensorflow.single"
    programs = UNKNOWN
    layouts = Layouts(one_rank=True)
