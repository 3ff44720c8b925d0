"""Plain processes of a program, which find each other by `RANK`, `WORLD_SIZE`, `MASTER_ADDR`, …."""

from __future__ import annotations

from escala.strategies.shared.programs import ProgramStrategy, torchrun_variables


class Processes(ProgramStrategy):
    name = "processes"
    position = 10
    library_of_programs = "none"

    @staticmethod
    def process_variables(place, interface):
        return torchrun_variables(place, interface)
