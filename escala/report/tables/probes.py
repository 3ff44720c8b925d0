"""The tables of what probes captured: parts of a step, one step, and the use of resources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from escala.analysis.attribution import moments, run_attribution, typical_step
from escala.experiment.references import ONE_PROCESS, Configuration, compared_with
from escala.record.comparable import CONFIGURATION, Measurement, matched
from escala.report.tables import base
from escala.report.tables.base import Evidence, Tables

_NO_CLOCK = "the ranks ran on several machines, whose clocks differ"
_NOT_INSIDE = "the strategy has no moments inside the step"


def _about(run: Measurement) -> dict:
    """Return the columns on a probe run, which is unavailable until more is known."""
    names = {key: run[key] for key in (*CONFIGURATION, "session", "status", "reason")}
    oversubscribed = run["ranks"]["oversubscribed"]
    return base.data_of(run) | names | {"oversubscribed": oversubscribed, "kind": "unavailable"}


def _is_alone(run: Measurement) -> bool:
    return run["strategy"] == ONE_PROCESS[0]


def attribution(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each part of a step of each rank, and one for each run that failed."""
    runs = evidence.probe_runs("clocks")
    ok = base.by_configuration(run for run in runs if run["status"] == "ok")
    parts = {
        run["file"]: run_attribution(Path(run["file"]), _is_alone(run), run["ranks"]["one_clock"])
        for each in ok.values()
        for run in each
    }
    for run in runs:
        if run["file"] not in parts:
            yield _about(run)
            continue
        row = _about(run) | {"slowdown": _slowdown(run, tables["runs"])}
        name, reference = _main_reference(run, ok, evidence)
        medians = {}
        if reference:
            rank_0_parts = parts[reference["file"]].query("rank == 0").set_index("part")
            medians = rank_0_parts["median_seconds"].to_dict()
        for part in parts[run["file"]].to_dict("records"):
            yield row | name | part | {"reference_median_seconds": medians.get(part["part"])}


def _main_reference(
    run: Measurement, ok: Mapping[tuple, Sequence[Measurement]], evidence: Evidence
) -> tuple[dict, Measurement | None]:
    """Return the columns that name a run's main reference, and its run of the same session."""
    configuration = Configuration(*(run[key] for key in CONFIGURATION[2:]))
    for number, reference in compared_with(configuration, evidence.references):
        candidates = ok.get((run["dataset"], run["workload"], *reference), ())
        found = matched([run], candidates).references
        return base.reference_columns(number, reference), next(iter(found), None)
    return {}, None


def _slowdown(run: Measurement, runs: pd.DataFrame) -> float | None:
    """Return the median step of a probe run over that of its session's timing runs."""
    keys = [*CONFIGURATION, "session"]
    usable = runs[(runs[keys] == [run[key] for key in keys]).all(axis=1) & runs["comparable"]]
    seconds = usable["step_median_seconds"].dropna()
    return run["step_seconds"]["median"] / seconds.median() if len(seconds) else None


def step(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each segment of the typical step of each run with clocks, by rank."""
    for run in evidence.probe_runs("clocks"):
        row = _about(run)
        if run["status"] != "ok":
            yield row
            continue
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
        for process in run["resources"] or [{}]:
            yield _about(run) | process
