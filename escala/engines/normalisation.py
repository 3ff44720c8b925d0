"""Normalisation over the rows of all ranks, as layers of any framework are told of their step.

A workload builds its model with a layer that normalises over all ranks, and knows no strategy. The
step of a rank calls the model within `over_ranks`, which gives the layers the weight of each row
and the strategy's sum over ranks. Elsewhere they normalise over the rows that they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from escala.core.errors import Unavailable


@dataclass(frozen=True)
class Step:
    """The step of a rank in which layers are called, with the numbers of their exchanges."""

    weights: Any
    summed: Callable | None
    numbers: Iterator[int] = field(default_factory=count)


#: Each replica of a process may run in its own thread, and each thread has its own value.
STEP: ContextVar[Step | None] = ContextVar("step", default=None)


@contextmanager
def over_ranks(weights: Any, summed: Callable | None) -> Iterator[None]:
    """Let layers called in this context normalise over the rows of all ranks.

    `weights`, float32 (rows,), are how often each row counts: 0 excludes a row from the statistics.
    `summed` takes a tensor, and what else the layer gives, and returns the sum of the tensor over
    all ranks, with its gradient; None is for this rank only.
    """
    token = STEP.set(Step(weights, summed))
    try:
        yield
    finally:
        STEP.reset(token)


def require_whole_steps(synchronised: Sequence, parts: int) -> None:
    """Refuse layers that normalise over all ranks if each rank computes its rows in several parts.

    A rank with fewer rows than parts would exchange less often than the others. `parts` is the knob
    `accumulation`.
    """
    if parts > 1 and synchronised:
        raise Unavailable(
            f"the model normalises over all ranks, which needs accumulation: 1, not {parts}"
        )
