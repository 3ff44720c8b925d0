"""Where, when and with what a scaling study was measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from escala.core import packages
from escala.core.engines import ENGINES
from escala.core.readable import counted, size
from escala.experiment.runs import strategy_in_words
from escala.report.findings.words import Tables
from escala.report.study.cells import UNKNOWN
from escala.report.study.statement import rule_in_words

#: Packages by which training or exchange differ.
_VERSIONS = (
    "python",
    *dict.fromkeys(name for engine in ENGINES.values() for name in engine.distributions),
    "snakemake",
)


def provenance(
    tables: Tables, settings: Mapping[str, Any], runs: Sequence[Mapping]
) -> Iterator[tuple[str, str]]:
    """Yield names and values, in the order in which a reviewer asks for them."""
    ok = [run for run in runs if run["status"] == "ok"]
    dates = sorted(run["started"][:10] for run in ok)
    yield "date", " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else UNKNOWN
    yield "software", _versions(ok)
    for workload in tables["scaling"]["workload"].unique():
        yield f"case: {workload}", _case(workload, tables)
    strategies = ", ".join(f"{strategy_in_words(each)} ({each})" for each in settings["strategies"])
    yield "parallel strategy", f"{strategies} (data parallel; one rank runs as one process)"
    yield "machine", _machines(ok)
    yield (
        "hosts",
        ", ".join(sorted({host for run in ok for host in run["ranks"]["hosts"]})) or UNKNOWN,
    )
    yield "interconnect", _interconnect(ok)
    yield "started by", ", ".join(sorted({str(run["ranks"]["launcher"]) for run in ok})) or UNKNOWN
    yield "jobs", _jobs(ok)
    yield "paired runs", _matches(tables["speedup"])
    yield "rule", f"{settings['rules']['name']}: {rule_in_words(settings['rules'])}"
    yield (
        "method",
        "A speed-up is a ratio of paired runs, which are of one repeat and session. Its interval "
        "of 95 % is by signed ranks, from six pairs on. A whole run is from its request to its "
        "result; its parts are timed apart.",
    )


def _versions(ok: Sequence[Mapping]) -> str:
    """Return the versions of the packages that decide, of all runs."""
    found: dict[str, set[str]] = {}
    for run in ok:
        for name in _VERSIONS:
            if run["versions"].get(name, packages.ABSENT) != packages.ABSENT:
                found.setdefault(name, set()).add(run["versions"][name])
    return (
        ", ".join(f"{name} {' and '.join(sorted(each))}" for name, each in found.items()) or UNKNOWN
    )


def _case(workload: str, tables: Tables) -> str:
    """Return what was trained: rows of an epoch, parameters, epochs, or the command."""
    runs = tables["runs"]
    runs = runs[(runs["workload"] == workload) & runs["current"]]
    if command := next(iter(runs["command"].dropna()), None):
        return command
    parts = {
        "training rows": runs["train_rows"],
        "parameters": runs["parameters"],
        "epochs": runs["epochs_asked"],
    }
    return ", ".join(
        f"{name} {_span(values.dropna())}" for name, values in parts.items() if values.notna().any()
    )


def _span(values: pd.Series) -> str:
    return "–".join(dict.fromkeys(f"{value:.0f}" for value in (values.min(), values.max())))


def _machines(ok: Sequence[Mapping]) -> str:
    """Return the kinds of the nodes."""
    kinds = {
        f"{machine['cpu']}, {counted(machine['cores_available'], 'core')} available, "
        f"{size(machine['memory_bytes'])} of memory"
        + "".join(f", {gpu}" for gpu in machine.get("gpus", []))
        for run in ok
        for machine in run["ranks"]["machines"]
    }
    return "; ".join(sorted(kinds)) or UNKNOWN


def _interconnect(ok: Sequence[Mapping]) -> str:
    """Return interface, transport, rate and latency of the links between nodes."""
    across = [run for run in ok if run["layout"].nodes > 1]
    if not across:
        return "one node: ranks exchange through its memory or loopback interface"
    named = sorted({f"interface {run['ranks']['interface']}" for run in across})
    told = [each for run in across if (each := run["ranks"].get("transport"))]
    chosen = {"/".join([each["pml"], *(each["btl"] or ())]) for each in told}
    named += sorted(f"transport {each}" for each in chosen) or [f"transport {UNKNOWN}"]
    links = [run["link"] for run in across if run["link"]]
    for key, name, text in (
        ("mbit_per_second", "rate", "{:.0f} Mbit/s"),
        ("latency_ms", "latency", "{:.3g} ms"),
    ):
        known = [link[key] for link in links if link[key] is not None]
        value = text.format(pd.Series(known).median()) if known else UNKNOWN
        named.append(f"{name} {value}")
    if any(link.get("measured_by") for link in links):
        named[-1] += " (of one TCP connection between two nodes, once a job)"
    return ", ".join(named)


def _jobs(ok: Sequence[Mapping]) -> str:
    """Return the jobs of SLURM, its version, and whether they had their nodes to themselves."""
    jobs = [job for run in ok if (job := run.get("job"))]
    if not jobs:
        return "none: the runs were not in a job of SLURM, or are from older files"
    numbers = sorted({str(job["number"]) for job in jobs}, key=lambda each: (len(each), each))
    versions = sorted({job["slurm"] for job in jobs} - {None})
    shared = {job["exclusive"] for job in jobs}
    nodes = "exclusive nodes" if shared == {True} else "nodes that others could use"
    nodes = nodes if None not in shared else f"exclusive nodes: {UNKNOWN}"
    return ", ".join([*numbers, *(f"SLURM {each}" for each in versions), nodes])


def _matches(speedup: pd.DataFrame) -> str:
    """Return whether the runs of a match had the same nodes, and how far apart they began."""
    matched = speedup.dropna(subset=["same_nodes"])
    if matched.empty:
        return UNKNOWN
    where = "the same nodes" if matched["same_nodes"].all() else "other nodes in some pairs"
    return (
        f"the two runs of a ratio on {where}, begun {matched['seconds_apart'].median():.0f} s apart"
    )
