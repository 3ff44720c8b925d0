"""Read layouts such as `2x1`, and assign rows of a step and cores to their processes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Layout:
    """`nodes` machines with `processes` ranks on each."""

    nodes: int
    processes: int

    @classmethod
    def parse(cls, text: str) -> Layout:
        """Read `NODESxPROCS`.

        Raises
        ------
        ValueError : `text` is not of that form.
        """
        match = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)", text)
        if match is None:
            raise ValueError(f"{text!r} is not of the form NODESxPROCS, such as 1x2")
        return cls(*map(int, match.groups()))

    @property
    def ranks(self) -> int:
        return self.nodes * self.processes

    def __str__(self) -> str:
        return f"{self.nodes}x{self.processes}"


def global_batch(training: Mapping[str, Any], ranks: int) -> int:
    """Return the rows of a step of all ranks together, from the settings of a training."""
    batch = training["batch"]
    return batch["rows"] * (ranks if batch["per"] == "rank" else 1)


def assign_cores(processes: int, per_process: int, available: list[int]) -> list[list[int]]:
    """Give each process of a node its own cores, or shared ones if there are too few.

    Returns
    -------
    `processes` lists of at most `per_process` distinct core numbers; the lists are disjoint if
    `processes * per_process <= len(available)`.
    """
    return [
        sorted({available[(p * per_process + i) % len(available)] for i in range(per_process)})
        for p in range(processes)
    ]
