"""Describe the configurations, the data and the machine of an experiment."""

from __future__ import annotations

import pandas as pd

from escala.report.findings.words import Tables, configurations_of, count, joined, span

POSITION = 20


def sentence(tables: Tables, name: str) -> str:
    """Describe what was run, on which data and on which machine."""
    runs = tables["runs"]
    current = runs[runs["current"]]
    machines = [
        f"{row.cpu} ({count(row.cores_available, 'core')} available, "
        f"{row.memory_bytes / 2**30:.1f} GiB)"
        for row in runs[["cpu", "cores_available", "memory_bytes"]].drop_duplicates().itertuples()
    ]
    data = [
        f"{joined(group['workload'].unique())} on {dataset} ({_data(group)}; "
        f"{span(group['train_rows'])} training and {span(group['test_rows'])} test rows)"
        for dataset, group in current.groupby("dataset", sort=False)
    ]
    return (
        f"On {joined(machines)}, {count(len(configurations_of(current)), 'configuration')} of "
        f"{joined(data)} took part, {_timed(current)}."
    )


def _timed(current: pd.DataFrame) -> str:
    """Return how often configurations were timed, by workload where that differs."""
    repeats = current.groupby("workload", sort=False)["repeat"].nunique()
    if repeats.nunique() == 1:
        return f"each timed {count(repeats.iloc[0], 'time')}"
    by_workload = (f"{workload} {count(times, 'time')}" for workload, times in repeats.items())
    return f"each timed: {joined(by_workload)}"


def _data(group: pd.DataFrame) -> str:
    simulated = group["provenance"].iloc[0] == "simulated"
    provenance = (
        "simulated data, which says nothing about real genomes" if simulated
        else f"data from {group['provenance'].iloc[0]}"
    )  # fmt: skip
    return provenance + "; leaky split" * bool(group["leaky"].any())
