"""The tables of what probes captured: parts of a step, one step, and the use of resources."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from escala.analysis.attribution import (
    WHOLE,
    clocks_files,
    moments,
    run_attribution,
    typical_step,
)
from escala.analysis.comparable import CONFIGURATION, Measurement, matched
from escala.analysis.statistics import mean_interval
from escala.experiment.runs import (
    ONE_PROCESS,
    Configuration,
    compared_with,
    reference_number,
)
from escala.report.tables import base
from escala.report.tables.base import Evidence, Tables
from escala.report.tables.views import names_of_rows

_NO_FILES = "the run ended ok, but left no ranks/rank*.clocks.csv: remove its folder and run again"
_NO_CLOCK = "the ranks ran on several machines, whose clocks differ"
_NOT_INSIDE = "the strategy has no moments inside the step"


def _about(run: Measurement) -> dict:
    """Return the columns on a probe run."""
    names = {key: run[key] for key in (*CONFIGURATION, "session", "status", "reason")}
    return base.data_of(run) | names


def _is_alone(run: Measurement) -> bool:
    return run["strategy"] == ONE_PROCESS[0]


def _clocked(evidence: Evidence) -> tuple[list[Measurement], list[Measurement]]:
    """Return the runs with clocks that left moments, and the others, each with its reason."""
    runs = evidence.probe_runs("clocks")
    ok = [run for run in runs if run["status"] == "ok"]
    empty = [run | {"reason": _NO_FILES} for run in ok if not clocks_files(Path(run["file"]))]
    files = {run["file"] for run in empty}
    failed = [run for run in runs if run["status"] != "ok"]
    return [run for run in ok if run["file"] not in files], [*failed, *empty]


def attribution(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each part of a step of each rank, and one for each run without clocks.

    The runs of a configuration are a sample: each value is their mean, with Student's interval.
    """

    def row_of(run: Measurement) -> dict:
        oversubscribed = run["ranks"]["oversubscribed"]
        return _about(run) | {"oversubscribed": oversubscribed, "kind": "unavailable"}

    runs, others = _clocked(evidence)
    yield from map(row_of, others)
    parts = {
        run["file"]: run_attribution(
            Path(run["file"]), _is_alone(run), run["ranks"]["one_clock"]
        ).set_index(["rank", "part"])
        for run in runs
    }
    by_name = base.by_configuration(runs)
    for names, of_names in by_name.items():
        number, reference = _compared_with(names, by_name, evidence, tables)
        others = by_name.get((*names[:2], *reference), ()) if reference else ()
        # One session, because machines drift: that of most runs, the newest of several.
        sessions = Counter(run["session"] for run in of_names)
        session = max(sessions, key=lambda each: (sessions[each], each))
        same = [run for run in of_names if run["session"] == session]
        found = matched(same, others)
        about = row_of(same[0]) | {"runs": len(same), "matches": len(found.runs)}
        about |= base.reference_columns(number, reference) if reference else {}
        about |= _against_timing_runs(evidence.runs, same, found.references)
        differences = [
            parts[run["file"]]["seconds"].sub(
                about["reference_steps"] * parts[other["file"]].loc[0, "seconds"], level="part"
            )
            for run, other in zip(found.runs, found.references, strict=True)
        ]
        yield from (
            about | row for row in _parts([parts[run["file"]] for run in same], differences)
        )


def _compared_with(
    names: tuple, clocked: Collection[tuple], evidence: Evidence, tables: Tables
) -> tuple[int | None, Configuration | None]:
    """Return what a step is compared with, and its number as a reference; None without any.

    A best use is compared with the alternative that decides, if that is among `clocked`, and others
    with the main reference.
    """
    table = tables["best_use"]
    deciding = table[table["closest"]]
    for row in deciding[[each == names for each in names_of_rows(deciding)]].to_dict("records"):
        other = Configuration(*(row[f"alternative_{part}"] for part in Configuration._fields))
        if (*names[:2], *other) in clocked:
            return reference_number(other, evidence.references), other
    return next(compared_with(Configuration(*names[2:]), evidence.references), (None, None))


def _parts(runs: Sequence[pd.DataFrame], differences: Sequence[pd.Series]) -> Iterator[dict]:
    """Yield what is known of each part of each rank, from runs of one configuration.

    Parameters
    ----------
    runs : results of `run_attribution`, by rank and part.
    differences : seconds by rank and part of runs, less those of the reference's runs.
    """
    for rank, part in runs[0].index:
        rows = pd.DataFrame([run.loc[(rank, part)] for run in runs])
        mean = mean_interval(rows["seconds"].dropna().to_numpy(float))
        more = mean_interval([d for each in differences if pd.notna(d := each[rank, part])])
        whole = np.mean([run.at[(rank, WHOLE), "seconds"] for run in runs])
        yield {
            "rank": rank,
            "part": part,
            "seconds": mean.estimate,
            "low_seconds": mean.low,
            "high_seconds": mean.high,
            "fraction": None if mean.estimate is None else mean.estimate / whole,
            **more.columns("difference", "_seconds"),
            "steps": int(rows["steps"].sum()),
            "source": rows["source"].iloc[0],
            "kind": base.least_certain(rows["kind"]),
        }


def _against_timing_runs(
    timing_runs: Sequence[Measurement],
    runs: Sequence[Measurement],
    references: Sequence[Measurement],
) -> dict:
    """Return the columns that set runs with clocks against timing runs of their session."""

    def timed(clocked: Measurement) -> float:
        alike = [
            _step_seconds(run)
            for run in timing_runs
            if base.is_timed(run) and all(run[key] == clocked[key] for key in same)
        ]
        return float(np.median(alike)) if alike else math.nan

    same = (*CONFIGURATION, "session")
    seconds = timed(runs[0])
    found = {"slowdown": np.mean([_step_seconds(run) for run in runs]) / seconds}
    if references:
        one, other = (run["training"]["global_batch"] for run in (runs[0], references[0]))
        found["reference_steps"] = one / other
        found["timed_difference_seconds"] = seconds - one / other * timed(references[0])
    return {name: None if math.isnan(value) else value for name, value in found.items()}


def _step_seconds(run: Measurement) -> float:
    """Return the mean seconds of a step, with all that is timed around it."""
    return run["seconds"]["train"] / sum(epoch["steps"] for epoch in run["epochs"])


def step(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each segment of the typical step of each run with clocks, by rank."""
    runs, others = _clocked(evidence)
    yield from (_about(run) | {"kind": "unavailable"} for run in others)
    for run in runs:
        row = _about(run) | {"kind": "unavailable"}
        if not run["ranks"]["one_clock"]:
            yield row | {"reason": _NO_CLOCK}
            continue
        segments = typical_step(*moments(Path(run["file"]), one_clock=True))
        if segments.empty:
            yield row | {"reason": _NOT_INSIDE}
        for segment in segments.to_dict("records"):
            yield row | segment


def resources(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each process of each run whose resources were sampled."""
    for run in evidence.probe_runs("resources"):
        row = _about(run) | {"oversubscribed": run["ranks"]["oversubscribed"]}
        for process in run["resources"] or [{}]:
            yield row | process
