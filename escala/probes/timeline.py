"""Capture Horovod's timeline, complete it, read it as intervals, and convert it for Perfetto.

Horovod writes a JSON array in Chrome's trace format, in microseconds. Every tensor is a "process",
and its phases are nested `B` and `E` events. `E` has no name; the outermost `E` of an operation has
type and shape of the tensor. Instants named by a number mark when that rank was ready. Only rank 0
writes. A run that is killed leaves the array open, and a run that ends ok may lack the ends of its
last operation.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from escala.core.files import atomic
from escala.probes.base import Probe, section
from escala.strategies.base import RAW_TIMELINE, TIMELINE_FILES

if TYPE_CHECKING:  # An experiment is read in less time than an import of pandas.
    import pandas as pd

MICROSECONDS = 1e-6
CYCLE = "CYCLE_START"
#: The use of a phase's time, by the start of its name; the first match counts.
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
_BETWEEN = re.compile(r"[\s,\[]*")
# NumPy has no bfloat16, which Horovod reduces.
_ITEM_BYTES = {"bfloat16": 2}


class Timeline(Probe):
    """Horovod's timeline of some steps, with the moments when each rank was ready."""

    scope = "run"
    settings = section(
        "A separate run of every Horovod configuration that captures the Horovod timeline.",
        enabled=True,
        steps={
            "description": "Training steps to capture.",
            "type": "integer",
            "minimum": 1,
            "default": 30,
        },
    )
    products = TIMELINE_FILES
    temporary = (RAW_TIMELINE,)

    @classmethod
    def applies(cls, run, strategy):
        return strategy.writes_timeline

    def environment(self, strategy):
        return strategy.timeline_environment(self.folder / RAW_TIMELINE)


def keep(folder: Path) -> None:
    """Make the products of a run's timeline, if it has one.

    Parameters
    ----------
    folder : the run's `ranks/` folder; the products go beside it.
    """
    raw = folder / RAW_TIMELINE
    if raw.exists():
        write(raw, *(folder.parent / name for name in TIMELINE_FILES))


def repair(raw: str | Path) -> list[dict]:
    """Return the complete events of a timeline, even if it ends at any place.

    Parameters
    ----------
    raw : the text, or the path of its file.
    """
    text = raw.read_text(errors="replace") if isinstance(raw, Path) else raw
    return list(_events(text))


def _events(text: str) -> Iterator[dict]:
    decoder = json.JSONDecoder()
    position = _BETWEEN.match(text).end()
    while text.startswith("{", position):
        try:
            event, position = decoder.raw_decode(text, position)
        except json.JSONDecodeError:
            return
        yield event
        position = _BETWEEN.match(text, position).end()


def write(raw: str | Path, timeline_json: Path, trace_json: Path) -> None:
    """Write a timeline as valid JSON in Horovod's own format, and as a trace for Perfetto."""
    events = repair(raw)
    _write_lines(timeline_json, "[\n", events, "\n]\n")
    _write_lines(
        trace_json, '{"displayTimeUnit": "ms", "traceEvents": [\n', trace(events), "\n]}\n"
    )


def _write_lines(path: Path, head: str, events: list[dict], tail: str) -> None:
    with atomic(path) as temporary:
        temporary.write_text(head + ",\n".join(map(json.dumps, events)) + tail)


def tensors(events: list[dict]) -> dict[int, str]:
    """Return the tensors' names by their number, in order of first appearance."""
    return {
        event["pid"]: event["args"]["name"]
        for event in events
        if event["ph"] == "M" and event["name"] == "process_name" and "name" in event["args"]
    }


def family(phase: str) -> str:
    """Return the use of a phase's time."""
    return next((name for name, starts in FAMILIES.items() if phase.startswith(starts)), OTHER)


