"""Compose the text of the document of a scaling study, for all formats."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import pandas as pd

from escala.analysis.comparable import CONFIGURATION
from escala.analysis.tables import records
from escala.core import packages
from escala.core.engines import ENGINES
from escala.core.readable import UNAVAILABLE, in_percent, number, size, with_noun
from escala.experiment.runs import MAIN, NATIVE, layout_in_words, strategy_in_words
from escala.experiment.scaling import BASELINE, WEAK
from escala.programs.seen import ASSUMED_EPOCH
from escala.report.findings.answer import HOW_TIMED
from escala.report.findings.words import Tables, join_words, span
from escala.report.study.statement import (
    EMULATED,
    case_in_words,
    conditions,
    in_words,
    interval,
    layout,
    missing_fields,
    other_work,
    plan_table,
    rule_in_words,
    sizes_to_state,
    statement,
    states_number,
    units,
)
from escala.report.tables.base import is_cut
from escala.report.tables.views import level, unit

#: What the user writes for the site, by the keys of `scaling.proposal`.
_TITLES = {
    "software": "software",
    "case": "case",
    "io": "input and output",
    "checkpoints": "checkpoints",
    "storage": "storage and transfers",
    "need": "why no smaller machine",
}
#: The most scores of a workload that the document has.
_MOST_SCORES = 3
#: Columns in which series differ.
SERIES = ["dataset", "workload", "variant", "study_strategy", "study_network"]
#: Packages by which training or exchange differ.
_VERSIONS = (
    "python",
    *dict.fromkeys(name for engine in ENGINES.values() for name in engine.distributions),
    "snakemake",
)


class Series(NamedTuple):
    """What the document says on the layouts of one strategy, variant and network.

    Attributes
    ----------
    heading : names the series.
    statement : a paragraph to paste.
    tables : tables of text, by their captions.
    notes : unavailable values with their reasons, and what limits the series.
    """

    heading: str
    statement: str
    tables: dict[str, pd.DataFrame]
    notes: list[str]


class Study(NamedTuple):
    """The document.

    Attributes
    ----------
    kind : a sentence that says what the document is.
    missing : what the site asks for and the document lacks, with the key to fill.
    proposal : what the user wrote for the site, by names.
    about : names and values on how it was measured.
    files : texts to attach by their headings, such as the job script.
    """

    title: str
    kind: str
    missing: list[tuple[str, str]]
    series: list[Series]
    proposal: list[tuple[str, str]]
    about: list[tuple[str, str]]
    files: dict[str, str]


def study(
    tables: Tables,
    title: str,
    settings: Mapping[str, Any],
    runs: Sequence[Mapping],
    files: Mapping[str, str] = MappingProxyType({}),
    data: Mapping[str, str] = MappingProxyType({}),
) -> Study:
    """Return what the document says.

    Parameters
    ----------
    tables : the tables of `escala.report.tables`.
    settings : the key `scaling` of the experiment, with all defaults.
    runs : the contents of the `run.json` files of its timing runs.
    files : texts to attach, by their headings.
    data : number and size of the files of each dataset in words.
    """
    groups = tables["scaling"].groupby(SERIES, sort=False)
    series = [_series(rows, tables, settings) for _, rows in groups]
    is_emulated = tables["scaling"]["emulated"].eq(True).any()
    kind = f"Scaling study, of measured runs{f' on {EMULATED}' if is_emulated else ''}."
    proposal = {
        title: " ".join(settings["proposal"][key].split())
        for key, title in _TITLES.items()
        if key in settings["proposal"]
    }
    about = [*provenance(tables, settings, runs), *((f"data: {n}", data[n]) for n in data)]
    return Study(
        title,
        kind,
        list(missing_fields(tables["scaling"], settings, runs)),
        series,
        list(proposal.items()),
        about,
        dict(files),
    )


def _series(rows: pd.DataFrame, tables: Tables, settings: Mapping) -> Series:
    """Return what the document says on one series: its rows of the table `scaling`."""
    first, rule = rows.iloc[0], settings["rules"]
    network = "" if first["study_network"] == NATIVE else f", network {first['study_network']}"
    heading = (
        f"{first['scaling'].capitalize()} scaling of {case_in_words(first)}: "
        f"{strategy_in_words(first['study_strategy'])}, variant {first['variant']}{network}"
    )
    has_gpus = rows["gpus"].fillna(0).max() > 0
    epoch_or_run = unit(tables, first["workload"])
    weak = "weak " if settings["kind"] == WEAK else ""
    against = "over the baseline" if rule["against"] == BASELINE else "of the doubling"
    judged_times = "whole runs" if "run" in (rule["time"], epoch_or_run) else "steps"
    judged = f"efficiency of {judged_times} {against}"
    least = "verdict" if rule.get("tiers") else f"≥ {rule.get('efficiency', 0):.0%}"
    lines = []
    for row in records(rows):
        is_baseline = row["layout"] == row["baseline"]
        passes = "shares cores" if row["shares_cores"] else row["passes"] or "not judged"
        if rule.get("tiers") and row["passes"]:
            passes += f", at {row['rule_least']:.0%}"
        verdict = {least: "baseline" if is_baseline else passes} if states_number(rule) else {}
        lines.append(
            {
                "layout": layout(row),
                "nodes": str(row["nodes"]),
                "ranks": str(row["ranks"]),
                "cores": number(row["cores"], ".0f"),
                f"s per {epoch_or_run}": interval(row, "seconds_per_epoch"),
                "rows/s": interval(row, "samples_per_second"),
                "speed-up": interval(row, "speedup"),
                f"{weak}efficiency": interval(row, "efficiency"),
                "speed-up of whole runs": interval(row, "whole_speedup"),
                judged: "–" if is_baseline else interval(row, "rule_efficiency"),
            }
            | verdict
        )
    tables_of_text = {
        "Time and efficiency": pd.DataFrame(lines),
        "What the site asks of the runs": conditions(rows, settings),
        "What a run takes": _cost_table(rows, settings, has_gpus),
        "Compute time by period and work package": plan_table(rows, settings)
        if settings["plan"]
        else pd.DataFrame(),
        "Scores, and predicted times": _further_table(rows, tables),
    }
    tables_of_text = {caption: table for caption, table in tables_of_text.items() if len(table)}
    notes, unknown = list(_notes(rows, tables)), []
    for caption, table in tables_of_text.items():
        columns = table.columns[table.eq(UNAVAILABLE).all()]
        tables_of_text[caption] = table.drop(columns=columns)
        unknown.extend(columns)
    if unknown:
        notes.append(f"Unavailable for all sizes: {'; '.join(unknown)}.")
    return Series(heading, statement(rows, tables, settings), tables_of_text, notes)


def _cost_table(rows: pd.DataFrame, settings: Mapping, has_gpus: bool) -> pd.DataFrame:
    """Return for each layout the parts of a whole run, its cost, and the cost of planned runs."""
    planned, margin = settings["planned_runs"], settings["margin"]
    unit_name = settings["unit"]["name"]
    lines = []
    for row in records(rows):
        sent = "–" if row["nodes"] == 1 else _bytes(row["sent_bytes_per_step"])
        columns = {
            "layout": layout(row),
            "whole run (s)": number(row["wall_seconds"]),
            "set-up (s)": number(row["set_up_seconds"]),
            "steps (s)": number(row["train_seconds"]),
            "validation (s)": number(row["validation_seconds"]),
            "checkpoints (s)": number(row["checkpoint_seconds"]),
            "test and saving (s)": number(row["closing_seconds"]),
            "not accounted for (s)": number(row["unaccounted_seconds"]),
            "input, in the set-up (s)": number(row["loading_seconds"]),
            "memory of a node": _bytes(row["node_memory_bytes"]),
            "sent by a node in a step": sent,
            "read from storage": _bytes(row["read_bytes"]),
            "written to storage": _bytes(row["written_bytes"]),
            "a checkpoint": _bytes(row["checkpoint_bytes"]),
            "node-hours": number(row["node_hours"]),
            "core-hours": number(row["core_hours"]),
            "use of cores (%)": number(row["core_percent"]),
        }
        if has_gpus:
            columns["GPU-hours"] = number(row["gpu_hours"])
            columns["use of GPUs (%)"] = number(row["gpu_percent"])
        heading = f"{planned} run{'s' * (planned > 1)} + {margin:.0%} ({unit_name})"
        lines.append(columns | {heading: number(units(row, settings))})
    return pd.DataFrame(lines)


def _bytes(value: float | None) -> str:
    return UNAVAILABLE if pd.isna(value) else size(value)


def _further_table(rows: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """Return the scores and the predicted times of each layout."""
    epoch_or_run = unit(tables, rows.iloc[0]["workload"])
    scores = _scores(rows, tables)
    lines = []
    for row in records(rows):
        measured, predicted = row["seconds_per_epoch"], row["predicted_seconds_per_epoch"]
        is_of_row = (scores[list(CONFIGURATION)] == [row[key] for key in CONFIGURATION]).all(axis=1)
        means = {score["score"]: interval(score, "mean") for score in records(scores[is_of_row])}
        lines.append(
            {
                "layout": layout(row),
                "rows in a step": number(row["global_batch"], ".0f"),
                **{name: means.get(name, UNAVAILABLE) for name in scores["score"].unique()},
                f"predicted s per {epoch_or_run}": interval(row, "predicted", "_seconds_per_epoch"),
                "predicted / measured": number(
                    None if None in (predicted, measured) else predicted / measured
                ),
            }
        )
    return pd.DataFrame(lines)


def _scores(rows: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """Return the means of the first scores of the layouts, a row for each layout and score."""
    scores = tables["mean_scores"].merge(rows[list(CONFIGURATION)])
    scores = scores[scores["score"].isin(scores["score"].unique()[:_MOST_SCORES])]
    return scores.drop_duplicates([*CONFIGURATION, "score"])


def _notes(rows: pd.DataFrame, tables: Tables) -> Iterator[str]:
    """Yield unavailable values with their reasons, and what limits the series."""
    measured = rows[(rows["kind"] != UNAVAILABLE) & ~rows["shares_cores"].astype(bool)]
    configurations = tables["configurations"].merge(rows[list(CONFIGURATION)])
    runs = tables["runs"].merge(rows[list(CONFIGURATION)])
    if (measured["kind"] == "estimated").any():
        whole = "Whole runs are projected from these and the time before them."
        if measured["wall_seconds"].isna().any():
            whole = (
                "The time of whole runs is not known: let the command name {epochs}, or measure "
                "whole runs (--whole, or window: 0)."
            )
        yield (
            "An epoch is projected from some of its steps, without what comes between epochs, such "
            f"as an evaluation. {whole}"
        )
    if runs["program_notes"].fillna("").str.contains(ASSUMED_EPOCH, regex=False).any():
        yield (
            f"{ASSUMED_EPOCH[0].upper()}{ASSUMED_EPOCH[1:]}. So sizes are compared for equal "
            "numbers of steps, whatever rows these hold."
        )
    if other := other_work(measured):
        yield f"Not the same work: {other}."
    if disturbed := int((runs["disturbed"].eq(True) & runs["current"]).sum()):
        yield f"Other work disturbed {with_noun(disturbed, 'run')} of {int(runs['current'].sum())}."
    for row in records(rows[rows["shares_cores"].astype(bool)]):
        yield (
            f"The cores of {in_words(row)} were shared: these times say nothing about scaling, and "
            "are left out of the statement and the figure."
        )
    for row in configurations[configurations["kind"] == UNAVAILABLE].itertuples():
        yield f"No time of {layout_in_words(row.layout, row.strategy)}: {row.reason}."
    for row in rows[rows["gain_reason"].notna() & ~rows["shares_cores"].astype(bool)].itertuples():
        which = layout_in_words(row.layout, row.strategy)
        yield f"No comparison of {which} with each smaller layout: {row.gain_reason}."
    for reason, sizes in rows.groupby("rule_reason", sort=False):
        which = join_words(map(in_words, records(sizes)))
        yield f"Not judged by the rule: {which}, since {reason}."
    if rows["provenance"].eq("simulated").any():
        yield "The data are simulated. Times hold for real data of the same shape, scores do not."
    batches = rows["global_batch"].dropna().unique()
    if len(batches) > 1:
        yield "The rows of a step grow with the processes. Compare the scores of layouts."
    yield from _notes_on_gaps(rows, tables)


def _notes_on_gaps(rows: pd.DataFrame, tables: Tables) -> Iterator[str]:
    """Yield what a law expects of twice the largest size, and how to get unavailable quantities.

    The law is fitted to the times of the series.
    """
    last = sizes_to_state(rows).tail(1)
    laws = tables["amdahl"].merge(last[list(CONFIGURATION)])
    laws = laws[(laws["reference"] == MAIN) & (laws["law_kind"] == "estimated")]
    laws = laws[laws["extrapolated_times"] > laws["cores"] / laws["reference_cores"]]
    for law in records(laws):
        yield (
            f"Beyond {in_words(last.iloc[0])} nothing was measured. By the universal scalability "
            f"law, fitted to these times, {law['extrapolated_times']:g} times the cores of "
            f"{layout_in_words(law['reference_layout'])} "
            f"are {number(law['extrapolated_speedup'])} times as fast: an extrapolation."
        )
    keys = list(CONFIGURATION)
    without_memory = rows[rows["node_memory_bytes"].isna()][keys]
    sampled = tables["resources"].query("status == 'ok'")
    too_short = without_memory.merge(sampled[keys].drop_duplicates())
    for row in too_short.itertuples():
        yield (
            f"An epoch of {layout_in_words(row.layout, row.strategy)} is too short for samples of "
            "its memory: write resources: {enabled: true, seconds: 0.05}, or train on more rows."
        )
    if len(without_memory) > len(too_short):
        yield (
            "Memory and bytes that are unavailable need runs of the probe resources: write "
            "resources: {enabled: true}."
        )
    if rows["predicted_seconds_per_epoch"].isna().all():
        yield "There are no predictions: escala predict makes them."
    if _scores(rows, tables).empty:
        yield "The runs have no scores."


def provenance(
    tables: Tables, settings: Mapping[str, Any], runs: Sequence[Mapping]
) -> Iterator[tuple[str, str]]:
    """Yield names and values on the measurement, in the order that a reviewer expects."""
    ok = [run for run in runs if run["status"] == "ok"]
    dates = sorted(run["started"][:10] for run in ok)
    yield "date", " to ".join(dict.fromkeys([dates[0], dates[-1]])) if dates else UNAVAILABLE
    yield "software", _versions(ok)
    current = tables["runs"][tables["runs"]["current"]]
    for workload in tables["scaling"]["workload"].unique():
        rows = current[current["workload"] == workload]
        columns = {
            "training rows": "train_rows",
            "parameters": "parameters",
            "epochs": "epochs_asked",
        }
        parts = {name: rows[column].dropna() for name, column in columns.items()}
        network = ", ".join(
            f"{name} {span(values)}" for name, values in parts.items() if len(values)
        )
        yield f"case: {workload}", next(iter(rows["command"].dropna()), network)
        if ways := [
            clause for known_by, clause in HOW_TIMED.items() if rows["known_by"].eq(known_by).any()
        ]:
            windows = pd.Series(
                sum(epoch["steps"] for epoch in run["epochs"])
                for run in ok
                if run["workload"] == workload and is_cut(run)
            )
            timed = f"; {span(windows)} steady steps of each run" if len(windows) else ""
            yield f"timed: {workload}", join_words(ways) + timed
    strategies = ", ".join(
        f"{strategy_in_words(strategy)} ({strategy})" for strategy in settings["strategies"]
    )
    yield "parallel strategy", f"{strategies} (data parallel; one rank runs as one process)"
    machines = {
        f"{machine['cpu']}, {with_noun(machine['cores_available'], 'core')} available, "
        f"{size(machine['memory_bytes'])} of memory"
        + "".join(f", {gpu}" for gpu in machine.get("gpus", []))
        for run in ok
        for machine in run["ranks"]["machines"]
    }
    yield "machine", "; ".join(sorted(machines)) or UNAVAILABLE
    hosts = {host for run in ok for host in run["ranks"]["hosts"]}
    yield "hosts", ", ".join(sorted(hosts)) or UNAVAILABLE
    yield "interconnect", _interconnect(ok)
    launchers = {str(run["ranks"]["launcher"]) for run in ok}
    yield "started by", ", ".join(sorted(launchers)) or UNAVAILABLE
    yield "jobs", _jobs(ok)
    ratios = tables["speedup"].dropna(subset=["same_nodes"])
    ratios, how_paired = ratios[ratios["decides"]], UNAVAILABLE
    if len(ratios):
        where = "the same nodes" if ratios["same_nodes"].all() else "other nodes in some pairs"
        apart = ratios["seconds_apart"].median()
        how_paired = f"the two runs of a ratio on {where}, begun {apart:.0f} s apart"
    yield "paired runs", how_paired
    rule = settings["rules"]
    stated = "; ".join(rule[key] for key in ("source", "date") if key in rule)
    yield "rule", f"{rule['name']}: {rule_in_words(rule)}{f' ({stated})' if stated else ''}"
    yield (
        "method",
        "A speed-up is a ratio of paired runs, which are of one repeat and session. Its interval "
        f"of {in_percent(level(tables))} is by signed ranks, and of five pairs Student's. A whole "
        "run is from its request to its result; its parts are timed apart.",
    )


def _versions(ok: Sequence[Mapping]) -> str:
    """Return the versions in all runs of the packages of `_VERSIONS`."""
    versions: dict[str, set[str]] = {}
    for run in ok:
        for name in _VERSIONS:
            if run["versions"].get(name, packages.ABSENT) != packages.ABSENT:
                versions.setdefault(name, set()).add(run["versions"][name])
    return (
        ", ".join(f"{name} {' and '.join(sorted(numbers))}" for name, numbers in versions.items())
        or UNAVAILABLE
    )


def _interconnect(ok: Sequence[Mapping]) -> str:
    """Return interface, transport, rate and latency of the links between nodes."""
    across = [run for run in ok if run["layout"].nodes > 1]
    if not across:
        return "one node: ranks exchange through its memory or loopback interface"
    described = sorted({f"interface {run['ranks']['interface']}" for run in across})
    transports = [transport for run in across if (transport := run["ranks"].get("transport"))]
    names = {"/".join([parts["pml"], *(parts["btl"] or ())]) for parts in transports}
    described += sorted(f"transport {name}" for name in names) or [f"transport {UNAVAILABLE}"]
    links = [run["link"] for run in across if run["link"]]
    for key, name, text in (
        ("mbit_per_second", "rate", "{:.0f} Mbit/s"),
        ("latency_ms", "latency", "{:.3g} ms"),
    ):
        known = [link[key] for link in links if link[key] is not None]
        value = text.format(pd.Series(known).median()) if known else UNAVAILABLE
        described.append(f"{name} {value}")
    if any(link.get("measured_by") for link in links):
        described[-1] += " (of one TCP connection between two nodes, once a job)"
    return ", ".join(described)


def _jobs(ok: Sequence[Mapping]) -> str:
    """Return the jobs of SLURM, its version, and whether they had their nodes to themselves."""
    jobs = [job for run in ok if (job := run.get("job"))]
    if not jobs:
        return "none: the runs were not in a job of SLURM, or are from older files"
    numbers = sorted({str(job["number"]) for job in jobs}, key=lambda number: (len(number), number))
    versions = sorted({job["slurm"] for job in jobs} - {None})
    exclusive = {job["exclusive"] for job in jobs}
    nodes = "exclusive nodes" if exclusive == {True} else "nodes that others could use"
    if None in exclusive:
        nodes = f"exclusive nodes: {UNAVAILABLE}"
    return ", ".join([*numbers, *(f"SLURM {version}" for version in versions), nodes])
