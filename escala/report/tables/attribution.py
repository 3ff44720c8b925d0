"""Build the table of the parts of a training step, by rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd

from escala.analysis import attribution
from escala.experiment.references import ONE_PROCESS, Configuration, Reference, compared_with
from escala.record.comparable import CONFIGURATION, Measurement, paired
from escala.report.tables.base import Evidence, by_configuration, data_of, dtypes, reference_columns


def rows(evidence: Evidence) -> Iterator[dict]:
    """Yield a row for each part of a step of each rank."""
    found = evidence.of_probe("clocks")
    ok = [run for run in found if run["status"] == "ok"]
    parts, by_name = {run["file"]: _parts(run) for run in ok}, by_configuration(ok)
    for run in found:
        row = dict.fromkeys(dtypes("attribution")) | data_of(run)
        row |= {key: run[key] for key in (*CONFIGURATION, "session", "status", "reason")}
        row |= {"oversubscribed": run["ranks"]["oversubscribed"], "kind": "unavailable"}
        if run["status"] != "ok":
            yield row
            continue
        row |= {"slowdown": _slowdown(run, evidence.runs)}
        name, reference = _main_reference(run, by_name, evidence.references)
        medians = {}
        if reference:
            of_rank_0 = parts[reference["file"]].query("rank == 0").set_index("part")
            medians = of_rank_0["median_seconds"].to_dict()
        for part in parts[run["file"]].to_dict("records"):
            yield row | name | part | {"reference_median_seconds": medians.get(part["part"])}


def _parts(run: Measurement) -> pd.DataFrame:
    alone = run["strategy"] == ONE_PROCESS[0]
    return attribution.of_run(Path(run["file"]), alone, run["ranks"]["one_clock"])


def _main_reference(
    run: Measurement,
    by_name: Mapping[tuple, Sequence[Measurement]],
    references: Sequence[Reference],
) -> tuple[dict, Measurement | None]:
    """Return the columns that name a run's main reference, and its run of the same session."""
    for number, configuration in compared_with(
        Configuration(*(run[key] for key in CONFIGURATION[2:])), references
    ):
        candidates = by_name.get((run["dataset"], run["workload"], *configuration), ())
        return reference_columns(number, configuration), next(
            iter(paired([run], candidates).references), None
        )
    return {}, None


def _slowdown(run: Measurement, runs: pd.DataFrame) -> float | None:
    """Return the median step of a probe run over that of its session's timing runs."""
    of_both = [*CONFIGURATION, "session"]
    same = (runs[of_both] == [run[key] for key in of_both]).all(axis=1)
    timed = runs.loc[same & runs["comparable"], "step_median_seconds"].dropna()
    return run["step_seconds"]["median"] / timed.median() if len(timed) else None
