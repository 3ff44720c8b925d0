"""Describe the configurations, the data and the machine of an experiment."""

from __future__ import annotations

import pandas as pd

from escala.record.comparable import CONFIGURATION
from escala.report.findings.words import Tables, configurations_of, count, joined, span

POSITION = 20


def sentence(tables: Tables, name: str) -> str:
    """Describe the current runs: how many, on which machines and on which data."""
    runs = tables["runs"][lambda frame: frame["current"]]
    kinds = runs[["cpu", "cores_available", "memory_bytes"]].drop_duplicates()
    machines = [
        f"{row.cpu} ({count(row.cores_available, 'core')} available, "
        f"{row.memory_bytes / 2**30:.1f} GiB)"
        for row in kinds.itertuples()
    ]
    data = [
        f"{joined(group['workload'].unique())} on {dataset} ({_data(group)}; "
        f"{span(group['train_rows'])} training and {span(group['test_rows'])} test rows)"
        for dataset, group in runs.groupby("dataset", sort=False)
    ]
    configurations = len(configurations_of(runs))
    were, they_train = ("was", "It trains") if configurations == 1 else ("were", "They train")
    return (
        f"{count(configurations, 'configuration')} {were} timed on {joined(machines)}, "
        f"{_how_often(runs)}. {they_train} {joined(data)}."
    )


def _how_often(runs: pd.DataFrame) -> str:
    """Return how many runs of a configuration ended ok, for each workload if the numbers differ."""
    ok = runs.assign(ok=runs["status"] == "ok").groupby(list(CONFIGURATION), sort=False)["ok"].sum()
    by_workload = {
        workload: f"{span(numbers)} time{'' if numbers.max() == 1 else 's'}"
        for workload, numbers in ok.groupby("workload", sort=False)
    }
    each = "each " * (len(ok) > 1)
    if len(set(by_workload.values())) == 1:
        return each + next(iter(by_workload.values()))
    return f"{each}{joined(f'{times} for {workload}' for workload, times in by_workload.items())}"


def _data(runs: pd.DataFrame) -> str:
    """Describe where the data of a dataset come from, and whether its split is leaky."""
    source_type = runs["provenance"].iloc[0]
    origin = (
        "simulated data, which say nothing about real data" if source_type == "simulated"
        else f"data from a source of type {source_type}"
    )  # fmt: skip
    leaky = "; the split is leaky: copies of training rows are among the test rows" * bool(
        runs["leaky"].any()
    )
    return origin + leaky
