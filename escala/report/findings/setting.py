"""Describe the configurations, the data and the machine of an experiment."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.comparable import CONFIGURATION
from escala.core.readable import counted, size
from escala.report.findings.words import Finding, Tables, joined, listed, quoted, span

POSITION = 80
SECTION = "data"


def findings(tables: Tables, name: str) -> Iterator[Finding]:
    """Describe the current runs: how many, on which machines and on which data."""
    runs = tables["runs"][tables["runs"]["current"]]
    for text in (_how_often(runs), *_machines(runs), *_data(runs)):
        yield Finding(text, "runs")
    if (tables["speedup"]["work"] != 1).any():
        text = (
            "The scaling is weak: an epoch of n ranks has n times the rows, and ratios are of "
            "the time for equal rows."
        )
        yield Finding(text, "speedup", "speedup")


def _how_often(runs: pd.DataFrame) -> str:
    """Describe how many runs of a configuration ended ok."""
    ok = runs.assign(ok=runs["status"] == "ok").groupby(list(CONFIGURATION), sort=False)["ok"].sum()
    were, each = ("was", "") if len(ok) == 1 else ("were", " each")
    runs_ok = f"{span(ok)} run{'' if ok.max() == 1 else 's'}"
    configurations = counted(len(ok), "configuration")
    return f"{configurations} {were} timed, with {runs_ok}{each} that ended ok."


def _machines(runs: pd.DataFrame) -> Iterator[str]:
    kinds = runs[["cpu", "cores_available", "memory_bytes", "gpus"]].drop_duplicates()
    for row in kinds.itertuples():
        yield (
            f"The machine is {quoted(row.cpu)} with {counted(row.cores_available, 'core')} and "
            f"{size(row.memory_bytes)} of memory."
        )
        if pd.notna(row.gpus):
            yield f"It has the GPU {quoted(row.gpus)}."


def _data(runs: pd.DataFrame) -> Iterator[str]:
    """Describe each dataset: its rows, what is trained on it, and where its data come from."""
    for name, group in runs.groupby("dataset", sort=False):
        dataset = quoted(name)
        sides = {"training": group["train_rows"].dropna(), "test": group["test_rows"].dropna()}
        known = [f"{span(rows)} {side} rows" for side, rows in sides.items() if len(rows)]
        if known:
            yield f"{dataset} has {joined(known)}."
        workloads = group["workload"].unique()
        yield f"{listed(workloads)} train{'s' * (len(workloads) == 1)} on {dataset}."
        source_type = group["provenance"].iloc[0]
        if source_type == "simulated":
            yield f"The data of {dataset} are simulated, and say nothing about real data."
        # Of files that programs read themselves, no more is known than that.
        elif source_type != "files" or not (group["training_kind"] == "command").all():
            yield f"The data of {dataset} are from a source of type {quoted(source_type)}."
