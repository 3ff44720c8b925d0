"""Build the table of one training step of each configuration, by rank."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from escala.analysis import attribution
from escala.analysis.attribution import SOURCES, TIMELINE
from escala.experiment.references import ONE_PROCESS
from escala.record.comparable import CONFIGURATION
from escala.report.tables.base import Evidence, data_of, dtypes

_NO_CLOCK = "the ranks ran on several machines, whose clocks differ"
_NOT_INSIDE = "the strategy has no moments inside the step"


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each segment of the typical step of each run with clocks."""
    for run in evidence.of_probe("clocks"):
        row = dict.fromkeys(dtypes("step")) | data_of(run)
        row |= {key: run[key] for key in (*CONFIGURATION, "session", "status", "reason")}
        row |= {"kind": "unavailable"}
        if run["status"] != "ok":
            yield row
            continue
        if not run["ranks"]["one_clock"]:
            yield row | {"reason": _NO_CLOCK}
            continue
        clocks, phases = attribution.moments(Path(run["file"]), one_clock=True)
        segments = attribution.typical_step(clocks, phases)
        if segments.empty:
            yield row | {"reason": _NOT_INSIDE}
        alone = run["strategy"] == ONE_PROCESS[0]
        for segment in segments.to_dict("records"):
            yield row | segment | {"kind": _kind(segment, alone)}


def _kind(segment: dict, alone: bool) -> str:
    """Return how a segment is known: only rank 0 writes Horovod's timeline."""
    of_timeline = TIMELINE in SOURCES[segment["part"]]
    return "estimated" if of_timeline and segment["rank"] != 0 and not alone else "measured"
