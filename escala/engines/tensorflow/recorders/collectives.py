"""Calls of collectives inside a rank, and its steps of each kind (`escala.probes.collectives`).

The time of a call is read within TensorFlow, where a training step calls it, so it leaves out what
Python takes to call TensorFlow.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import tensorflow as tf

from escala.core.files import write_json
from escala.engines.tensorflow.factors import Factors
from escala.engines.tensorflow.recorders import cores
from escala.probes import _threads
from escala.probes._turns import EXCHANGING, IN_TURNS, Blocks, Turns
from escala.probes.collectives import (
    AFTER,
    ALLREDUCE,
    ALONE,
    COMPUTING,
    FRACTIONS,
    OPERATIONS,
    TENSORFLOW,
    Collectives,
    library,
)
from escala.strategies import STRATEGIES

MOST_CALLS = 20
#: Skip a size if one call takes longer than this number of budgets (time of all calls of a size).
_MOST_BUDGETS = 4
#: Time in which the speed of products without calls is measured, and calls of TensorFlow that do
#: nothing, by which they become slower too.
_USUAL_SECONDS, _EMPTY_CALLS = 0.2, 200


def recorder(
    probe: Collectives,
    plan: Mapping,
    process: int,
    variables: Sequence[tf.Variable],
    inside: bool,
    independent: bool,
) -> Timed:
    """Return the recorder of a process, see `escala.engines.tensorflow.recorders`."""
    whole_steps = plan["train_rows"] // plan["global_batch"]
    steps = min(whole_steps, plan["max_steps"] or whole_steps)
    return Timed(
        probe.folder / f"rank{process}.collectives.json",
        probe.values,
        library(STRATEGIES[plan["strategy"]]),
        plan["knobs"]["threads"]["intra_op"] or plan["knobs"]["cores_per_process"],
        variables,
        inside and independent,
        process,
        plan["ranks"],
        Blocks.of(steps, probe.values["block"]),
    )


class Timed:
    """Times the collectives of one process when it is made, and its steps of each kind.

    `path` is the JSON file to write, and `values` are the settings of the probe. `threads` are
    those of a product in this process, `variables` the trained ones, and `blocks` those of the
    steps of an epoch. A rank can make steps without the other ranks if it is `independent`.
    """

    def __init__(
        self,
        path: Path,
        values: Mapping[str, Any],
        library: str,
        threads: int,
        variables: Sequence[tf.Variable],
        independent: bool,
        rank: int,
        ranks: int,
        blocks: Blocks,
    ):
        self._path, self._variables, self._blocks = path, variables, blocks
        collective = _by_tensorflow if library == TENSORFLOW else _by_horovod
        rates = cores.rates(values["rounds"], threads)
        self._timed = Timings(collective, values["sizes"], values["rounds"], values["seconds"])
        self._timed.before_steps()
        self._timed.meet()
        communicating = _threads.library_threads()
        self._turns = Turns(
            rank, ranks, blocks, self._timed.meet, partial(_threads.core_seconds, communicating)
        )
        self._record = {"library": library, "alone": independent, "core": rates}

    def step(self, compute: Callable, local: Callable, exchange: Callable, apply: Callable):
        """Return a step that applies a rank's own gradients, or exchanges them before.

        See `Recorder.step`.
        """
        self._exchanging = tf.Variable(False, trainable=False)

        def by_itself(*arguments):
            gradients, *sums = compute(*arguments)
            if any(isinstance(gradient, Factors) for gradient in gradients):
                # Each rank updates a part of the weights, so the ranks need each other.
                self._record["alone"] = False
            if not self._record["alone"]:
                apply(exchange(gradients))
            else:
                # Each branch applies its gradients, because an exchange may make sparse ones dense,
                # and returns a tensor, as it must.
                tf.cond(
                    self._exchanging,
                    lambda: tf.constant(len(apply(exchange(gradients)))),
                    lambda: tf.constant(len(apply(gradients))),
                )
            return tuple(sums)

        return by_itself

    def note(self, epoch: int, step: int, began: float, gathered: float, returned: float) -> None:
        """Record the time of a step, and wait for the turn of the next one."""
        if not self._record["alone"]:
            return
        self._turns.note(epoch, step, returned - began)
        if self._blocks.kind(epoch, step) not in (EXCHANGING, IN_TURNS):
            self._timed.after_step()
        # Only at changes: a call of TensorFlow between two short steps makes them longer.
        if self._blocks.begins(epoch, step + 1, EXCHANGING):
            self._exchanging.assign(True)
        elif self._blocks.ends(epoch, step, EXCHANGING):
            self._exchanging.assign(False)
        self._turns.wait(epoch, step)

    def write(self) -> None:
        if self._record["alone"]:
            import horovod.tensorflow as hvd

            hvd.broadcast_variables(self._variables, root_rank=0)
        record = self._record | {"rounds": self._turns.rounds, "times": self._timed.entries}
        write_json(self._path, record, durable=False)


#: Returns the result of an operation, by its name, the name of the tensor, and the tensor, within a
#: `tf.function`; every rank must call it.
Collective = Callable[[str, str, tf.Tensor], tf.Tensor]


def _by_horovod(operation: str, name: str, values: tf.Tensor) -> tf.Tensor:
    """Exchange through MPI or Gloo."""
    import horovod.tensorflow as hvd

    if operation == ALLREDUCE:
        return hvd.allreduce(values, op=hvd.Sum, name=name)
    return hvd.allgather(values, name=name)


def _by_tensorflow(operation: str, name: str, values: tf.Tensor) -> tf.Tensor:
    """Exchange by `tf.distribute`, under the strategy whose scope is entered."""

    def in_replica(values):
        # A tensor without a device is no destination; the identity has that of the replica.
        values, context = tf.identity(values), tf.distribute.get_replica_context()
        if operation == ALLREDUCE:
            return context.all_reduce(tf.distribute.ReduceOp.SUM, values)
        return context.all_gather(values, axis=0)

    return tf.distribute.get_strategy().run(in_replica, args=(values,))


class Call:
    """A collective that is called with the same values each time; every rank must call it."""

    def __init__(self, collective: Callable[[tf.Tensor], tf.Tensor], values: tf.Tensor):
        def between(values):
            began = tf.timestamp()
            with tf.control_dependencies([began]):
                result = collective(tf.identity(values))
            with tf.control_dependencies([result]):
                # Without a use of the result, TensorFlow may leave out the collective.
                return tf.timestamp() - began, result[0]

        self._call, self._values = tf.function(between, autograph=False), values

    def seconds(self) -> float:
        """Return the time of a call from within TensorFlow.

        If the clock is corrected meanwhile, the time measured from outside is returned instead.
        """
        before = time.perf_counter()
        within = float(self._call(self._values)[0])
        outside = time.perf_counter() - before
        return within if 0 < within <= outside else outside


class Timings:
    """Times the collectives of each operation and size, in calls of every rank.

    All calls of `before_steps` together take about so many `seconds`. `entries` are, of each
    operation and size, the seconds of each call of each repeat, by `WAYS`.
    """

    def __init__(self, collective: Collective, sizes: Sequence[int], repeats: int, seconds: float):
        budget = seconds / (repeats * len(OPERATIONS) * len(sizes) * 2)
        self._repeats, self._agree = repeats, _agreement(collective)
        self._entries: list[dict] = []
        self._calls: list[tuple[Call, int]] = []
        self._empty = Call(lambda values: values, tf.zeros(1))
        self._after: list[float] = []
        for operation in OPERATIONS:
            for number, size in enumerate(ordered := sorted(sizes)):
                name = f"collectives/{operation}/{size}"
                values = tf.zeros(size // 4, tf.float32)
                call = Call(partial(collective, operation, name), values)
                call.seconds()  # Connects the ranks.
                # The shorter one, because a call may once take many times as long.
                once = self._agree(min(cores.seconds_of(call.seconds) for _ in range(2)))
                count = max(1, min(MOST_CALLS, math.floor(budget / once)))
                self._entries.append({"operation": operation, "bytes": size})
                self._calls.append((call, count))
                larger = ordered[number + 1 : number + 2]
                if larger and once * larger[0] / size > _MOST_BUDGETS * budget:
                    break

    def before_steps(self) -> None:
        """Time all calls, with and without computing, in turns: a repeat has all of them."""
        for entry in self._entries:
            entry |= {way: [] for way in (ALONE, COMPUTING, FRACTIONS)}
        for _ in range(self._repeats):
            with cores.Computing() as computing:
                usual = computing.rate(_USUAL_SECONDS)
                self._empty.seconds()
                _, by_calling = computing.alongside(self._empty, _EMPTY_CALLS, usual)
            for entry, (call, count) in zip(self._entries, self._calls, strict=True):
                call.seconds()
                entry[ALONE].append([call.seconds() for _ in range(count)])
                with cores.Computing() as computing:
                    call.seconds()
                    found, lost = computing.alongside(call, count, usual)
                entry[COMPUTING].append(found)
                entry[FRACTIONS].append(max(1 - (lost - by_calling) * count / sum(found), 0.0))

    def after_step(self) -> None:
        """Time one call: that of the next entry."""
        call, _ = self._calls[len(self._after) % len(self._calls)]
        self._after.append(call.seconds())

    def meet(self) -> None:
        """Return when every rank has called it as often as this one."""
        self._agree(0.0)

    @property
    def entries(self) -> list[dict]:
        number = len(self._entries)
        whole = len(self._after) // number * number
        return [
            entry | {AFTER: [[each] for each in self._after[place:whole:number]]}
            for place, entry in enumerate(self._entries)
        ]


def _agreement(collective: Collective) -> Callable[[float], float]:
    """Return a function to the mean of a number over the ranks, so that all decide the same."""

    @tf.function(autograph=False)
    def total(values):
        return collective(ALLREDUCE, "collectives/agreement", values)

    def agree(value: float) -> float:
        both = total(tf.constant([value, 1.0], tf.float64)).numpy()
        return float(both[0] / both[1])

    return agree
