"""Capture a timeline of Horovod, read it as intervals, and convert it for Perfetto.

A trace in Chrome's format is read one event after the other, whatever the file's size. The file is
an array of objects, or an object that holds such an array as `traceEvents`. It may be compressed,
and end anywhere. Reading ends where the file is damaged.

Horovod writes a JSON array in Chrome's trace format, in microseconds. Every tensor is a "process",
and its phases are nested `B` and `E` events. `E` has no name; the outermost `E` of an operation has
type and shape of the tensor. An `X` event whose name is a number marks when the rank of this
number was ready. An `i` event marks a cycle of negotiation. Only rank 0 writes. A run that is
killed leaves the array open, and a run that ends ok may lack the ends of its last operation.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from escala.core.errors import InputError
from escala.core.files import atomic
from escala.core.text import ARCHIVES, DAMAGED, PACKED
from escala.probes.base import Probe, section, value
from escala.strategies.base import RAW_TIMELINE, TIMELINE_FILES

if TYPE_CHECKING:  # Reading an experiment takes less time than importing pandas.
    import pandas as pd

MICROSECONDS = 1e-6
#: What the time of a phase is spent on, by the start of the phase's name. The first match counts.
NEGOTIATION, WAITING, COPYING, COMMUNICATION = (
    "waiting for all ranks (negotiation)",
    "waiting for data or other tensors",
    "copying to and from the fusion buffer",
    "communication",
)
FAMILIES = {
    NEGOTIATION: ("NEGOTIATE_",),
    WAITING: ("QUEUE", "WAIT_FOR_"),
    COPYING: ("INIT_FUSION_BUFFER", "MEMCPY_", "ALLOCATE_"),
    COMMUNICATION: ("MPI_", "GLOO_", "NCCL_", "CCL_"),
}
OTHER = "rest of the operation"
#: Names of phases that lie within no other phase. Phases whose name begins with `NEGOTIATE_` lie
#: within no other phase either.
OPERATIONS = frozenset(
    {
        *("ALLREDUCE", "ALLGATHER", "BROADCAST", "ALLTOALL"),
        *("REDUCESCATTER", "ADASUM", "JOIN", "BARRIER"),
    }
)
# NumPy has no bfloat16, which Horovod reduces.
_ITEM_BYTES = {"bfloat16": 2}
#: The most bytes that are parsed at once. The place of a damage is as exact as this.
_BLOCK = 1 << 16
#: Where the array of events begins in an object.
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*(\[|$)')


class Timeline(Probe):
    """Horovod's timeline of some steps."""

    settings = section(
        "A separate run, where the library writes a timeline.",
        enabled=True,
        steps=value("integer", "Steps to capture.", minimum=1, default=30),
    )
    products = TIMELINE_FILES
    temporary = (RAW_TIMELINE,)

    @classmethod
    def applies(cls, run):
        strategy = run.declared.strategy
        writes = strategy.timeline_environment(Path(RAW_TIMELINE))
        return bool(writes) and not strategy.layouts.one_rank

    def environment(self, strategy):
        return strategy.timeline_environment(self.folder / RAW_TIMELINE)


def keep(folder: Path) -> None:
    """Make the products of a run's timeline, if it has one.

    Parameters
    ----------
    folder : the run's `ranks/` folder; the products go alongside it.
    """
    raw = folder / RAW_TIMELINE
    if raw.exists():
        write_products(raw, *(folder.parent / name for name in TIMELINE_FILES))


def read_events(path: Path) -> list[dict]:
    """Return the usable events of a timeline: those before a damage, or a cut at any place."""
    with open_events(path) as events:
        return [event for event in events if event is not None]


class OpenPhases:
    """The phases of each tensor that have begun and not ended.

    Ends may be missing where events were lost. So the begin of a phase that lies within no other
    phase closes all open phases of its tensor.
    """

    def __init__(self) -> None:
        # The begins of the open phases by tensor, the outermost first.
        self.stacks: dict[int | str, list[dict]] = defaultdict(list)

    def begin(self, event: dict) -> None:
        stack = self.stacks[event["pid"]]
        if is_whole(event["name"]):
            stack.clear()
        stack.append(event)

    def end(self, event: dict) -> tuple[dict, int] | None:
        """Return the begin and the depth of the phase that ends; None if its begin is missing."""
        stack = self.stacks[event["pid"]]
        return (stack.pop(), len(stack)) if stack else None


def phases(events: Iterable[dict]) -> Iterator[tuple[dict, dict, int]]:
    """Yield the events that begin and end each phase, and its depth (`intervals`)."""
    open_phases = OpenPhases()
    for event in events:
        if event["ph"] == "B":
            open_phases.begin(event)
        elif event["ph"] == "E" and (phase := open_phases.end(event)):
            begin, depth = phase
            yield begin, event, depth


