"""Time the collectives of a run's library inside its ranks, and steps with and without exchange.

A collective inside TensorFlow and Horovod may take ten times as long as the same one in a
separate program (horovod#2378). So the ranks time collectives when their model is built and warm,
in rounds of all sizes. A rank that is ready early waits for the others, so the time of a call is
the shortest of all ranks.

The speed of a machine drifts within seconds, so three kinds of steps alternate in blocks: with the
exchange of training, without it by all ranks at the same time, and without it by one rank at a
time. Within a round, the contention is the time of the second kind divided by that of the third.
The time of the first kind minus that of the second is what a step loses by its exchange. The cost
model explains this loss by the collectives, and by a slower step after each wait.

The method of rounds is that of ReproMPI (S. Hunold, A. Carpen-Amarie, Reproducible MPI benchmarking
is still not as easy as you think, IEEE TPDS 27 (2016), 3617-3630).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, ClassVar

import numpy as np

from escala.core.engines import COLLECTIVES
from escala.core.files import read_json, write_json
from escala.hook import escala_collectives
from escala.probes.base import Probe, object_schema, section, value
from escala.strategies import STRATEGIES

ALLREDUCE, ALLGATHER = OPERATIONS = ("allreduce", "allgather")
_MOST_CALLS = 20
#: A size and all larger sizes are left out if one call takes more than this many times the budget,
#: the seconds for one size in one round.
_MOST_BUDGETS = 4
#: Where rank 0 leaves the result, in the run's `ranks/` folder.
_FILE = "collectives.json"

#: Sizes below and above those at which Open MPI changes its algorithm for a few ranks. From 2 MiB
#: on, a gather through Gloo may take twice as long (`docs/decisions/predictions.md`).
SIZES = tuple(2**10 * kib for kib in (1, 2, 8, 32, 128, 256, 1024, 2048, 4096, 16384, 65536))


def _numbers(description: str, unit: str, of: str = "repeat", **limits: float) -> dict:
    """Return the JSON Schema of numbers, one for each repeat or round of blocks."""
    items = {"type": "number", **limits}
    return value("array", f"{description}, one for each {of}.", unit, items=items)


_ROUND = "round of blocks"
_RESULT = {
    "library": {"description": "The library.", "enum": list(COLLECTIVES)},
    "contention": _numbers(
        "Time of a step while all ranks compute, divided by that of a step while the other ranks "
        "wait; empty where the ranks exchange in all their steps",
        "1",
        _ROUND,
        exclusiveMinimum=0,
    ),
    "exchange_seconds": _numbers(
        "Time of a step that exchanges gradients as in training, minus that of a step that does "
        "not; empty where `contention` is empty",
        "s",
        _ROUND,
    ),
    "alone_seconds": _numbers(
        "Time of a step while the other ranks wait; empty where `contention` is empty",
        "s",
        _ROUND,
        exclusiveMinimum=0,
    ),
    "core": {"description": "Rates of one core, while the other ranks measure their cores."}
    | object_schema(
        {
            "bytes_per_second": _numbers(
                "Rate at which a core copies memory", "bytes/s", exclusiveMinimum=0
            ),
            "operations_per_second": _numbers(
                "Floating-point operations of a core per second", "1/s", exclusiveMinimum=0
            ),
        }
    ),
    "times": value(
        "array",
        "Times of each operation and size.",
        items={"description": "An operation and size."}
        | object_schema(
            {
                "operation": {"description": "The operation.", "enum": list(OPERATIONS)},
                "bytes": value(
                    "integer",
                    "Size of the tensor; in an allgather, of the part of one rank.",
                    "bytes",
                    minimum=1,
                ),
                "seconds": _numbers(
                    "Mean time of a call, from within the framework", "s", exclusiveMinimum=0
                ),
            }
        ),
    ),
}


class Collectives(Probe):
    """Times of the collectives of a library, and of steps of ranks with and without exchange."""

    settings = section(
        "A separate run of several ranks, which times the collectives of its library, and "
        "steps with and without exchange, for a calibration.",
        enabled=False,
        sizes=value(
            "array",
            "Sizes to exchange, without those that would take too long.",
            "bytes",
            minItems=2,
            uniqueItems=True,
            items={"type": "integer", "minimum": 4, "maximum": 2**30},
            default=list(SIZES),
        ),
        rounds=value(
            "integer",
            "How often all sizes are timed.",
            minimum=2,
            maximum=100,
            default=5,
        ),
        seconds=value(
            "number",
            "Time for all sizes and rounds.",
            "s",
            exclusiveMinimum=0,
            default=30,
        ),
        steps=value("integer", "Steps of all three kinds.", minimum=1, default=300),
        block=value(
            "integer",
            "Steps of one kind that follow each other: with exchange, without it at the "
            "same time, or without it in turns.",
            minimum=1,
            default=10,
        ),
    )
    result: ClassVar[dict] = object_schema(_RESULT) | value(
        "object?",
        "Times of collectives inside the ranks; null in a run without this probe.",
    )

    temporary = (_FILE,)

    @classmethod
    def applies(cls, run):
        several = run.layout != "1x1"
        return several and super().applies(run) and run.declared.strategy.library is not None

    @classmethod
    def steps(cls, values):
        return values["block"]

    def measure(self, engine, rows, gather):
        """Time the collectives and the steps, as means over the ranks. Every rank calls this."""
        group, place, values = engine.group, engine.place, self.values
        pieces, rounds = escala_collectives.pieces(), []
        for _ in range(values["rounds"]):
            medians = []
            for piece in (pieces["copy"], pieces["product"]):
                piece()  # The first call, which is not timed, touches the memory of the piece.
                medians.append(
                    statistics.median(escala_collectives.seconds(piece) for _ in range(5))
                )
            rounds.append(medians)
        copy, product = _gather_values(group, place, rounds).mean(axis=0).T
        cores, operations = engine.plan["knobs"]["cores_per_process"], escala_collectives.OPERATIONS
        times = _time_collectives(group, place, values)
        exchanging, together, in_turns = _time_steps(engine, rows, gather, values)
        if place.process == 0:
            result = {
                "library": STRATEGIES[engine.plan["strategy"]].library,
                "contention": (together / in_turns).tolist(),
                "exchange_seconds": (exchanging - together).tolist(),
                "alone_seconds": in_turns.tolist(),
                "core": {
                    "bytes_per_second": (escala_collectives.BYTES / copy).tolist(),
                    "operations_per_second": (operations / product / cores).tolist(),
                },
                "times": times,
            }
            write_json(self.folder / _FILE, result, durable=False)

    def read(self, processes):
        return read_json(self.folder / _FILE)


def _gather_values(group: Any, place: Any, values: Any) -> np.ndarray:
    """Return the values of all processes, (processes, ...). Every process calls this."""
    values = np.asarray(values, np.float64)
    by_process = np.zeros((place.processes, *values.shape))
    by_process[place.process] = values
    return group.total(by_process.ravel()).reshape(by_process.shape)


def _time_collectives(group: Any, place: Any, values: Mapping) -> list[dict]:
    """Return `operation`, `bytes` and `seconds` of each size, with one time for each round."""
    timings, calls = [], []
    budget = values["seconds"] / values["rounds"] / len(group.operations) / len(values["sizes"])
    for operation in group.operations:
        for size in sorted(values["sizes"]):
            call = group.collective(operation, size)
            call()  # The first call connects the ranks.
            # The shorter of two calls, because a single call may take many times as long.
            once = float(_gather_values(group, place, min(call(), call())).mean())
            if once > _MOST_BUDGETS * budget:
                break
            timings.append({"operation": operation, "bytes": size, "seconds": []})
            calls.append((call, max(1, min(_MOST_CALLS, int(budget / once)))))
    for _ in range(values["rounds"]):
        for timing, (call, count) in zip(timings, calls, strict=True):
            group.meet()
            by_rank = _gather_values(group, place, [call() for _ in range(count)])
            timing["seconds"].append(float(by_rank.min(axis=0).mean()))
    return timings


def _time_steps(engine: Any, rows: Any, gather: Callable, values: Mapping) -> np.ndarray:
    """Return the mean seconds of steps of each kind and round, of shape (3, rounds).

    The kinds are: with exchange, without it at the same time, and without it in turns. The first
    step of a block is left out, because the cores did something else before that step. If a rank
    cannot make steps by itself, no round is timed.
    """
    group, place = engine.group, engine.place

    def exchange() -> float:
        [finished] = engine.make_steps([rows], gather)
        return finished.moments[2] - finished.moments[0]

    def alone() -> float:
        began = time.perf_counter()
        [inputs] = gather([rows], place.ranks)
        engine.step_alone(inputs)
        return time.perf_counter() - began

    def block(call: Callable[[], float]) -> float:
        return statistics.fmean([call() for _ in range(values["block"] + 1)][1:])

    def in_turns() -> float:
        for turn in range(place.processes):
            group.meet()
            if turn == place.process:
                seconds = block(alone)
        return seconds

    rounds = []
    if engine.steps_alone:
        exchange()
        alone()
        for _ in range(max(2, round(values["steps"] / values["block"] / 3))):
            seconds = []
            for kind in (partial(block, exchange), partial(block, alone), in_turns):
                group.meet()
                seconds.append(kind())
            rounds.append(seconds)
    return _gather_values(group, place, np.reshape(rounds, (-1, 3))).mean(axis=0).T
