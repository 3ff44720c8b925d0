"""Plain processes of a program, which find each other by `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, …."""

from __future__ import annotations

from escala.strategies.base import Strategy
from escala.strategies.programs import torchrun_variables


class Processes(Strategy):
    position = 10
    programs = "none"

    @classmethod
    def process_variables(cls, place, interface):
        return torchrun_variables(place, interface)
