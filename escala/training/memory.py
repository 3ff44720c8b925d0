"""The least memory that training takes on a node, and the refusal of a run that cannot fit."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from escala.core import readable
from escala.core.engines import ENGINES
from escala.engines import engine_name
from escala.engines.base import Engine, Footprint

#: What to do about a run that takes too much memory.
REMEDIES = "a smaller batch, a larger `accumulation`, or fewer processes on a node"


def node_bytes(
    footprint: Footprint, rows: Sequence[int], processes: int, engine: str, one_copy: bool = False
) -> int:
    """Return the least memory that the replicas of one node take.

    Each computes its number of `rows` at a time (`rows_of_ranks`); `processes` of the node train.
    With `one_copy` replicas share the variables, which a server holds: it and the process that
    hands out steps run on the node too. What differs between strategies and libraries is left out:
    buffers of an exchange, the scratch memory of operations, and copies that they make. Arrays of
    the reader `escala.data.base.Arrays` are mapped files, which the kernel can drop at any time, so
    they do not count either.
    """
    copies, others = (1, 2) if one_copy else (len(rows), 0)
    return (
        (processes + others) * ENGINES[engine].process_bytes
        + footprint.shared
        + copies * (footprint.variables + footprint.optimizer)
        + len(rows) * footprint.gradient
        + sum(rows) * footprint.row
    )


def rows_of_ranks(batch: int, ranks: int, parts: int, by_speed: bool) -> list[int]:
    """Return the rows that each rank computes at a time, from the most to the fewest.

    A step of all ranks has `batch` rows, in as many parts as the knob `accumulation` says. With
    `by_speed` ranks measure their speed before training, each with a whole batch. Stated fractions
    are not looked at: the rank with the most rows may have more than this.
    """
    whole = [batch] * ranks if by_speed else [(batch + n) // ranks for n in reversed(range(ranks))]
    return [math.ceil(rows / parts) for rows in whole]


def require(plan: Mapping[str, Any], engine: Engine, by_speed: bool) -> None:
    """Refuse a run that needs more memory than its node had available before it started.

    It is a MemoryError with the memory needed and available, and the remedies. All ranks of a node
    compare the same numbers. The engine has built the model; one on a GPU is not checked.
    """
    place, footprint = engine.group.place, engine.footprint()
    if place.memory is None or footprint is None:
        return
    batch = min(plan["global_batch"], plan["train_rows"])
    rows = rows_of_ranks(batch, plan["ranks"], plan["knobs"]["accumulation"], by_speed)
    replicas = place.processes_per_node * len(place.ranks)
    rows = rows[place.node * replicas :][:replicas]
    name = engine_name(plan["strategy"])
    needed = node_bytes(footprint, rows, place.processes_per_node, name, not engine.waits)
    if needed > place.memory:
        raise MemoryError(shortage(needed, place.memory, max(rows)))


def shortage(needed: float, available: float, rows: int) -> str:
    """Return why a run does not fit into memory, and the remedies."""
    return (
        f"needs at least {readable.size(needed)} of memory on a node, with {rows} rows of a rank "
        f"at a time, and {readable.size(available)} are available. Remedy: {REMEDIES}"
    )
