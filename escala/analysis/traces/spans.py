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
| compute | operators and the optimizer, in this thread |
| skew, transfer | as on a GPU |
| unexplained | none of these: Python between operators |

So skew and transfer are *exposed*: they make the step longer. What of the collectives goes on
beside other parts is `overlap`. Ranks begin their traces at moments of their own clocks. The clocks
are compared by the ends of the collectives, because all ranks end one at about the same time. Which
collective of one rank is which of another one is known if all ranks have as many of each name.
"""

from __future__ import annotations

import re
from array import array
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from escala.analysis.attribution import OVERLAP, UNEXPLAINED, WHOLE
from escala.analysis.intervals import cover_in_order, covered_between, join
from escala.core.errors import InputError
from escala.core.readable import milliseconds, with_noun
from escala.probes.timeline import MICROSECONDS, open_events

COMPUTE, SKEW, TRANSFER, COPIES, INPUT = "compute", "skew", "transfer", "copies", "input"
STEP = "step"
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
    (re.compile(r"Optimizer\.(step|zero_grad)#"), COMPUTE),
    (re.compile(r"(gloo|mpi):(?!barrier|monitored)"), TRANSFER),
)
_COLLECTIVE_KERNEL = re.compile(r"nccl|rccl|mscclpp|nvshmem", re.IGNORECASE)
#: What XLA names its collectives.
_COLLECTIVE_OF_XLA = re.compile(
    r"(all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute|collective-broadcast)"
)
#: Operations of XLA that hold others, and operators of PyTorch that begin or await a collective.
_HOLDS_OTHERS = re.compile(r"(while|conditional|call)(\.\d+)?$")
_OF_COLLECTIVE = ("c10d::", "record_param_comms")
_RANK = re.compile(rb'"distributedInfo"\s*:\s*\{.*?"rank"\s*:\s*(\d+)', re.DOTALL)
#: The fewest steps of which the first is left out.
_STEPS_WITH_FIRST = 3


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


@dataclass
class Trace:
    """What is kept of the trace of a rank. Moments are in seconds of its clock.

    Attributes
    ----------
    rank : None if the file does not tell it.
    kernels, copies : spans of the GPU; those of XLA are kernels on any device.
    by_thread : spans of the processor by their part, and by thread.
    collectives : spans of the collectives by their names.
    launches : how many collectives the processor starts on a GPU.
    spans : how many spans of known categories it has.
    damage : why the file was not read to its end; None if it was.
    """

    rank: int | None = None
    kernels: array = field(default_factory=_spans)
    copies: array = field(default_factory=_spans)
    by_thread: dict[str, dict[object, array]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(_spans))
    )
    collectives: dict[str, array] = field(default_factory=lambda: defaultdict(_spans))
    launches: int = 0
    spans: int = 0
    damage: str | None = None

    def add(self, event: dict) -> None:
        category, lasted = category_of(event), event.get("dur")
        if category is None or type(lasted) not in (int, float):
            return
        self.spans += 1
        began, name = event["ts"] * MICROSECONDS, event["name"]
        span = began, began + lasted * MICROSECONDS
        thread = event["pid"], event.get("tid")
        if category == _OF_XLA:
            arguments = event["args"]
            if "step_num" in arguments:
                self.by_thread[STEP][thread].extend(span)
            elif _COLLECTIVE_OF_XLA.match(name):
                self.collectives[f"{arguments.get('hlo_module')} {name}"].extend(span)
            elif not _HOLDS_OTHERS.match(name):
                self.kernels.extend(span)
        elif category == _KERNEL:
            if _COLLECTIVE_KERNEL.search(name):
                arguments = event.get("args") or {}
                group = arguments.get("Process Group Name", "")
                self.collectives[f"{group} {arguments.get('Collective name', name)}"].extend(span)
            else:
                self.kernels.extend(span)
        elif category == _COPY:
            self.copies.extend(span)
        elif category == _OPERATOR:
            if not name.startswith(_OF_COLLECTIVE):
                self.by_thread[COMPUTE][thread].extend(span)
        else:
            self.launches += name.startswith("nccl:")
            part = next((part for form, part in _ANNOTATIONS if form.match(name)), None)
            if part == TRANSFER:
                self.collectives[name].extend(span)
            elif part:
                self.by_thread[part][thread].extend(span)

    @property
    def has_gpu(self) -> bool:
        return bool(self.kernels)

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
        of_thread = {
            part: _table(self.by_thread[part].get(thread, ())) for part in (STEP, INPUT, COMPUTE)
        }
        exchange = [_table(spans) for spans in self.collectives.values()]
        spans = of_thread | {
            SKEW: waiting,
            TRANSFER: np.concatenate([np.empty((0, 2)), *exchange]),
            COPIES: _table(self.copies),
        }
        if self.has_gpu:
            spans[COMPUTE] = _table(self.kernels)
        steps = spans.pop(STEP)
        if not len(steps):
            every = np.concatenate([*spans.values()])
            steps = np.array([[every[:, 0].min(), every[:, 1].max()]])
        steps = steps[np.argsort(steps[:, 0], kind="stable")]
        order = _ON_GPU if self.has_gpu else _ON_PROCESSOR
        return {part: spans[part] for part in order}, steps


def _table(spans: Sequence[float]) -> np.ndarray:
    return np.array(spans, float).reshape(-1, 2)


@dataclass(frozen=True)
class Breakdown:
    """Where the time of the steps of a training goes.

    Attributes
    ----------
    ranks : a row for each rank, with the number of `steps`, and the mean seconds of the `whole`
        step, of each part in it, of `overlap`, and `unexplained`. `skew` is missing if it cannot be
        told from `transfer`, which holds it then.
    last : how often each rank was the last to begin a collective; empty if it is not known.
    lacks_gpu : whether processors start collectives on GPUs that no trace shows.
    has_steps : whether the traces mark steps.
    damage : by rank, why a file was not read to its end.
    """

    ranks: pd.DataFrame
    last: pd.Series
    lacks_gpu: bool
    has_steps: bool
    damage: dict[int, str]


def read(path: Path) -> Trace:
    """Return what is kept of the trace of a rank.

    Raises
    ------
    InputError : it has no span that tells of a training.
    """
    trace = Trace()
    with open_events(path) as events:
        for event in events:
            if event is not None:
                trace.add(event)
    if found := _RANK.search(events.head):
        trace.rank = int(found[1])
    trace.damage = events.damage
    has_work = trace.has_gpu or trace.by_thread[COMPUTE] or trace.collectives
    if not has_work:
        reason = f"holds {with_noun(trace.spans, 'span')}, and none of an operator or a kernel"
        remedy = "record them, as `escala why --help` shows"
        raise InputError(
            path, None, f"{reason}; {trace.damage}" if trace.damage else reason, remedy
        )
    return trace


def divide(traces: Sequence[Trace]) -> Breakdown:
    """Divide the steps of a training; ranks that files do not tell are numbered in their order."""
    known = {trace.rank for trace in traces}
    if None in known or len(known) < len(traces):
        for rank, trace in enumerate(traces):
            trace.rank = rank
    traces = sorted(traces, key=lambda trace: trace.rank)
    waits, last = _waits(traces)
    rows, has_steps = [], all(trace.by_thread[STEP] for trace in traces)
    for trace, waiting in zip(traces, waits, strict=True):
        parts, steps = trace.parts(waiting)
        if len(steps) >= _STEPS_WITH_FIRST:
            steps = steps[1:]
        begins, ends = steps.T
        seconds = cover_in_order(parts, begins, ends)
        collectives = join(np.concatenate([parts[SKEW], parts[TRANSFER]]))
        exposed = seconds[SKEW] + seconds[TRANSFER]
        # Differences of sums are exact to about a nanosecond.
        seconds[OVERLAP] = (covered_between(begins, ends, collectives) - exposed).round(9)
        seconds[UNEXPLAINED] = ends - begins - sum(seconds[part] for part in parts)
        if trace.launches and not trace.collectives:
            seconds[SKEW] = seconds[TRANSFER] = seconds[OVERLAP] = np.full(len(steps), np.nan)
        elif last.empty and len(parts[TRANSFER]):
            seconds[SKEW] = np.full(len(steps), np.nan)
        seconds[WHOLE] = ends - begins
        means = {part: float(values.mean()) for part, values in seconds.items()}
        rows.append({"rank": trace.rank, "steps": len(steps)} | means)
    columns = ["steps", *_ON_GPU, OVERLAP, UNEXPLAINED, WHOLE]
    table = pd.DataFrame(rows).set_index("rank").reindex(columns=columns).fillna({COPIES: 0.0})
    damage = {trace.rank: trace.damage for trace in traces if trace.damage}
    lacks_gpu = any(trace.launches and not trace.collectives for trace in traces)
    return Breakdown(table, last, lacks_gpu, has_steps, damage)


def _waits(traces: Sequence[Trace]) -> tuple[list[np.ndarray], pd.Series]:
    """Return the spans in which each rank waits in a collective for others, and who was last."""
    nothing = [np.empty((0, 2)) for _ in traces], pd.Series(dtype=float)
    names = sorted({name for trace in traces for name in trace.collectives})
    spans = {name: [trace.collective(name) for trace in traces] for name in names}
    spans = {name: of for name, of in spans.items() if len({len(one) for one in of}) == 1}
    if len(traces) < 2 or not spans or len(spans) < len(names):
        return nothing
    # Of shape (ranks, collectives, 2).
    every = np.concatenate([np.stack(of) for of in spans.values()], axis=1)
    clocks = np.median(every[..., 1] - every[0, :, 1], axis=1)[:, None]
    begins = every[..., 0] - clocks
    all_began = begins.max(axis=0) + clocks
    waits = [
        np.column_stack([own[:, 0], np.clip(began, own[:, 0], own[:, 1])])
        for own, began in zip(every, all_began, strict=True)
    ]
    ranks = np.array([trace.rank for trace in traces])
    last = pd.Series(ranks[begins.argmax(axis=0)]).value_counts(normalize=True)
    return waits, last


def attribution(paths: Sequence[Path]) -> pd.DataFrame:
    """Return the parts of the steps of a run, as `escala.analysis.attribution.summary` does.

    Raises
    ------
    InputError : a file has no span that tells of a training.
    """
    breakdown, rows = divide([*map(read, paths)]), []
    for rank, row in breakdown.ranks.iterrows():
        for part, seconds in row.drop("steps").items():
            known = {"kind": "unavailable", "source": None}
            if not pd.isna(seconds):
                known = {"kind": "measured", "source": SOURCE, "seconds": seconds}
            rows.append({"rank": rank, "part": part, "steps": int(row["steps"])} | known)
    return pd.DataFrame(rows)


def lines(breakdown: Breakdown) -> Iterator[str]:
    """Yield the sentences of a breakdown, and its table."""
    ranks = breakdown.ranks
    slowest = ranks.loc[ranks[WHOLE].idxmax()]
    steps = with_noun(int(slowest["steps"]), "step")
    yield f"{with_noun(len(ranks), 'rank')}, {steps} each. {_largest(slowest)}"
    yield from _table_lines(ranks)
    yield from _exchange_lines(breakdown)
    if len(ranks) > 1 and not ranks[[COMPUTE, TRANSFER]].isna().any(axis=None):
        named = efficiencies(ranks)
        yield (
            "Parallel efficiency {parallel:.0%} = load balance {balance:.0%} × communication "
            "{communication:.0%} (serialisation {serialisation:.0%} × transfer {transfer:.0%})."
        ).format(**named)
    if not breakdown.has_steps:
        yield (
            "A trace marks no steps, so its whole time is one step: `escala why --help` shows how "
            "to mark them."
        )
    for rank, damage in breakdown.damage.items():
        yield f"The file of rank {rank} was not read to its end: {damage}."


def efficiencies(ranks: pd.DataFrame) -> dict[str, float]:
    """Return the efficiencies of POP from the parts of the steps of all ranks.

    Useful is computing. Transfer is what the exposed sums cost beyond waiting; POP simulates an
    ideal network for it (POP Standard Metrics for Parallel Performance Analysis,
    https://www.pop-coe.eu/node/69).

    Parameters
    ----------
    ranks : as of `Breakdown`.
    """
    useful, whole = ranks[COMPUTE], ranks[WHOLE].max()
    transfer = 1 - ranks[TRANSFER].max() / whole
    communication = useful.max() / whole
    return {
        "parallel": useful.mean() / whole,
        "balance": useful.mean() / useful.max(),
        "communication": communication,
        "serialisation": communication / transfer,
        "transfer": transfer,
    }


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
    if breakdown.lacks_gpu:
        yield (
            "Collectives are on a GPU, whose kernels are not in the traces: record "
            "ProfilerActivity.CUDA, too."
        )
        return
    exposed = ranks[[SKEW, TRANSFER]].sum(axis=1)
    whole = exposed + ranks[OVERLAP]
    if not whole.any():
        yield "The traces have no collective: nothing is exchanged."
        return
    rank = whole.idxmax()
    yield (
        f"Of {milliseconds(whole[rank])} of collectives in a step of rank {rank}, "
        f"{milliseconds(ranks.loc[rank, OVERLAP])} go on beside other parts, and "
        f"{milliseconds(exposed[rank])} make the step longer."
    )
    if breakdown.last.empty:
        yield (
            "How much of this is waiting for a slower rank is not known: that needs the traces of "
            "all ranks, of the same steps."
        )
        return
    slowest, often = breakdown.last.index[0], breakdown.last.iloc[0]
    others = ranks[SKEW].drop(slowest)
    yield (
        f"Rank {slowest} is the last to begin {often:.0%} of the collectives. Others wait up to "
        f"{milliseconds(others.max())} a step."
    )
