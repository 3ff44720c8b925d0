"""Describe the runs without result, the machines and the data of an experiment."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from escala.analysis.comparable import CONFIGURATION
from escala.core.environment import call
from escala.core.readable import size, with_noun
from escala.report.findings.context import Report
from escala.report.findings.words import Finding, join_words, list_names, quote, span
from escala.report.tables.views import programs


def gaps(report: Report) -> Iterator[Finding]:
    """Count the runs that did not end ok, and tell how to repeat them."""
    number, failed = report.tables["runs"]["current"].sum(), len(without_result(report))
    if failed:
        texts = [
            f"of {with_noun(number, 'timing run')}, {failed} did not end ok",
            "to repeat the failed runs with the runs that they are compared with, "
            f"{retry_phrase(report.name)}",
        ]
    else:
        texts = [
            f"all {number} timing runs ended ok" if number > 1 else "the only timing run ended ok"
        ]
    yield from (Finding(text, "runs", "seconds_per_epoch", bool(failed)) for text in texts)


def without_result(report: Report) -> pd.DataFrame:
    """Return the current runs that did not end ok, with labels."""
    runs = report.table("runs")
    return runs[runs["current"] & (runs["status"] != "ok")]


def retry_phrase(name: str) -> str:
    """Return a phrase on how to repeat the failed runs of an experiment."""
    return f"run `{call(f'retry results/{name}')}` and then the same command again"


def failures(report: Report) -> Iterator[tuple[str, str, str, str]]:
    """Yield label, repeats, status and whole reason of failed runs; equal reasons are one item."""
    keys = ["label", "status", "reason"]
    failed = without_result(report).fillna({"reason": ""})
    for (label, status, reason), rows in failed.groupby(keys, sort=False):
        yield label, ", ".join(map(str, rows["repeat"])), status, reason


def machines_and_data(report: Report) -> Iterator[Finding]:
    """Describe the current runs: how many, on which machines and on which data."""
    runs = report.tables["runs"][report.tables["runs"]["current"]]
    ok = runs.assign(ok=runs["status"] == "ok").groupby(list(CONFIGURATION), sort=False)["ok"].sum()
    were, apiece = ("was", "") if len(ok) == 1 else ("were", " each")
    number = f"{span(ok)} run{'' if ok.max() == 1 else 's'}{apiece}"
    texts = [f"{with_noun(len(ok), 'configuration')} {were} timed, with {number} that ended ok"]
    machines = runs[["cpu", "cores_available", "memory_bytes", "gpus"]].drop_duplicates()
    for row in machines.itertuples():
        texts.append(
            f"the machine is {quote(row.cpu)} with {with_noun(row.cores_available, 'core')} and "
            f"{size(row.memory_bytes)} of memory"
        )
        if pd.notna(row.gpus):
            texts.append(f"it has the GPU {quote(row.gpus)}")
    for name, group in runs.groupby("dataset", sort=False):
        dataset, workloads = quote(name), group["workload"].unique()
        numbers = {"training": group["train_rows"].dropna(), "test": group["test_rows"].dropna()}
        known = [f"{span(rows)} {part} rows" for part, rows in numbers.items() if len(rows)]
        if known:
            texts.append(f"{dataset} has {join_words(known)}")
        texts.append(f"{list_names(workloads)} train{'s' * (len(workloads) == 1)} on {dataset}")
        source_type = group["provenance"].iloc[0]
        if source_type == "simulated":
            texts.append(f"the data of {dataset} are simulated, and say nothing about real data")
        # Nothing more is known of files that a program reads itself.
        elif source_type != "files" or not set(workloads) <= set(programs(report.tables)):
            texts.append(f"the data of {dataset} are from a source of type {quote(source_type)}")
    yield from (Finding(text, "runs") for text in texts)
    if (report.tables["speedup"]["work"] != 1).any():
        text = (
            "the scaling is weak: an epoch of n ranks has n times the rows, and ratios are of "
            "the time for equal rows"
        )
        yield Finding(text, "speedup", "speedup")
