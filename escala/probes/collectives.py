"""Time the collectives of a run's library inside its ranks, and steps with and without exchange.

A collective inside TensorFlow and Horovod may take ten times as long as the same one in a
separate program (horovod#2378). So the ranks time them before their first step, with all threads
alive: each size alone, and while a further thread of the rank computes. How much slower this thread
then is tells what the library takes of the cores. A rank that is ready early waits for the others,
so the time of a call is the shortest of all ranks.

Most steps skip the exchange, where the library allows it. Blocks alternate between all ranks
computing together and one at a time; the ratio is the contention. After each step together, one of
the collectives is timed again, because its threads wait for the cores of a real step. A third kind
of block exchanges gradients as training does. How much longer its steps are is what the cost model
explains by the collectives, and more, because a step after a wait is slower. A step together
follows one of the collectives, and is slower if this one was long: this shifts a little exchange
time into contention, and leaves the sum of both. In the end all ranks get the weights of rank 0.

The method of repeats in turns is that of ReproMPI (S. Hunold, A. Carpen-Amarie, Reproducible MPI
benchmarking is still not as easy as you think, IEEE TPDS 27 (2016), 3617-3630).
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from escala.core.engines import COLLECTIVES
from escala.core.files import read_json, write_json
from escala.hook import escala_collectives as program
from escala.probes._turns import exchanges, library_fractions, slowdowns
from escala.probes.base import Probe, record, section, value
from escala.strategies import STRATEGIES

#: Whether sums and steps are timed by `measure`, from outside the steps.
FROM_OUTSIDE = os.environ.get("ESCALA_COLLECTIVES") == "outside"
MOST_CALLS = 20

ALLREDUCE, ALLGATHER = OPERATIONS = ("allreduce", "allgather")
#: How a call is timed: by itself, while the rank computes, and after a step.
ALONE, COMPUTING, AFTER = WAYS = "seconds", "computing_seconds", "after_step_seconds"
#: The speed at which a rank computes during a call, as a fraction of its usual one.
FRACTIONS = "computing_fractions"

#: Both sides of the sizes at which Open MPI changes its algorithm for a few ranks. From 2 MiB on, a
#: gather through Gloo may take twice as long (`docs/decisions/037-calibration.md`).
SIZES = tuple(2**10 * kib for kib in (1, 2, 8, 32, 128, 256, 1024, 2048, 4096, 16384, 65536))


def _list(description: str, unit: str, of: str = "repeat", **limits: float) -> dict:
    """Return the JSON Schema of numbers, one for each repeat or round of blocks."""
    items = {"type": "number", **limits}
    return value("array", f"{description}, one for each {of}.", unit, items=items)


_CORE = {
    "bytes_per_second": _list("Rate at which a core copies memory", "bytes/s", exclusiveMinimum=0),
    "operations_per_second": _list(
        "Floating-point operations of a core in a product", "1/s", exclusiveMinimum=0
    ),
}
_TIMES = {
    "operation": {"description": "The operation.", "enum": list(OPERATIONS)},
    "bytes": value(
        "integer",
        "Size of the tensor; of the part of one rank in an allgather.",
        "bytes",
        minimum=1,
    ),
    ALONE: _list("Mean time of a call, from within the framework", "s", exclusiveMinimum=0),
    COMPUTING: _list("The same while each rank computes", "s", exclusiveMinimum=0),
    FRACTIONS: _list(
        "Speed at which a rank computes during these calls, divided by its speed without them, and "
        "without what calls of the framework that do nothing take of the core",
        "1",
        minimum=0,
    ),
    AFTER: _list(
        "Time of a call right after a step that exchanged nothing", "s", exclusiveMinimum=0
    ),
}
_ROUND = "round of blocks"
_RESULT = {
    "library": {"description": "The library.", "enum": list(COLLECTIVES)},
    "alone": value("boolean", "Whether the ranks made steps that exchanged nothing."),
    "contention": _list(
        "Time of a step while all ranks compute, divided by that of a step while the other ranks "
        "wait; empty where the ranks exchanged in all their steps, or made no whole round",
        "1",
        _ROUND,
        exclusiveMinimum=0,
    ),
    "exchange_seconds": _list(
        "Time of a step that exchanges gradients as in training, minus that of a step that does "
        "not; empty where `contention` is",
        "s",
        _ROUND,
    ),
    "library_fractions": _list(
        "Fraction of a core that threads of the library take while a rank computes and exchanges "
        "nothing",
        "1",
        _ROUND,
        minimum=0,
    ),
    "alone_seconds": _list("Time of a step while the other ranks wait", "s", _ROUND),
    "core": {"description": "Rates of one core, while the other ranks measure theirs."}
    | record(_CORE),
    "times": value(
        "array",
        "Times of each operation and size.",
        items={"description": "An operation and size."} | record(_TIMES),
    ),
}


class Collectives(Probe):
    """Times of the collectives of a library, and of steps of ranks with and without exchange."""

    settings = section(
        "A separate run of each configuration of several ranks, which times the collectives of its "
        "library, and steps with and without exchange. A calibration is made from such runs.",
        enabled=False,
        sizes=value(
            "array",
            "Sizes that are exchanged. Those that would take too long are left out.",
            "bytes",
            minItems=2,
            uniqueItems=True,
            items={"type": "integer", "minimum": 4, "maximum": 2**30},
            default=list(SIZES),
        ),
        rounds=value(
            "integer",
            "Number of times that all sizes are timed, one after the other.",
            minimum=2,
            maximum=100,
            default=5,
        ),
        seconds=value(
            "number",
            "Time for all sizes and rounds together. It decides the number of calls of each.",
            "s",
            exclusiveMinimum=0,
            default=30,
        ),
        steps=value(
            "integer", "Training steps of such a run, of one epoch.", minimum=1, default=300
        ),
        block=value(
            "integer",
            "Steps of one kind that follow each other: with exchange, without it at the same time, "
            "or without it in turns. An epoch is divided into blocks of about this length.",
            minimum=1,
            default=10,
        ),
    )
    result: ClassVar[dict] = record(_RESULT) | value(
        "object?",
        "Times of collectives inside the ranks; null unless that is what the run captured.",
    )

    records_steps = not FROM_OUTSIDE

    @classmethod
    def steps(cls, values):
        return values["block"] if FROM_OUTSIDE else values["steps"]

    @classmethod
    def applies(cls, run):
        several = run.layout != "1x1"
        return several and super().applies(run) and run.declared.strategy.library is not None

    def _measure(self, engine: Any, step: Any, gather: Callable) -> None:
        """Time the collectives, and steps with and without exchange; every rank calls this.

        Means over the ranks count, but of a collective the shortest time of all ranks: one that is
        ready early waits for the others.
        """
        group, place, values = engine.group, engine.place, self.values
        rank, ranks = place.process, place.processes
        count = max(2, round(values["steps"] / values["block"] / 3))
        rows = np.zeros((count, 3))
        exchanging, alone = _steps(engine, step, gather)
        if engine.steps_alone:
            exchanging()
            alone()
            for row in rows:
                group.meet()
                row[0] = _mean(exchanging, values["block"])
                group.meet()
                row[1] = _mean(alone, values["block"])
                for turn in range(ranks):
                    group.meet()
                    if turn == rank:
                        row[2] = _mean(alone, values["block"])
                group.meet()
            exchanged, together, in_turns = (
                group.total(rows.ravel()).reshape(rows.shape) / ranks
            ).T
        else:
            exchanged = together = in_turns = np.empty(0)
        pieces = program.pieces()
        seconds = [
            [_seconds(pieces[name]) for name in ("copy", "product")]
            for _ in range(values["rounds"])
        ]
        copy, product = (group.total(np.array(seconds).ravel()).reshape(-1, 2) / ranks).T
        found = {
            "library": STRATEGIES[engine.plan["strategy"]].library,
            "alone": engine.steps_alone,
            "contention": (together / in_turns).tolist(),
            "exchange_seconds": (exchanged - together).tolist(),
            "alone_seconds": in_turns.tolist(),
            "library_fractions": [],
            "core": {
                "bytes_per_second": (program.BYTES / copy).tolist(),
                "operations_per_second": (
                    2 * 512**3 / product / engine.plan["knobs"]["cores_per_process"]
                ).tolist(),
            },
            "times": _sums(group, rank, ranks, values),
        }
        if rank == 0:
            write_json(self.folder / "collectives.json", found)

    measure = _measure if FROM_OUTSIDE else None

    def environment(self, strategy):
        return {"ESCALA_COLLECTIVES": "outside" if FROM_OUTSIDE else ""}

    def read(self, processes):
        if FROM_OUTSIDE:
            return read_json(self.folder / "collectives.json")
        files = [f"rank{number}.collectives.json" for number in range(len(processes))]
        return summary([read_json(self.folder / file) for file in files])


def summary(records: Sequence[Mapping]) -> dict:
    """Return the result of a run from the records of its ranks, in the form of `result`.

    The time of a call is the shortest of all ranks, and that of a repeat the mean of its calls.
    """
    first = records[0]
    rounds = [record["rounds"] for record in records]
    return {
        "library": first["library"],
        "alone": first["alone"],
        "alone_seconds": [],
        "contention": slowdowns(rounds),
        "exchange_seconds": exchanges(rounds),
        "library_fractions": library_fractions(rounds),
        "core": {name: _means([record["core"][name] for record in records]) for name in _CORE},
        "times": [
            {name: entries[0][name] for name in ("operation", "bytes")}
            | {way: _repeat_seconds([entry[way] for entry in entries]) for way in WAYS}
            | {FRACTIONS: _means([entry[FRACTIONS] for entry in entries])}
            for entries in zip(*(record["times"] for record in records), strict=True)
        ],
    }


def _means(by_rank: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of the ranks of each repeat."""
    return [sum(each) / len(each) for each in zip(*by_rank, strict=True)]


