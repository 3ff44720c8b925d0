"""Divide the steps of a training by the traces that profilers wrote of its ranks.

Profilers of PyTorch (Kineto) and JAX (XLA) write one file for each rank, in Chrome's format. A step
is a `ProfilerStep`, or a `StepTraceAnnotation`. The first one is left out if there are three or
more, because in it the profiler starts. Without these, the whole trace is one step. If parts
overlap at an instant, it counts once, for the first of them here:

| part, on a GPU | time of |
|---|---|
| compute | kernels, or operations of XLA on any device, without those of collectives |
| skew | a collective that another rank has not begun yet |
| transfer | a collective that all ranks have begun |
| copies | copies and fills of the memory of the GPU |
| input | the next batch of a DataLoader, in the thread that makes the steps |
| unexplained | none of these: the GPU waits for the processor |

| part, on a processor | time of |
|---|---|
| input | the next batch of a DataLoader, in the thread that makes the steps |
| compute | operators and the optimizer, in this thread, unless they await a collective |
| skew, transfer | as on a GPU |
| unexplained | none of these: Python between operators |

Steps that take over `_UNLIKE` times as long as the median step, or are as much shorter, are left
out: they hold an evaluation, or are cut. So skew and transfer are *exposed*: they make the step
longer. What of the collectives goes on beside other parts is `overlap`. Ranks begin their traces at
moments of their own clocks. The clocks are compared by the ends of the collectives, because all
ranks end one at about the same time. Which collective of one rank is which of another one is known
if all ranks have as many of each name, in steps of equal numbers, and if these end at about equal
times then.
"""

from __future__ import annotations

import math
import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from escala.analysis import laws
from escala.analysis.attribution import OVERLAP, UNEXPLAINED, WHOLE
from escala.analysis.intervals import cover_in_order, covered_between, join, subtract
from escala.core.errors import InputError
from escala.core.readable import milliseconds, with_noun
from escala.probes.timeline import MICROSECONDS, open_events

