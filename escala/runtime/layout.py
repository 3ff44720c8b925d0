"""Read layouts such as `2x1`, and assign rows of a step and cores to their processes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any


class Layout(str):
    """`nodes` machines with `processes` ranks on each. It is the text `NODESxPROCS` as well."""

    nodes: int
    processes: int

    def __new__(cls, nodes: int, processes: int) -> Layout:
        self = super().__new__(cls, f"{nodes}x{processes}")
        self.nodes, self.processes = nodes, processes
        return self

    def __getnewargs__(self) -> tuple[int, int]:
        return self.nodes, self.processes

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


def with_layout(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what was read from a file with its `layout` parsed."""
    return {**entry, "layout": Layout.parse(entry["layout"])}


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