def started(events: list[dict]) -> float:
    """Return when Horovod started, in seconds since the epoch.

    Raises
    ------
    ValueError : the timeline does not hold it.
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
    `bytes` of the tensor, known only for a whole operation (else missing).
    """
    import pandas as pd

    names, begun, rows = tensors(events), defaultdict(list), []
    for event in events:
        if event["ph"] == "B":
            begun[event["pid"]].append(event)
        elif event["ph"] == "E" and begun[event["pid"]]:
            begin = begun[event["pid"]].pop()
            rows.append(
                (
                    names.get(event["pid"], str(event["pid"])),
                    begin["name"],
                    begin["ts"] * MICROSECONDS,
                    event["ts"] * MICROSECONDS,
                    len(begun[event["pid"]]),
                    _bytes(event.get("args", {})),
                )
            )
    columns = ["tensor", "phase", "start_seconds", "end_seconds", "depth", "bytes"]
    frame = pd.DataFrame(rows, columns=columns).astype(
        {"start_seconds": float, "end_seconds": float, "depth": int, "bytes": "Int64"}
    )
    return frame.sort_values(["start_seconds", "depth"], kind="stable", ignore_index=True)


def _bytes(arguments: dict) -> int | None:
    import numpy as np

    if not {"dtype", "shape"} <= arguments.keys():
        return None
    dtype, shape = arguments["dtype"], json.loads(arguments["shape"])
    return int(np.prod(shape, dtype=int)) * (_ITEM_BYTES.get(dtype) or np.dtype(dtype).itemsize)


def ready(events: list[dict]) -> pd.DataFrame:
    """Return when each rank was ready to reduce a tensor: `tensor`, `rank`, `seconds`."""
    import pandas as pd

    names = tensors(events)
    rows = [
        (names.get(e["pid"], str(e["pid"])), int(e["name"]), e["ts"] * MICROSECONDS)
        for e in events
        if _is_ready(e)
    ]
    return pd.DataFrame(rows, columns=["tensor", "rank", "seconds"])


def _is_ready(event: dict) -> bool:
    return event["ph"] == "X" and event["name"].isdigit()


def union_seconds(phases: pd.DataFrame) -> float:
    """Return the seconds covered by at least one interval.

    Tensors fused into one operation log the same interval each, so that a sum would count it
    several times.
    """
    import numpy as np

    ordered = phases.sort_values("start_seconds")
    starts, ends = ordered["start_seconds"].to_numpy(), ordered["end_seconds"].to_numpy()
    reached = np.maximum.accumulate(np.concatenate([[-np.inf], ends]))[:-1]
    return float(np.clip(ends - np.maximum(starts, reached), 0, None).sum())


def operations(phases: pd.DataFrame) -> pd.Series:
    """Return, for every operation on a tensor, the number of its fused operation.

    Horovod performs one fused operation after the other, so operations that overlap are one.

    Returns
    -------
    Integers, with the index of the rows of `phases` that are whole operations.
    """
    import numpy as np

    whole = phases[(phases["depth"] == 0) & ~phases["phase"].str.startswith("NEGOTIATE_")]
    reached = whole["end_seconds"].cummax().shift(fill_value=-np.inf)
    return (whole["start_seconds"] >= reached).cumsum().rename("operation")


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
    begun = defaultdict(list)
    for event in events:
        thread = event.get("pid", 0)
        if event["ph"] == "B":
            begun[thread].append(event)
        elif event["ph"] == "E" and begun[thread]:
            begin = begun[thread].pop()
            converted.append(
                {
                    "name": begin["name"],
                    "ph": "X",
                    "ts": begin["ts"],
                    "dur": event["ts"] - begin["ts"],
                    "pid": 0,
                    "tid": thread,
                    "args": event.get("args", {}),
                }
            )
        elif event["ph"] == "i":
            converted.append(_instant(event["name"], event["ts"], thread))
        elif _is_ready(event):
            converted.append(_instant(f"rank {event['name']} ready", event["ts"], thread))
    return converted


def _metadata(kind: str, thread: int, **arguments: str | int) -> dict:
    return {"name": kind, "ph": "M", "pid": 0, "tid": thread, "args": arguments}


def _instant(name: str, microseconds: int, thread: int) -> dict:
    return {"name": name, "ph": "i", "s": "t", "ts": microseconds, "pid": 0, "tid": thread}