def is_whole(phase: str) -> bool:
    """Return whether a phase is a whole negotiation or a whole operation, not a part."""
    return phase in OPERATIONS or phase.startswith("NEGOTIATE_")


def write_products(raw: Path, timeline_json: Path, trace_json: Path) -> None:
    """Write a timeline as valid JSON in Horovod's own format, and as a trace for Perfetto."""
    events = read_events(raw)
    trace_head = '{"displayTimeUnit": "ms", "traceEvents": [\n'
    for path, head, content, tail in (
        (timeline_json, "[\n", events, "\n]\n"),
        (trace_json, trace_head, trace(events), "\n]}\n"),
    ):
        with atomic(path) as temporary:
            text = head + ",\n".join(map(json.dumps, content)) + tail
            temporary.write_text(text, encoding="utf-8")


def tensors(events: Iterable[dict]) -> dict[int, str]:
    """Return the tensors' names by their number, in order of first appearance."""
    return {event["pid"]: name for event in events if (name := tensor_name(event)) is not None}


def tensor_name(event: dict) -> str | None:
    """Return the tensor's name if an event gives one; a letter that is not UTF-8 becomes `?`."""
    if event["ph"] != "M" or event.get("name") != "process_name":
        return None
    name = event["args"].get("name")
    return name.encode("utf-8", "replace").decode() if isinstance(name, str) else None


def family(phase: str) -> str:
    """Return what the time of a phase is spent on."""
    return next((name for name, starts in FAMILIES.items() if phase.startswith(starts)), OTHER)


def start_seconds(events: list[dict]) -> float:
    """Return when Horovod started, in seconds since the epoch.

    Raises
    ------
    ValueError : the timeline does not record when Horovod started.
    """
    key = "start_time_since_epoch_in_micros"
    for event in events:
        if key in event.get("args", {}):
            return event["args"][key] * MICROSECONDS
    raise ValueError(f"the timeline has no {key}")


def intervals(events: list[dict]) -> pd.DataFrame:
    """Return the phases that began and ended, in order of their start.

    Returns
    -------
    One row per phase: `tensor`, `phase`, `start_seconds` and `end_seconds` since Horovod started,
    `depth` (0 for `NEGOTIATE_…` and for the operation, 1 for the parts of an operation), and
    `bytes` of the tensor, which is missing for a part of an operation.
    """
    import pandas as pd

    names = tensors(events)
    rows = [
        (
            names.get(end["pid"], str(end["pid"])),
            begin["name"],
            begin["ts"] * MICROSECONDS,
            end["ts"] * MICROSECONDS,
            depth,
            tensor_bytes(end.get("args")),
        )
        for begin, end, depth in phases(events)
    ]
    columns = ["tensor", "phase", "start_seconds", "end_seconds", "depth", "bytes"]
    frame = pd.DataFrame(rows, columns=columns).astype(
        {"start_seconds": float, "end_seconds": float, "depth": int, "bytes": "Int64"}
    )
    return frame.sort_values(["start_seconds", "depth"], kind="stable", ignore_index=True)


def tensor_bytes(arguments: object) -> int | None:
    """Return the bytes of a tensor from the arguments of an operation's end; None if unknown."""
    if not isinstance(arguments, dict):
        return None
    return _bytes(str(arguments.get("dtype")), str(arguments.get("shape")))


@lru_cache(maxsize=4096)
def _bytes(dtype: str, shape: str) -> int | None:
    import numpy as np

    try:
        size = _ITEM_BYTES.get(dtype) or np.dtype(dtype).itemsize
        return int(np.prod(json.loads(shape), dtype=int)) * size
    except (TypeError, ValueError):
        return None


def is_ready(event: dict) -> bool:
    """Return whether an event is the moment when the rank that names it was ready."""
    return event["ph"] == "X" and event["name"].isdecimal()


def trace(events: list[dict]) -> list[dict]:
    """Convert a timeline to Chrome trace events: one process, rank 0, and a thread per tensor.

    Phases become complete (`X`) events. Negotiation cycles become instants on a thread of their
    own, and the readiness of ranks becomes instants on the tensor's thread.
    """
    threads = {0: "cycles", **tensors(events)}
    converted = [_metadata("process_name", 0, name="rank 0")]
    for thread, name in threads.items():
        converted.append(_metadata("thread_name", thread, name=name))
        converted.append(_metadata("thread_sort_index", thread, sort_index=thread))
    for begin, end, _ in phases(events):
        times = {"ts": begin["ts"], "dur": end["ts"] - begin["ts"]}
        thread = {"pid": 0, "tid": end.get("pid", 0), "args": end.get("args", {})}
        converted.append({"name": begin["name"], "ph": "X"} | times | thread)
    for event in events:
        thread = event.get("pid", 0)
        if event["ph"] == "i":
            converted.append(_instant(event["name"], event["ts"], thread))
        elif is_ready(event):
            converted.append(_instant(f"rank {event['name']} ready", event["ts"], thread))
    return converted


