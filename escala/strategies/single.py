"""One process, which has nothing to synchronise."""

from __future__ import annotations

from escala.strategies.base import Strategy


class Single(Strategy):
    name = "single"
    position = 0
    trains_by = frozenset({"steps", "fit", "command"})
    only_one_rank = True
    # Its own factors are those of all ranks.
    gathers = True

    def start(self):
        return [0], 1

    def broadcast(self, variables):
        pass

    def total(self, values):
        return values

    def stop(self):
        pass