COMPUTE, SKEW, TRANSFER, COPIES, INPUT = "compute", "skew", "transfer", "copies", "input"
#: Further spans of a thread: steps, operators that await a collective, and optimizers.
STEP, _AWAIT, _OPTIMIZER = "step", "await", "optimizer"
#: What a breakdown tells of the exchange, beside its parts.
RATES = ("bytes", "rate", "needed")
#: The source of a part of a step.
SOURCE = "traces of PyTorch"
#: Parts in their order of precedence, without the rest.
_ON_GPU = (COMPUTE, SKEW, TRANSFER, COPIES, INPUT)
_ON_PROCESSOR = (INPUT, COMPUTE, SKEW, TRANSFER)
#: What a span is, by its category. Old traces have other categories.
_KERNEL, _COPY, _OPERATOR, _ANNOTATION = "kernel", "copy", "operator", "annotation"
_OF_XLA = "XLA"
CATEGORIES = {
    "kernel": _KERNEL,
    "gpu_memcpy": _COPY,
    "gpu_memset": _COPY,
    "memcpy": _COPY,
    "memset": _COPY,
    "cpu_op": _OPERATOR,
    "operator": _OPERATOR,
    "user_annotation": _ANNOTATION,
}
#: Annotations of the processor: a step, the next batch, an optimizer, and a collective of Gloo or
#: MPI. NCCL and RCCL run collectives as kernels.
_ANNOTATIONS = (
    (re.compile(r"ProfilerStep#"), STEP),
    (re.compile(r"enumerate\(DataLoader\)"), INPUT),
    (re.compile(r"Optimizer\.(step|zero_grad)#"), _OPTIMIZER),
    (re.compile(r"(gloo|mpi):(?!barrier|monitored)"), TRANSFER),
)
_COLLECTIVE_KERNEL = re.compile(r"nccl|rccl|mscclpp|nvshmem", re.IGNORECASE)
#: What XLA names its collectives.
_COLLECTIVE_OF_XLA = re.compile(
    r"all.(reduce|gather|to.all)|reduce.scatter|collective|psum|pmean|ppermute|nccl", re.IGNORECASE
)
#: The bytes of a number, by the names that traces give its type. Gloo does not name it: it is taken
#: for single precision.
_BYTES = {
    None: 4, "Byte": 1, "Char": 1, "Bool": 1, "Float8_e4m3fn": 1, "Float8_e5m2": 1, "Short": 2,
    "Half": 2, "BFloat16": 2, "Int": 4, "Float": 4, "Long": 8, "Double": 8,
}  # fmt: skip
#: More numbers than these are an error of a trace.
_MOST_NUMBERS = 2**60
#: Collectives of Gloo whose shapes are lists of lists, which traces leave out.
_WITHOUT_SHAPES = {
    f"c10d::{name}_" for name in ("allgather", "gather", "scatter", "reduce_scatter")
}
#: Operations of XLA that hold others, and operators of PyTorch that begin or await a collective.
_HOLDS_OTHERS = re.compile(r"(while|conditional|call)(\.\d+)?$")
_OF_COLLECTIVE = ("c10d::", "_c10d_functional::", "record_param_comms")
#: The rank and the number of ranks in the head of a file; and the rank in the name of a file.
_RANK, _WORLD = (
    re.compile(rb'"distributedInfo"\s*:\s*\{.*?"%s"\s*:\s*(\d+)' % name, re.DOTALL)
    for name in (b"rank", b"world_size")
)
_RANK_OF_NAME = re.compile(r"rank[-_]?(\d+)")
#: The fewest steps of which the first is left out; and see above.
_STEPS_WITH_FIRST, _UNLIKE = 3, 3.0
#: A longer span is no span of a step, in microseconds.
_LONGEST = 1e12
#: What shortens a part of a step. It is told if the part is at least this fraction of the step.
REMEDIES = {
    SKEW: "give all ranks equal batches, and cores that nothing else uses",
    TRANSFER: "exchange less often: a larger batch, or several batches before an exchange "
    "(`no_sync()` of PyTorch)",
    COPIES: "copy batches beside the steps: pinned memory, and copies that do not block",
    INPUT: "load batches beside the steps: a worker for the loader, or more of them",
    UNEXPLAINED: "make fewer and larger operations: a larger batch, or a compiled step",
}
WORTH = 0.1
#: What shortens the transfer if its link is quick enough to exchange beside computing.
BEGIN_EARLIER = "begin the exchange earlier: smaller buckets (`bucket_cap_mb` of PyTorch's DDP)"
#: Collectives are those of equal steps if the ends of half of them differ by at most this part of a
#: step.
_EQUAL = 0.2
#: Marked steps are those of a device if at least this part of its work is in them.
_WITHIN = 0.8


def category_of(event: dict) -> str | None:
    """Return what the span of an event of a trace is; None for one of no rank's training."""
    if event["ph"] != "X":
        return None
    arguments = event.get("args")
    if type(arguments) is dict and ("hlo_op" in arguments or "step_num" in arguments):
        return _OF_XLA
    return CATEGORIES.get(str(event.get("cat", "")).lower())


def _spans() -> array:
    """Return an empty list of begins and ends, one after the other."""
    return array("d")


