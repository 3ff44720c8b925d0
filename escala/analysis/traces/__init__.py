"""Tell where the time of the steps of a training goes, by the traces that its ranks wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from escala.analysis.traces import horovod, spans
from escala.probes.timeline import is_whole, open_events


def explain(paths: Sequence[Path]) -> Iterator[str]:
    """Yield sentences on traces: those of profilers together, as ranks of one training.

    Raises
    ------
    InputError : a file is no trace, or tells of too few steps.
    """
    rank_files = [path for path in paths if not _is_of_horovod(path)]
    if rank_files:
        yield from spans.lines(spans.divide([*map(spans.read, rank_files)]))
    for path in paths:
        if path not in rank_files:
            if len(paths) > 1:
                yield f"{path}:"
            yield from horovod.lines(horovod.diagnose(path))


def _is_of_horovod(path: Path) -> bool:
    """Return whether a trace is a timeline of Horovod, by its first event that tells.

    Without one, an array is taken for a timeline: Horovod writes no object.
    """
    with open_events(path) as events:
        for event in filter(None, events):
            if spans.category_of(event):
                return False
            if event["ph"] == "B" and is_whole(event["name"]):
                return True
        return not events.head.lstrip().startswith(b"{")
