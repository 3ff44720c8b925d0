"""Steps that a process makes in one call, so that Python is entered and left once for all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice

import numpy as np

from escala.data.base import Arrays
from escala.training.step import gather

#: The rows of each rank in one step.
OfRanks = list[np.ndarray]
#: By number of steps, the compiled function that makes them; see `escala.training.step.train_step`.
#: One step is always among them.
Steps = Mapping[int, Callable]


def calls(steps: Iterable[OfRanks], at_once: int) -> Iterator[list[OfRanks]]:
    """Divide steps into calls, in their order: of `at_once` steps, or of a single one.

    In a call of several steps, each rank has as many rows in every step as in the others, and at
    least one. All ranks divide the steps alike, because each knows the rows of all.
    """
    remaining = iter(steps)
    while group := list(islice(remaining, at_once)):
        sizes = {tuple(map(len, of_ranks)) for of_ranks in group}
        if len(group) == at_once and len(sizes) == 1 and min(*sizes):
            yield group
        else:
            yield from ([of_ranks] for of_ranks in group)


def gathered(
    data: Arrays, call: Sequence[OfRanks], ranks: Sequence[int], divisors: Sequence[float]
) -> list[tuple]:
    """Return for each of some ranks what `gather` returns, with the rows of all steps of a call.

    Parameters
    ----------
    divisors : of each rank, the same in every step.
    """
    return [
        gather(data, np.concatenate([of_ranks[rank] for of_ranks in call]), divisors[rank])
        for rank in ranks
    ]