@dataclass(eq=False)
class Trace:
    """The spans that are kept of the trace of a rank, in seconds of its clock.

    Attributes
    ----------
    path : its file.
    rank, world : its rank and the number of ranks; None if the file does not tell it.
    kernels, copies : spans of the GPU; those of XLA are kernels on any device.
    devices : the devices of the kernels.
    by_thread : spans of the processor by their part, and by thread.
    collectives : spans of the collectives by their names.
    messages : of collectives that tell what they move, by the category of their spans, four numbers
        each: when it began; its bytes; its ranks, or 0; whether each rank keeps its own part.
    step_names : names and numbers of its steps.
    launches : how many collectives the processor starts on a GPU.
    spans : how many spans of known categories it has.
    damage : why the file was not read to its end; None if it was.
    """

    path: Path
    rank: int | None = None
    world: int | None = None
    devices: set[object] = field(default_factory=set)
    kernels: array = field(default_factory=_spans)
    copies: array = field(default_factory=_spans)
    by_thread: dict[str, dict[object, array]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(_spans))
    )
    collectives: dict[str, array] = field(default_factory=lambda: defaultdict(_spans))
    messages: dict[str, array] = field(default_factory=lambda: defaultdict(_spans))
    step_names: set[str] = field(default_factory=set)
    launches: int = 0
    spans: int = 0
    damage: str | None = None

    def add(self, event: dict) -> None:
        category, lasted = category_of(event), event.get("dur")
        if category is None or type(lasted) not in (int, float) or not 0 <= lasted < _LONGEST:
            return
        self.spans += 1
        began, name = event["ts"] * MICROSECONDS, event["name"]
        span = began, began + lasted * MICROSECONDS
        thread, arguments = (event["pid"], str(event.get("tid"))), event.get("args")
        arguments = arguments if type(arguments) is dict else {}
        if category == _OF_XLA:
            if "step_num" in arguments:
                self.by_thread[STEP][thread].extend(span)
                self.step_names.add(f"{name} {arguments['step_num']}")
            elif _COLLECTIVE_OF_XLA.search(f"{arguments['hlo_op']} {name}"):
                self.collectives[f"{arguments.get('hlo_module')} {name}"].extend(span)
            elif not _HOLDS_OTHERS.match(name):
                self.devices.add((event["pid"], str(arguments.get("device_ordinal"))))
                self.kernels.extend(span)
        elif category == _KERNEL:
            self.devices.add(str(arguments.get("device")))
            if _COLLECTIVE_KERNEL.search(name):
                group = arguments.get("Process Group Name", "")
                self.collectives[f"{group} {arguments.get('Collective name', name)}"].extend(span)
                self._add_message(category, arguments.get("Collective name", ""), began, arguments)
            else:
                self.kernels.extend(span)
        elif category == _COPY:
            self.copies.extend(span)
        elif category == _OPERATOR and not ("#" in name and _annotated(name)):
            part = _AWAIT if name.startswith(_OF_COLLECTIVE) else COMPUTE
            self.by_thread[part][thread].extend(span)
            if name.startswith("c10d::"):
                self._add_message(category, name, began, arguments)
        else:
            self.launches += name.startswith("nccl:")
            part = _annotated(name)
            if part == TRANSFER:
                self.collectives[name].extend(span)
            elif part:
                self.by_thread[part][thread].extend(span)
            if part == STEP:
                self.step_names.add(name)

    def _add_message(self, category: str, name: str, began: float, arguments: dict) -> None:
        """Keep what a collective moves, by the bus bandwidth of NCCL Tests (PERFORMANCE.md)."""
        *numbers, ranks = (
            value if type(value := arguments.get(key)) is int else 0
            for key in ("In msg nelems", "Out msg nelems", "Group size")
        )
        shapes = arguments.get("Input Dims")
        tensors = map(_numbers, shapes if type(shapes) is list else ())
        number, kind = max(*numbers, *tensors), arguments.get("dtype")
        moved = number * _BYTES.get(kind if kind is None else str(kind), math.nan)
        if name in _WITHOUT_SHAPES or number > _MOST_NUMBERS:
            moved = math.nan
        plain = name.replace("_", "")
        is_divided = re.search("allreduce|gather|scatter|alltoall", plain)
        if moved:  # Of a divided one, a rank keeps its own part.
            factor = 2 if "allreduce" in plain else 1
            self.messages[category].extend((began, factor * moved, ranks, bool(is_divided)))

    def bytes_per_step(self, begins: np.ndarray, ends: np.ndarray, world: int) -> float:
        """Return what collectives move in a step, to and from the rank each; NaN if unknown.

        Parameters
        ----------
        begins, ends : of the steps.
        world : the number of ranks of collectives that do not tell it.
        """
        messages = self.messages[_KERNEL] or self.messages[_OPERATOR]
        began, moved, ranks, is_divided = np.array(messages, float).reshape(-1, 4).T
        ranks = np.where(ranks, ranks, world)
        moved = moved * np.where(is_divided, (ranks - 1) / ranks, 1.0)
        is_inside = ((begins <= began[:, None]) & (began[:, None] < ends)).any(axis=1)
        return moved[is_inside].sum() / len(begins) or math.nan

    @property
    def has_device(self) -> bool:
        """Return whether spans of kernels tell what computes."""
        return bool(self.kernels)

    @property
    def lacks_device(self) -> bool:
        """Return whether collectives are on a device that is not recorded."""
        return bool(self.launches) and not (self.collectives or self.kernels)

    def collective(self, name: str) -> np.ndarray:
        """Return the spans of the collectives of a name, in the order of their begins."""
        spans = _table(self.collectives[name])
        return spans[np.argsort(spans[:, 0], kind="stable")]

    def parts(self, waiting: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Return the spans of each part, in their order of precedence, and those of the steps."""

        def longest(part: str) -> object:
            sums = {thread: _table(s) for thread, s in self.by_thread[part].items()}
            return max(sums, key=lambda t: np.diff(sums[t]).sum(), default=None)

        thread = longest(STEP) or longest(COMPUTE)
        thread_spans = {
            part: _table(self.by_thread[part].get(thread, ()))
            for part in (STEP, INPUT, COMPUTE, _AWAIT, _OPTIMIZER)
        }
        exchange = [_table(spans) for spans in self.collectives.values()]
        spans = thread_spans | {
            SKEW: waiting,
            TRANSFER: np.concatenate([np.empty((0, 2)), *exchange]),
            COPIES: _table(self.copies),
        }
        steps, awaited, optimizer = (spans.pop(part) for part in (STEP, _AWAIT, _OPTIMIZER))
        if self.has_device:
            spans[COMPUTE] = _table(self.kernels)
        else:  # An operator may hold one that waits, and an optimizer may wait itself.
            waits = np.concatenate([awaited, spans[TRANSFER]])
            spans[COMPUTE] = np.concatenate(
                [subtract(spans[COMPUTE], awaited), subtract(optimizer, waits)]
            )
        if not len(steps):
            every = np.concatenate([*spans.values()])
            steps = np.array([[every[:, 0].min(), every[:, 1].max()]])
        order = _ON_GPU if self.has_device else _ON_PROCESSOR
        return {part: spans[part] for part in order}, _like(steps)


def _annotated(name: str) -> str | None:
    """Return the part of a step that an annotation tells; it is an operator in old traces."""
    return next((part for form, part in _ANNOTATIONS if form.match(name)), None)


def _numbers(shape: object) -> int:
    """Return how many numbers a tensor has, or a list of tensors."""
    if type(shape) is not list:
        return 0
    is_list = not all(type(length) is int for length in shape)
    return sum(map(_numbers, shape)) if is_list else math.prod(shape) * bool(shape)


def _like(steps: np.ndarray) -> np.ndarray:
    """Return the steps that count, in order, without those that lie within others."""
    steps = steps[np.argsort(steps[:, 0], kind="stable")]
    steps = steps[steps[:, 1] > np.r_[-np.inf, np.maximum.accumulate(steps[:-1, 1])]]
    if len(steps) >= _STEPS_WITH_FIRST:
        steps = steps[1:]
    seconds = np.diff(steps).ravel()
    usual = np.median(seconds)
    return steps[(seconds <= _UNLIKE * usual) & (_UNLIKE * seconds >= usual)]


def _table(spans: Sequence[float]) -> np.ndarray:
    return np.array(spans, float).reshape(-1, 2)


@dataclass(frozen=True)
class Breakdown:
    """Where the time of the steps of a training goes.

    Attributes
    ----------
    ranks : a row for each rank, with the number of `steps`, and the mean seconds of the `whole`
        step, of each part in it, of `overlap`, and `unexplained`. `skew` is missing if it cannot be
        told from `transfer`, which holds it then. `bytes` are those that the collectives of a step
        move to and from the rank each, `rate` is how quickly they do once all ranks have begun,
        and at the `needed` rate they would take as long as computing, in Gbit/s; NaN if unknown.
    last : how often each rank was the last to begin a collective; empty if it is not known.
    lacks_device : whether collectives are on devices that no trace shows.
    is_whole : whether all files were read to their ends. Else events of any time may be missing.
    notes : sentences on what the traces do not tell.
    """

    ranks: pd.DataFrame
    last: pd.Series
    lacks_device: bool
    is_whole: bool
    notes: list[str]


def read(path: Path) -> Trace:
    """Return what is kept of the trace of a rank.

    Raises
    ------
    InputError : it has no span that tells of a training.
    """
    trace = Trace(path)
    with open_events(path) as events:
        for event in events:
            if event is not None:
                trace.add(event)
    rank, world = _RANK.search(events.head), _WORLD.search(events.head)
    trace.rank = int(rank[1]) if rank else None
    trace.world = int(world[1]) if world else None
    if trace.rank is None and (named := _RANK_OF_NAME.search(path.name)):
        trace.rank = int(named[1])
    trace.damage = events.damage or (None if events.closed else "it has no end")
    if not (trace.has_device or trace.by_thread[COMPUTE] or trace.collectives):
        reason = f"holds {with_noun(trace.spans, 'span')}, and none of an operator or a kernel"
        reason += f"; {trace.damage}" * bool(trace.damage)
        raise InputError(path, None, reason, "record them, as `escala why --help` shows")
    return trace


def divide(traces: Sequence[Trace]) -> Breakdown:
    """Divide the steps of a training by the traces of its ranks.

    Raises
    ------
    InputError : two traces are of one rank.
    """
    notes, by_rank = [], {trace.rank: trace for trace in traces}
    if None in by_rank and len(by_rank) > 1:
        trace = by_rank[None]
        remedy = "name traces of one profiler, or files with names such as rank0.json"
        raise InputError(trace.path, None, "does not tell its rank, as others do", remedy)
    if None in by_rank:
        by_rank = dict(enumerate(traces))
        if len(traces) > 1:
            notes.append("Files do not tell their ranks: they are taken for those of ranks 0, 1, …")
    for trace in traces:
        if trace not in by_rank.values():
            reason = f"is of rank {trace.rank}, and so is {by_rank[trace.rank].path}"
            remedy = "name one trace of each rank, of equal steps of one run"
            raise InputError(trace.path, None, reason, remedy)
    by_rank = dict(sorted(by_rank.items()))
    waits, last = _waits(by_rank)
    world = max((trace.world or 0 for trace in traces), default=0)
    if not last.empty and len(traces) < world:
        last = last[:0]
    rows = []
    for (rank, trace), waiting in zip(by_rank.items(), waits, strict=True):
        parts, steps = trace.parts(waiting if len(last) else waiting[:0])
        begins, ends = steps.T
        seconds = cover_in_order(parts, begins, ends)
        collectives = join(np.concatenate([parts[SKEW], parts[TRANSFER]]))
        exposed = seconds[SKEW] + seconds[TRANSFER]
        # Differences of sums are exact to about a nanosecond.
        seconds[OVERLAP] = (covered_between(begins, ends, collectives) - exposed).round(9)
        seconds[UNEXPLAINED] = ends - begins - sum(seconds[part] for part in parts)
        if not trace.by_thread[INPUT]:  # Only loaders of PyTorch tell of it.
            seconds[INPUT] = np.full(len(steps), np.nan)
        if trace.lacks_device:
            seconds[SKEW] = seconds[TRANSFER] = seconds[OVERLAP] = np.full(len(steps), np.nan)
        elif last.empty and (len(traces), world) != (1, 1) and len(parts[TRANSFER]):
            seconds[SKEW] = np.full(len(steps), np.nan)
        seconds[WHOLE] = ends - begins
        means = {part: float(values.mean()) for part, values in seconds.items()}
        moved = trace.bytes_per_step(begins, ends, max(world, len(traces)))
        moving = subtract(join(parts[TRANSFER]), join(parts[SKEW]))
        times = covered_between(begins, ends, moving).mean(), seconds[COMPUTE].mean()
        rate, needed = (8e-9 * moved / time if time else math.nan for time in times)
        rate = math.nan if np.isnan(seconds[SKEW]).any() else rate
        rates = {"bytes": moved, "rate": rate, "needed": needed}
        rows.append({"rank": rank, "steps": len(steps)} | rates | means)
        notes.extend(_notes(rank, trace, parts[COMPUTE], steps))
    columns = ["steps", *RATES, *_ON_GPU, OVERLAP, UNEXPLAINED, WHOLE]
    table = pd.DataFrame(rows).set_index("rank").reindex(columns=columns).fillna({COPIES: 0.0})
    lacks_device = any(trace.lacks_device for trace in traces)
    return Breakdown(table, last, lacks_device, not any(t.damage for t in traces), notes)


def _notes(rank: int, trace: Trace, compute: np.ndarray, steps: np.ndarray) -> Iterator[str]:
    """Yield what the trace of a rank does not tell."""
    if not trace.by_thread[STEP]:
        yield (
            f"The trace of rank {rank} marks no steps, so all of it is one step: `escala why "
            "--help` shows how to mark them."
        )
    elif trace.has_device:
        work = join(compute)
        marked = [_table(spans) for spans in trace.by_thread[STEP].values()]
        within = covered_between(*join(np.concatenate(marked)).T, work).sum()
        if within < _WITHIN * np.diff(work[work[:, 0] >= steps[0, 0]]).sum():
            yield (
                f"Much of the work of rank {rank} is outside of its marked steps, which end before "
                "it: let each step await its result, such as by `jax.block_until_ready`."
            )
    if len(trace.devices) > 1:
        yield (
            f"The trace of rank {rank} has {len(trace.devices)} devices: what any of them does "
            "counts, so parts are of all together."
        )
    if trace.damage:
        yield f"The file of rank {rank} was not read to its end: {trace.damage}."


def _waits(traces: Mapping[int, Trace]) -> tuple[list[np.ndarray], pd.Series]:
    """Return the spans in which each rank waits in a collective for others, and who was last."""
    nothing = [np.empty((0, 2)) for _ in traces], pd.Series(dtype=float)
    names = sorted({name for trace in traces.values() for name in trace.collectives})
    spans_by_name = [[trace.collective(name) for trace in traces.values()] for name in names]
    is_equal = all(len({*map(len, rank_spans)}) == 1 for rank_spans in spans_by_name)
    if len(traces) < 2 or not names or not is_equal:
        return nothing
    # Of shape (ranks, collectives, 2).
    every = np.concatenate([np.stack(rank_spans) for rank_spans in spans_by_name], axis=1)
    apart = every[..., 1] - every[0, :, 1]
    clocks = np.median(apart, axis=1)[:, None]
    steps = [trace.parts(np.empty((0, 2)))[1] for trace in traces.values()]
    unequal = np.median(np.abs(apart - clocks), axis=1).max()
    numbers = {frozenset(trace.step_names) for trace in traces.values()}
    if len(numbers) > 1 or unequal > _EQUAL * np.diff(steps[0]).mean():
        return nothing
    begins = every[..., 0] - clocks
    all_began = begins.max(axis=0) + clocks
    waits = [
        np.column_stack([own[:, 0], np.clip(began, own[:, 0], own[:, 1])])
        for own, began in zip(every, all_began, strict=True)
    ]
    last = pd.Series(np.array([*traces])[begins.argmax(axis=0)]).value_counts(normalize=True)
    return waits, last


def attribution(paths: Sequence[Path]) -> pd.DataFrame:
    """Return the parts of the steps of a run, as `escala.analysis.attribution.summary` does.

    Raises
    ------
    InputError : a file has no span that tells of a training, or no end.
    """
    traces, rows = [*map(read, paths)], []
    for trace in traces:
        if trace.damage:
            reason = f"was not read to its end: {trace.damage}"
            raise InputError(trace.path, None, reason, "measure the run again")
    breakdown = divide(traces)
    for rank, row in breakdown.ranks.iterrows():
        for part, seconds in row.drop(["steps", *RATES]).items():
            known = {"kind": "unavailable", "source": None}
            if not pd.isna(seconds):
                known = {"kind": "measured", "source": SOURCE, "seconds": seconds}
            if part == TRANSFER:
                known |= row[[*RATES]].to_dict()
            rows.append({"rank": rank, "part": part, "steps": int(row["steps"])} | known)
    return pd.DataFrame(rows)


def changes(parts: pd.Series, rate: float, needed: float) -> Iterator[tuple[float, str]]:
    """Yield the seconds of a step that a change saves at most, and the change; most come first.

    Parameters
    ----------
    parts : the seconds of the parts of a step of a rank, and of the `whole`.
    rate, needed : see `Breakdown`.
    """
    remedies = REMEDIES | ({TRANSFER: BEGIN_EARLIER} if rate >= needed else {})
    known = parts.reindex([*remedies]).dropna().sort_values(ascending=False)
    for part, seconds in known[known >= WORTH * parts[WHOLE]].items():
        yield seconds, remedies[part]


def lines(breakdown: Breakdown) -> Iterator[str]:
    """Yield the sentences of a breakdown, and its table."""
    ranks = breakdown.ranks
    slowest = ranks.loc[ranks[WHOLE].idxmax()]
    least, most = int(ranks["steps"].min()), int(ranks["steps"].max())
    steps = with_noun(most, "step") if least == most else f"{least} to {most} steps"
    yield f"{with_noun(len(ranks), 'rank')}, {steps}. {_largest(slowest)}"
    yield from _table_lines(ranks)
    yield from _exchange_lines(breakdown)
    if not breakdown.last.empty:
        useful = ranks[WHOLE] - ranks[SKEW] - ranks[TRANSFER]
        yield (
            "Parallel efficiency {parallel_efficiency:.0%} = load balance {load_balance:.0%} × "
            "communication {communication_efficiency:.0%} (serialisation "
            "{serialisation_efficiency:.0%} × transfer {transfer_efficiency:.0%})."
        ).format(**laws.efficiencies(useful, ranks[TRANSFER], ranks[WHOLE].max()))
    if not breakdown.is_whole:
        yield "A file was not read to its end, so parts may be wrong, and no change is advised."
        yield from breakdown.notes
        return
    moved, rate, needed = (float(f"{number:.3g}") for number in slowest[[*RATES]] / [1e6, 1, 1])
    if moved > 0 and needed > 0:
        at = f", at {rate:g} Gbit/s" if rate > 0 else ""
        yield (
            f"Collectives move {moved:g} MB in a step to and from rank {slowest.name}{at}; to take "
            f"no longer than computing, they need {needed:g} Gbit/s."
        )
    # Any rank may wait most for the slowest one.
    parts = slowest.copy()
    parts[SKEW] = ranks[SKEW].max()
    for seconds, remedy in changes(parts, slowest["rate"], slowest["needed"]):
        yield f"To save at most {milliseconds(seconds)} of a step: {remedy}."
    yield from breakdown.notes


def _largest(row: pd.Series) -> str:
    """Describe the step of a rank by its largest part."""
    parts = row[[*_ON_GPU, UNEXPLAINED]].dropna()
    name = parts.idxmax()
    return (
        f"A step of rank {row.name} takes {milliseconds(row[WHOLE])}, and "
        f"{parts[name] / row[WHOLE]:.0%} of it is {_IN_WORDS[name]}."
    )


_IN_WORDS = {
    COMPUTE: "computing",
    SKEW: "waiting for a slower rank",
    TRANSFER: "exchange that nothing hides",
    COPIES: "copying",
    INPUT: "waiting for the next batch",
    UNEXPLAINED: "none of the parts: Python, or launching kernels",
}


def _table_lines(ranks: pd.DataFrame) -> Iterable[str]:
    """Return a table of the parts, in milliseconds and in per cent of the step."""
    parts = [part for part in (*_ON_GPU, UNEXPLAINED) if ranks[part].notna().any()]

    def cell(row: pd.Series, part: str) -> str:
        value = row[part]
        return "?" if pd.isna(value) else f"{1e3 * value:.1f} ({value / row[WHOLE]:.0%})"

    shown = pd.DataFrame(
        {"step, ms": [f"{1e3 * seconds:.1f}" for seconds in ranks[WHOLE]]}
        | {part: [cell(row, part) for _, row in ranks.iterrows()] for part in parts},
        index=[f"rank {rank}" for rank in ranks.index],
    )
    return shown.to_string().splitlines()


def _exchange_lines(breakdown: Breakdown) -> Iterator[str]:
    ranks = breakdown.ranks
    if breakdown.lacks_device:
        yield (
            "Collectives are on a GPU, whose kernels are not in the traces: record "
            "ProfilerActivity.CUDA, too."
        )
        return
    exposed = ranks[[SKEW, TRANSFER]].sum(axis=1)
    whole = exposed + ranks[OVERLAP]
    if not whole.any():
        yield "The traces show no collective."
        return
    rank = whole.idxmax()
    yield (
        f"Of {milliseconds(whole[rank])} of collectives in a step of rank {rank}, "
        f"{milliseconds(ranks.loc[rank, OVERLAP])} go on beside other parts, and "
        f"{milliseconds(exposed[rank])} make the step longer."
    )
    if ranks[SKEW].isna().any():
        yield (
            "How much of this is waiting for a slower rank is not known: that needs the traces of "
            "all ranks, of equal steps."
        )
    if breakdown.last.empty:
        return
    slowest, often = breakdown.last.index[0], breakdown.last.iloc[0]
    others = ranks[SKEW].drop(slowest)
    yield (
        f"Rank {slowest} is the last to begin {often:.0%} of the collectives. Others wait up to "
        f"{milliseconds(others.max())} a step."
    )