def _repeat_seconds(by_rank: Sequence[Sequence[Sequence[float]]]) -> list[float]:
    """Return the mean time of each repeat from the calls of each rank, (ranks, repeats, calls)."""
    found = []
    for repeats in zip(*by_rank, strict=True):
        shortest = [min(call) for call in zip(*repeats, strict=True)]
        found.append(sum(shortest) / len(shortest))
    return found


def _steps(engine: Any, step: Any, gather: Callable) -> tuple[Callable, Callable]:
    """Return calls that make a step with an exchange and one without, and return its seconds."""

    def exchanging() -> float:
        [made] = engine.make_steps([step], gather)
        return made.moments[2] - made.moments[0]

    def alone() -> float:
        began = time.perf_counter()
        [inputs] = gather([step], engine.place.ranks)
        engine.step_alone(inputs)
        return time.perf_counter() - began

    return exchanging, alone


def _mean(call: Callable[[], float], block: int) -> float:
    """Return the mean seconds of a block of steps without the first one, which follows a wait."""
    seconds = [call() for _ in range(block + 1)]
    return statistics.fmean(seconds[1:])


def _seconds(piece: Callable) -> float:
    piece()
    return statistics.median(program.seconds(piece) for _ in range(5))


def _sums(group: Any, rank: int, ranks: int, values: Mapping) -> list[dict]:
    """Return the seconds of each collective, one for each round of all of them."""
    timed = []
    budget = values["seconds"] / values["rounds"] / len(group.operations) / len(values["sizes"])
    for operation in group.operations:
        for size in sorted(values["sizes"]):
            call = group.collective(operation, size)
            call()  # Connects the ranks.
            once = float(group.total(np.array([min(call(), call())]))[0]) / ranks
            if once > 4 * budget:
                break
            entry = {"operation": operation, "bytes": size, ALONE: []}
            entry |= {name: [] for name in (COMPUTING, FRACTIONS, AFTER)}
            timed.append((entry, call, max(1, min(MOST_CALLS, int(budget / once)))))
    for _ in range(values["rounds"]):
        for entry, call, count in timed:
            group.meet()
            seconds = np.zeros((ranks, count))
            seconds[rank] = [call() for _ in range(count)]
            by_rank = group.total(seconds.ravel()).reshape(seconds.shape)
            entry[ALONE].append(float(by_rank.min(axis=0).mean()))
    return [entry for entry, *_ in timed]
