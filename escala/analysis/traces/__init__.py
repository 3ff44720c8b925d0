"""Tell where the time of the steps of a training goes, by the traces that its ranks wrote."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

from escala.analysis.traces import horovod, kineto
from escala.probes.timeline import open_events

#: The number of first events by which the kind of a trace is known.
_FIRST = 1000


def explain(paths: Sequence[Path]) -> Iterator[str]:
    """Yield sentences on traces: those of PyTorch together, as ranks of one training.

    Raises
    ------
    InputError : a file is no trace, or tells of too few steps.
    """
    of_torch = [path for path in paths if _is_of_torch(path)]
    if of_torch:
        yield from kineto.lines(kineto.divide([*map(kineto.read, of_torch)]))
    for path in paths:
        if path not in of_torch:
            if len(paths) > 1:
                yield f"{path}:"
            yield from horovod.lines(horovod.diagnose(path))


def _is_of_torch(path: Path) -> bool:
    with open_events(path) as events:
        categories = [str(event.get("cat")).lower() for event in islice(events, _FIRST) if event]
    return not kineto.CATEGORIES.keys().isdisjoint(categories)
