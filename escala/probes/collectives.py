"""Time the collectives of a run's library inside its ranks, and steps with and without exchange.

A collective inside TensorFlow and Horovod may take ten times as long as the same one in a program
of its own (horovod#2378). So the ranks time them before their first step, with all threads alive:
each size alone, and while a further thread of the rank computes. How much slower this thread then
is tells what the library takes of the cores. A rank that is ready early waits for the others. So
the time of a call is the shortest of all ranks.

Most steps of such a run exchange nothing, where the library allows it: each rank trains by itself,
in blocks of steps at the same time as the others, and in turns with them. Their ratio is what the
ranks lose by each other. After each step at the same time as the others, one of the collectives is
timed again, because its threads wait for the cores of a real step. A third kind of block exchanges
gradients as training does. How much longer its steps are is what the cost model explains by the
collectives, and more, because a step after a wait is slower. A step at the same time follows one of
the collectives, and is slower if this one was long. So a small part of the cost of an exchange
counts as contention instead, which leaves the sum of both as it is. In the end all ranks get the
weights of rank 0.

A step of training calls its collectives from within TensorFlow. So the time of a call is read there
too, and leaves out the time that Python takes to call TensorFlow.

Where ranks exchange through MPI, its own sum of the same bytes is timed beside Horovod's. The
method of repeats in turns is that of ReproMPI (S. Hunold, A. Carpen-Amarie, Reproducible MPI
benchmarking is still not as easy as you think, IEEE TPDS 27 (2016), 3617-3630).
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from escala.core.files import read_json, write_json
from escala.probes import _threads
from escala.probes._turns import (
    EXCHANGING,
    IN_TURNS,
    Blocks,
    Turns,
    exchanges,
    library_shares,
    slowdowns,
)
from escala.probes.base import Probe, section
from escala.strategies import STRATEGIES, Strategy

if TYPE_CHECKING:  # Experiments are read in processes without TensorFlow.
    import numpy as np
    import tensorflow as tf

#: Libraries that perform collectives.
MPI, GLOO, TENSORFLOW = LIBRARIES = ("mpi", "gloo", "tensorflow")
ALLREDUCE, ALLGATHER = OPERATIONS = ("allreduce", "allgather")
#: The speed at which a rank computes during a call, as a share of its usual one.
SHARES = "computing_shares"
#: How a call is timed: by itself, while the rank computes, after a step, and without Horovod.
ALONE, COMPUTING, AFTER, PLAIN = WAYS = (
    "seconds",
    "computing_seconds",
    "after_step_seconds",
    "plain_seconds",
)

#: Both sides of the sizes at which Open MPI changes its algorithm for a few ranks. From 2 MiB on, a
#: gather through Gloo may take twice as long (`docs/decisions/037-calibration.md`).
SIZES = tuple(2**10 * kib for kib in (1, 2, 8, 32, 128, 256, 1024, 2048, 4096, 16384, 65536))
MOST_CALLS = 20
#: A size is left out if one call of it would take longer than this many shares of the time.
_SHARES = 4
#: Numbers that are copied to measure the memory.
_COPIED = 2**24
#: Shape of a product of two factors. Its rows are many, because the model asks for the time of
#: further rows, without that of writing the result. If the number of inputs were a power of two,
#: they would compete for the same lines of the cache, and the product would take twice as long.
_ROWS, _INPUTS, _OUTPUTS = 256, 8000, 128
_COMPUTED = 256
#: Time in which calls are made before their rate is measured. In the first ones, the system gives
#: the memory of the result page by page.
_WARM_SECONDS = 0.3
#: Time in which the speed of products without calls is measured, and calls of TensorFlow that do
#: nothing, by which they become slower too.
_USUAL_SECONDS, _EMPTY_CALLS = 0.2, 200


def library(strategy: type[Strategy]) -> str | None:
    """Return the library by which the ranks of a strategy sum gradients, None without one.

    Replicas of one process, and ranks that do not step together, have none. That of a program is
    its own.
    """
    if "steps" not in strategy.trains_by:
        return None
    if strategy.only_one_rank or strategy.asynchronous or strategy.one_process_per_node:
        return None
    if strategy.mpi:
        return MPI
    return GLOO if strategy.rendezvous else TENSORFLOW


def _times(description: str) -> dict:
    """Return the JSON Schema of the times of a size, one for each repeat."""
    return {
        "description": f"{description}, one for each repeat.",
        "type": "array",
        "items": {"type": "number", "exclusiveMinimum": 0},
        "unit": "s",
    }


_TIMES = {
    "operation": {"description": "The operation.", "enum": list(OPERATIONS)},
    "bytes": {
        "description": "Size of the tensor; of the part of one rank in an allgather.",
        "type": "integer",
        "minimum": 1,
        "unit": "bytes",
    },
    ALONE: _times("Mean time of a call, from within TensorFlow"),
    COMPUTING: _times("The same while each rank computes"),
    SHARES: {
        "description": "Speed at which a rank computes during these calls, divided by its speed "
        "without them, one for each repeat. It leaves out what calls of TensorFlow that do nothing "
        "take of the core.",
        "type": "array",
        "items": {"type": "number", "minimum": 0},
        "unit": "1",
    },
    AFTER: _times("Time of a call right after a step that exchanged nothing"),
    PLAIN: _times(
        "Mean time of a call of MPI's own sum, without Horovod and from Python; empty where this "
        "was not timed"
    ),
}
_CORE = {
    "bytes_per_second": _times("Rate at which a core copies memory") | {"unit": "bytes/s"},
    "operations_per_second": _times("Floating-point operations of a core in a product")
    | {"unit": "1/s"},
}


class Collectives(Probe):
    """Times of the collectives of a library, and of steps of ranks with and without exchange."""

    scope = "rank"
    settings = section(
        "A separate run of each configuration of several ranks, which times the collectives of its "
        "library, and steps with and without exchange. A calibration is made from such runs.",
        enabled=False,
        sizes={
            "description": "Sizes that are exchanged. Those that would take too long are left out.",
            "type": "array",
            "minItems": 2,
            "uniqueItems": True,
            "items": {"type": "integer", "minimum": 4, "maximum": 2**30},
            "unit": "bytes",
            "default": list(SIZES),
        },
        rounds={
            "description": "Number of times that all sizes are timed, one after the other.",
            "type": "integer",
            "minimum": 2,
            "maximum": 100,
            "default": 5,
        },
        seconds={
            "description": "Time for all sizes and rounds together. It decides the number of "
            "calls of each.",
            "type": "number",
            "exclusiveMinimum": 0,
            "unit": "s",
            "default": 30,
        },
        steps={
            "description": "Training steps of such a run, of one epoch.",
            "type": "integer",
            "minimum": 1,
            "default": 300,
        },
        block={
            "description": "Steps of one kind that follow each other: with exchange, without it at "
            "the same time, or without it in turns. An epoch is divided into blocks of about this "
            "length.",
            "type": "integer",
            "minimum": 1,
            "default": 10,
        },
    )
    result: ClassVar[dict] = {
        "description": "Times of collectives inside the ranks; null unless that is what the run "
        "captured.",
        "type": ["object", "null"],
        "additionalProperties": False,
        "required": [
            "library",
            "alone",
            "contention",
            "exchange_seconds",
            "library_shares",
            "core",
            "times",
        ],
        "properties": {
            "library": {"description": "The library.", "enum": list(LIBRARIES)},
            "alone": {
                "description": "Whether the ranks made steps that exchanged nothing.",
                "type": "boolean",
            },
            "contention": {
                "description": "Time of a step while all ranks compute, divided by that of a step "
                "while the other ranks wait, one for each round of blocks. Empty where the ranks "
                "exchanged in all their steps, or made no whole round.",
                "type": "array",
                "items": {"type": "number", "exclusiveMinimum": 0},
                "unit": "1",
            },
            "exchange_seconds": {
                "description": "Time of a step that exchanges gradients as in training, minus "
                "that of a step that does not, one for each round of blocks. Empty where "
                "`contention` is.",
                "type": "array",
                "items": {"type": "number"},
                "unit": "s",
            },
            "library_shares": {
                "description": "Share of a core that threads of the library take while a rank "
                "computes and exchanges nothing, one for each round of blocks.",
                "type": "array",
                "items": {"type": "number", "minimum": 0},
                "unit": "1",
            },
            "core": {
                "description": "Rates of one core, while the other ranks measure theirs.",
                "type": "object",
                "additionalProperties": False,
                "required": list(_CORE),
                "properties": _CORE,
            },
            "times": {
                "description": "Times of each operation and size.",
                "type": "array",
                "items": {
                    "type": "object",
                    "additionalProperties": False,
                    "required": list(_TIMES),
                    "properties": _TIMES,
                },
            },
        },
    }

    @classmethod
    def applies(cls, run, strategy):
        several = run.layout != "1x1"
        return several and super().applies(run, strategy) and library(strategy) is not None

    def recorder(self, process, variables, inside, independent):
        plan = read_json(self.folder / "plan.json")
        measured = library(STRATEGIES[plan["strategy"]])
        threads = plan["knobs"]["threads"]["intra_op"] or plan["knobs"]["cores_per_process"]
        path = self.folder / f"rank{process}.collectives.json"
        whole_steps = plan["train_rows"] // plan["global_batch"]
        steps = min(whole_steps, plan["max_steps"] or whole_steps)
        blocks = Blocks.of(steps, self.values["block"])
        return Timed(
            path,
            self.values,
            measured,
            threads,
            variables,
            inside and independent,
            process,
            plan["ranks"],
            blocks,
        )

    def read(self, processes):
        return summary(
            [
                read_json(self.folder / f"rank{number}.collectives.json")
                for number in range(len(processes))
            ]
        )


def summary(records: Sequence[Mapping]) -> dict:
    """Return the result of a run from the records of its ranks, in the form of `result`.

    The time of a call is the shortest of all ranks, and that of a repeat the mean of its calls.
    """
    first = records[0]
    times = [
        {name: entry[name] for name in ("operation", "bytes")}
        | {way: _of_repeats([record["times"][number][way] for record in records]) for way in WAYS}
        | {SHARES: _means([record["times"][number][SHARES] for record in records])}
        for number, entry in enumerate(first["times"])
    ]
    core = {name: _means([record["core"][name] for record in records]) for name in _CORE}
    rounds = [record["rounds"] for record in records]
    return {
        "library": first["library"],
        "alone": first["alone"],
        "contention": slowdowns(rounds),
        "exchange_seconds": exchanges(rounds),
        "library_shares": library_shares(rounds),
        "core": core,
        "times": times,
    }


def _means(of_ranks: Sequence[Sequence[float]]) -> list[float]:
    """Return the mean of the ranks of each repeat."""
    return [sum(each) / len(each) for each in zip(*of_ranks, strict=True)]


def _of_repeats(of_ranks: Sequence[Sequence[Sequence[float]]]) -> list[float]:
    """Return the mean time of each repeat from the calls of each rank, (ranks, repeats, calls)."""
    found = []
    for repeats in zip(*of_ranks, strict=True):
        shortest = [min(call) for call in zip(*repeats, strict=True)]
        found.append(sum(shortest) / len(shortest))
    return found


class Timed:
    """Times the collectives of one process when it is made, and its steps of each kind.

    Parameters
    ----------
    path : the JSON file to write.
    values : the settings of the probe.
    library : one of `LIBRARIES`.
    threads : of a product in this process.
    variables : the trained variables.
    independent : whether a rank can make steps without the other ranks.
    rank : of `ranks` in all.
    blocks : of the steps of an epoch.
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
        calls = _TensorFlow() if library == TENSORFLOW else _Horovod()
        core = core_rates(values["rounds"], threads)
        self._timed = Timings(calls, values["sizes"], values["rounds"], values["seconds"])
        self._timed.before_steps(library == MPI)
        self._timed.meet()
        of_library = _threads.of_library()
        self._turns = Turns(
            rank, ranks, blocks, self._timed.meet, partial(_threads.core_seconds, of_library)
        )
        self._record = {"library": library, "alone": independent, "core": core}

    def step(self, compute: Callable, local: Callable, exchange: Callable, apply: Callable):
        """Return a step that applies a rank's own gradients, or exchanges them before.

        See `Recorder.step`.
        """
        import tensorflow as tf

        from escala.strategies.shared.factors import Factors

        self._exchanging = tf.Variable(False, trainable=False)

        def by_itself(*arguments):
            gradients, *sums = compute(*arguments)
            if any(isinstance(gradient, Factors) for gradient in gradients):
                # Each rank updates a part of the weights, so the ranks need each other.
                self._record["alone"] = False
            if not self._record["alone"]:
                apply(exchange(gradients))
            else:
                # Each branch applies its gradients, because an exchange may make sparse ones dense.
                tf.cond(
                    self._exchanging,
                    lambda: _done(apply(exchange(gradients))),
                    lambda: _done(apply(gradients)),
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


def _done(updated: Sequence[tf.Variable]) -> tf.Tensor:
    """Return a tensor of a branch that updates variables, which must return one."""
    import tensorflow as tf

    return tf.constant(len(updated))


class _Horovod:
    """The collectives of Horovod, through MPI or Gloo."""

    def __init__(self):
        import horovod.tensorflow as hvd

        self._hvd = hvd

    def call(self, operation: str, name: str, values: tf.Tensor) -> tf.Tensor:
        """Return the result of an operation within a `tf.function`; every rank must call it."""
        if operation == ALLREDUCE:
            return self._hvd.allreduce(values, op=self._hvd.Sum, name=name)
        return self._hvd.allgather(values, name=name)


class _TensorFlow:
    """The collectives of `tf.distribute`, under the strategy whose scope is entered."""

    def __init__(self):
        import tensorflow as tf

        self._strategy = tf.distribute.get_strategy()

    def call(self, operation: str, name: str, values: tf.Tensor) -> tf.Tensor:
        """Return the result of an operation within a `tf.function`; every rank must call it."""
        import tensorflow as tf

        def of_replica(values):
            # A tensor without a device is no destination; the identity has that of the replica.
            values, context = tf.identity(values), tf.distribute.get_replica_context()
            if operation == ALLREDUCE:
                return context.all_reduce(tf.distribute.ReduceOp.SUM, values)
            return context.all_gather(values, axis=0)

        return self._strategy.run(of_replica, args=(values,))


class Call:
    """A collective that is called with the same values each time; every rank must call it."""

    def __init__(self, collective: Callable[[tf.Tensor], tf.Tensor], values: tf.Tensor):
        import tensorflow as tf

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

        If the clock is corrected meanwhile, the time from without stands for it.
        """
        before = time.perf_counter()
        within = float(self._call(self._values)[0])
        outside = time.perf_counter() - before
        return within if 0 < within <= outside else outside


class Timings:
    """Times the collectives of each operation and size, in calls of every rank.

    Parameters
    ----------
    seconds : for all calls of `before_steps` together.

    Attributes
    ----------
    entries : of each operation and size, the seconds of each call of each repeat, by `WAYS`.
    """

    def __init__(
        self,
        collectives: _Horovod | _TensorFlow,
        sizes: Sequence[int],
        repeats: int,
        seconds: float,
    ):
        import tensorflow as tf

        share = seconds / (repeats * len(OPERATIONS) * len(sizes) * 2)
        self._repeats, self._agree = repeats, _agreement(collectives)
        self._entries: list[dict] = []
        self._calls: list[tuple[Call, int]] = []
        self._empty = Call(lambda values: values, tf.zeros(1))
        self._after: list[float] = []
        for operation in OPERATIONS:
            for number, size in enumerate(ordered := sorted(sizes)):
                name = f"collectives/{operation}/{size}"
                values = tf.zeros(size // 4, tf.float32)
                call = Call(partial(collectives.call, operation, name), values)
                call.seconds()  # Connects the ranks.
                # The shorter one, because a call may once take many times as long.
                once = self._agree(min(_seconds(Call.seconds, call) for _ in range(2)))
                count = max(1, min(MOST_CALLS, math.floor(share / once)))
                self._entries.append({"operation": operation, "bytes": size})
                self._calls.append((call, count))
                larger = ordered[number + 1 : number + 2]
                if larger and once * larger[0] / size > _SHARES * share:
                    break

    def before_steps(self, plain: bool) -> None:
        """Time all calls, with and without computing.

        Sizes and ways take turns: a repeat has all of them.

        Parameters
        ----------
        plain : whether to time MPI's own sum, too.
        """
        by_mpi = _plain_sum() if plain else None
        for entry in self._entries:
            entry |= {way: [] for way in (ALONE, COMPUTING, SHARES, PLAIN)}
        for _ in range(self._repeats):
            with _Computing() as computing:
                usual = computing.rate(_USUAL_SECONDS)
                self._empty.seconds()
                _, by_calling = computing.beside(self._empty, _EMPTY_CALLS, usual)
            for entry, (call, count) in zip(self._entries, self._calls, strict=True):
                call.seconds()
                entry[ALONE].append([call.seconds() for _ in range(count)])
                with _Computing() as computing:
                    call.seconds()
                    found, lost = computing.beside(call, count, usual)
                entry[COMPUTING].append(found)
                entry[SHARES].append(max(1 - (lost - by_calling) * count / sum(found), 0.0))
                if by_mpi and entry["operation"] == ALLREDUCE:
                    by_mpi(entry["bytes"])
                    entry[PLAIN].append([_seconds(by_mpi, entry["bytes"]) for _ in range(count)])

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


def _agreement(collectives: _Horovod | _TensorFlow) -> Callable[[float], float]:
    """Return a function to the mean of a number over the ranks, so that all decide the same."""
    import tensorflow as tf

    @tf.function(autograph=False)
    def total(values):
        return collectives.call(ALLREDUCE, "collectives/agreement", values)

    def agree(value: float) -> float:
        both = total(tf.constant([value, 1.0], tf.float64)).numpy()
        return float(both[0] / both[1])

    return agree


def _seconds(call: Callable, argument: Any) -> float:
    before = time.perf_counter()
    call(argument)
    return time.perf_counter() - before


class _Computing:
    """Computes products on the cores of this process in a further thread, within a context."""

    def __enter__(self) -> _Computing:
        self._done, self._ended = 0, threading.Event()
        self._thread = threading.Thread(target=self._compute, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _compute(self) -> None:
        import numpy as np

        values = np.ones((_COMPUTED, _COMPUTED), np.float32)
        while not self._ended.is_set():
            np.dot(values, values)
            self._done += 1

    def rate(self, seconds: float) -> float:
        """Return the products per second in some time without calls."""
        done, start = self._done, time.perf_counter()
        time.sleep(seconds)
        return (self._done - done) / (time.perf_counter() - start)

    def beside(self, call: Call, count: int, usual: float) -> tuple[list[float], float]:
        """Return the times of so many calls, and the seconds that computing loses by each.

        Parameters
        ----------
        usual : products per second without calls.
        """
        done, start = self._done, time.perf_counter()
        found = [call.seconds() for _ in range(count)]
        lost = time.perf_counter() - start - (self._done - done) / usual
        return found, lost / count


def _plain_sum() -> Callable[[int], None] | None:
    """Return a function that sums so many bytes by MPI, None if only one thread may call it.

    The names are those of Open MPI 4, `mpi.h`.
    """
    import horovod.tensorflow as hvd
    import numpy as np

    if not hvd.mpi_threads_supported():
        return None
    mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
    world, kind, total = (
        ctypes.byref(ctypes.c_char.in_dll(mpi, f"ompi_mpi_{name}"))
        for name in ("comm_world", "float", "op_sum")
    )
    buffers: dict[int, tuple[np.ndarray, np.ndarray]] = {}

    def sum_bytes(size: int) -> None:
        if size not in buffers:
            buffers[size] = np.zeros(size // 4, np.float32), np.zeros(size // 4, np.float32)
        sent, received = (ctypes.c_void_p(each.ctypes.data) for each in buffers[size])
        code = mpi.MPI_Allreduce(sent, received, ctypes.c_int(size // 4), kind, total, world)
        if code:
            raise RuntimeError(f"MPI_Allreduce returned {code}")

    return sum_bytes


def core_rates(repeats: int, threads: int) -> dict[str, list[float]]:
    """Return the rates of a core, one for each repeat.

    Parameters
    ----------
    threads : of a product in this process.

    Returns
    -------
    `bytes_per_second` that one thread copies from memory to memory, and `operations_per_second` of
    a core in the product of two factors of a dense layer's gradient.
    """
    import numpy as np
    import tensorflow as tf

    source, target = np.ones(_COPIED, np.float32), np.zeros(_COPIED, np.float32)
    inputs, outputs = tf.ones((_ROWS, _INPUTS)), tf.ones((_ROWS, _OUTPUTS))

    def copy(_) -> None:
        np.copyto(target, source)

    def multiply(_) -> None:
        tf.matmul(inputs, outputs, transpose_a=True)

    operations = 2 * _ROWS * _INPUTS * _OUTPUTS / threads
    return {
        "bytes_per_second": _rates(copy, source.nbytes, repeats),
        "operations_per_second": _rates(multiply, operations, repeats),
    }


def _rates(work: Callable, amount: float, repeats: int) -> list[float]:
    """Return rates of a call when its memory is in use already, as in a training step."""
    ready = time.perf_counter() + _WARM_SECONDS
    while time.perf_counter() < ready:
        work(None)
    return [amount / _seconds(work, None) for _ in range(repeats)]