def _metadata(kind: str, thread: int, **arguments: str | int) -> dict:
    return {"name": kind, "ph": "M", "pid": 0, "tid": thread, "args": arguments}


def _instant(name: str, microseconds: int, thread: int) -> dict:
    return {"name": name, "ph": "i", "s": "t", "ts": microseconds, "pid": 0, "tid": thread}


@dataclass
class Events:
    """The events of a trace, one after the other; None stands between two arrays of one file.

    Attributes
    ----------
    progress : called after each block that is read. The default, `bool`, does nothing.
    damage : why the file was not read to its end, with the place; None if it was.
    closed : whether the file ends with the end of an array.
    head : what stands before the array, in an object.
    """

    stream: BinaryIO
    progress: Callable[[], object] = bool
    damage: str | None = None
    closed: bool = False
    head: bytes = b""

    def __iter__(self) -> Iterator[dict | None]:
        import ijson

        events, parser, before, last = ijson.sendable_list(), None, b"", b""
        has_array = has_events = False
        for offset, line, piece in self._pieces():
            if parser is None and (start := piece.lstrip(b"\xef\xbb\xbf \r\n\t")):
                piece, has_array = start, start.startswith(b"[")
                events_at = "item" if has_array else "traceEvents.item"
                parser = ijson.items_coro(events, events_at, multiple_values=True, use_float=True)
            elif piece.startswith(b"[") and before.endswith(b"]"):
                yield None
            if parser is None:
                continue
            before = piece.strip() or before
            if not has_array:
                found = _ARRAY.search(last + piece)  # It may stand in two pieces.
                if len(self.head) < _BLOCK:
                    self.head += piece[: max(0, found.start() - len(last))] if found else piece
                has_array, last = bool(found), (last + piece)[-32:]
            try:
                parser.send(piece)
            except ijson.JSONError:
                self.damage = _place(offset, line, piece)
            for event in events:
                if event == {} and has_events:  # XLA's last one.
                    continue
                has_events = True
                if not _is_usable(event):
                    self.damage = _place(offset, line, piece)
                    return
                yield event
            events.clear()
            if self.damage:
                return
        if parser is None:
            return
        with suppress(ijson.IncompleteJSONError):  # A file may end anywhere.
            parser.close()
            if not has_array:
                self.damage = "it has no array traceEvents"
            self.closed = self.damage is None

    def _pieces(self) -> Iterator[tuple[int, int, bytes]]:
        """Yield offset, number and bytes of each line, or of the parts of a long one."""
        offset, line = 0, 1
        while True:
            try:
                block = self.stream.read(_BLOCK)
            except DAMAGED as error:
                self.damage = (
                    f"it cannot be decompressed after byte {offset} of its content: {error}"
                )
                return
            if not block:
                return
            self.progress()
            for piece in block.splitlines(keepends=True):
                yield offset, line, piece
                offset += len(piece)
                line += piece.endswith(b"\n")


def _place(offset: int, line: int, piece: bytes) -> str:
    return f"bytes {offset} to {offset + len(piece)} (line {line}) hold no event that can be used"


@contextmanager
def open_events(path: Path) -> Iterator[Events]:
    """Yield the events of a file, compressed or not, and show the progress if it takes long.

    Raises
    ------
    InputError : the file is compressed, but not by gzip, bzip2 or xz.
    """
    from tqdm import tqdm

    with open(path, "rb") as raw:
        start = raw.peek(8)
        for magic, name in ARCHIVES:
            if start.startswith(magic):
                raise InputError(path, None, f"is {name}, which Escala does not read", "unpack it")
        opener = next((opens for magic, opens in PACKED if start.startswith(magic)), None)
        size = path.stat().st_size if raw.seekable() else None
        with tqdm(
            total=size, desc=path.name, unit="B", unit_scale=True, delay=1, disable=None
        ) as bar:
            yield Events(
                opener(raw) if opener else raw,
                lambda: bar.update(raw.tell() - bar.n) if size else None,
            )


def _is_usable(event: object) -> bool:
    """Return whether an event has the keys that its kind needs."""
    if type(event) is not dict:
        return False
    kind = event.get("ph")
    if kind in ("B", "E", "X", "i"):
        moment = event.get("ts")
        return (
            type(moment) in (int, float)
            and abs(moment) < 1e18
            and (kind == "E" or type(event.get("name")) is str)
            and (kind == "i" or type(event.get("pid")) in (int, str))
        )
    if kind == "M":
        return type(event.get("args")) is dict and type(event.get("pid")) in (int, str)
    return type(kind) is str
