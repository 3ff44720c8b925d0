"""Join the traces of PyTorch's profiler of all ranks to one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

from escala.core.files import atomic

#: What a trace says of its threads; the names of its processes are replaced.
_THREADS = ("thread_name", "thread_sort_index")


def join(files: Sequence[Path], target: Path) -> None:
    """Write the events of all ranks on one time axis, as a trace for Perfetto.

    Each process of a rank, and each of its devices, becomes a process with the rank's number in its
    name. Times are in microseconds since the first event.

    Parameters
    ----------
    files : the trace of each rank, in their order.
    """
    numbers, events, base = count(), [], None
    for rank, file in enumerate(files):
        trace = json.loads(file.read_text(encoding="utf-8"))
        base = base or trace["baseTimeNanoseconds"]
        later = (trace["baseTimeNanoseconds"] - base) / 1000
        own = _events(rank, len(files), trace, numbers)
        events += (event | {"ts": event["ts"] + later} for event in own)
    start = min(event["ts"] for event in events if event["ph"] == "X")
    with atomic(target) as temporary:
        lines = (json.dumps(event | {"ts": max(0, event["ts"] - start)}) for event in events)
        temporary.write_text(
            '{"displayTimeUnit": "ms", "traceEvents": [\n' + ",\n".join(lines) + "\n]}\n",
            encoding="utf-8",
        )


def _events(rank: int, ranks: int, trace: dict, numbers: Iterator[int]) -> Iterator[dict]:
    """Yield the events of one rank, in its own microseconds.

    Processes are numbered by `numbers`. The profiler's events on itself belong to none.
    """
    events = [event for event in trace["traceEvents"] if isinstance(event.get("pid"), int)]
    labels = {
        event["pid"]: event["args"]["labels"]
        for event in events
        if event["name"] == "process_labels"
    }
    processes = {}
    for event in events:
        if event["ph"] == "M" and event["name"] not in _THREADS:
            continue
        if event["pid"] not in processes:
            number = processes[event["pid"]] = next(numbers)
            label = labels.get(event["pid"], "CPU")
            name = f"rank {rank}" if label == "CPU" else f"rank {rank}, {label}"
            about = {"ph": "M", "pid": number, "ts": event["ts"]}
            yield about | {"name": "process_name", "args": {"name": name}}
            yield about | {"name": "process_sort_index", "args": {"sort_index": number}}
        if "id" in event:
            # A flow from one event to another.
            event["id"] = event["id"] * ranks + rank
        yield event | {"pid": processes[event["pid"]]}
