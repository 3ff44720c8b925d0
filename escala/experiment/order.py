"""The order in which timing runs are measured."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from random import Random
from typing import TypeVar

from escala.experiment.runs import DUPLICATE, Run

T = TypeVar("T")


def permuted(runs: Sequence[T], repeat: int, seed: str) -> list[T]:
    """Return the runs of one repeat in the order of execution.

    The repeats have the rows of a balanced Latin square (E. J. Williams, 1949), whose names and
    rows are drawn from the seed. In as many repeats as there are runs, each run has each place
    once. If their number is even, each also comes right after each other one once; if it is odd, in
    twice as many repeats. So neither the place nor the run before favours a configuration.

    Parameters
    ----------
    runs : those of any repeat, always in the same order.
    repeat : from 1. An order does not depend on the number of repeats.
    """
    count = len(runs)
    names = Random(seed).sample(runs, count)
    block, row = divmod(repeat - 1, count)
    first = Random(f"{seed} {block}").sample(range(count), count)[row]
    # 0, 1, -1, 2, -2, …: all differences of neighbours are different.
    steps = [(place + 1) // 2 * (1 if place % 2 else -1) for place in range(count)]
    order = [names[(first + step) % count] for step in steps]
    return order[::-1] if count % 2 and block % 2 else order


def interleaved(runs: Sequence[Run], seed: str, tasks: Sequence[tuple[str, str]]) -> list[Run]:
    """Return timing runs outside ladders in the order of execution.

    The repeats come one after the other, in each the tasks, and in each of these its runs in an
    order drawn from the seed and the task.
    """
    groups: dict[tuple, list[Run]] = {}
    for run in runs:
        groups.setdefault((run.repeat, run.dataset, run.workload), []).append(run)
    places = {task: place for place, task in enumerate(tasks)}
    return [
        run
        for repeat, *task in sorted(groups, key=lambda group: (group[0], places[group[1:]]))
        for run in permuted(groups[repeat, *task], repeat, "/".join([seed, *task]))
    ]


def turns(timed: Sequence[Run]) -> dict[Run, dict[str, int]]:
    """Return the place of each timing run in its repeat, from 1, and the number of runs there.

    The runs of a repeat are those of its dataset and workload, or the two sides of a ladder's
    match. Their number and order hold if all are measured.
    """

    def group(run: Run) -> tuple:
        return (
            run.repeat,
            run.dataset,
            run.workload,
            None if run.series == DUPLICATE else run.series,
        )

    found = {}
    for _, members in itertools.groupby(timed, key=group):
        runs = list(members)
        found |= {run: {"place": n, "of": len(runs)} for n, run in enumerate(runs, start=1)}
    return found
