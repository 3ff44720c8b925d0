"""Tell where the results of the page come from."""

from __future__ import annotations

from collections.abc import Iterator

from escala.core.readable import counted
from escala.report.findings.words import Tables, span


def provenance(tables: Tables, name: str) -> Iterator[tuple[str, str]]:
    """Yield names and values: experiment, runs, sessions, hosts, systems, splits and code."""
    runs = tables["runs"]
    yield "experiment", name
    yield "measurements", counted(len(runs), "measurement")
    yield "sessions", ", ".join(sorted(runs["session"].unique()))
    yield "started", " to ".join(sorted({runs["started"].min(), runs["started"].max()}))
    hosts = {host for names in runs["hosts"].dropna() for host in names.split(";") if host}
    yield "hosts", ", ".join(sorted(hosts)) or "unavailable"
    yield "kernel", ", ".join(sorted(runs["kernel"].dropna().unique()))
    for dataset, group in runs.groupby("dataset", sort=False):
        seeds = ", ".join(map(str, sorted(group["split_seed"].unique())))
        tested = group["test_rows"].dropna()
        rows = f", {span(tested)} test rows" if len(tested) else ""
        source = group["provenance"].iloc[0]
        yield f"dataset {dataset}", f"{source}, split seed {seeds}{rows}"
    for workload, commands in runs.groupby("workload", sort=False)["command"]:
        for command in commands.dropna().unique():
            yield f"program {workload}", command
    yield "digests of the code", ", ".join(sorted(runs["source_sha256"].dropna().unique()))
