"""Compose the text of the document of a scaling study, for all of its forms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from escala.analysis.comparable import CONFIGURATION
from escala.core.readable import counted, size
from escala.experiment.runs import NATIVE, layout_in_words, strategy_in_words
from escala.experiment.scaling import BASELINE, RUN, WEAK
from escala.report.findings.words import Tables, joined
from escala.report.study.cells import UNKNOWN, in_words, interval, layout, number, with_ends
from escala.report.study.provenance import provenance
from escala.report.study.statement import EMULATED, judged, statement, units
from escala.report.tables.views import unit

#: Counts of nodes that sites ask for at least, the largest fraction of a run that its start may
#: take, and the seconds of the shortest run: CSC asks for "a few minutes".
FEWEST_NODE_COUNTS, MOST_SET_UP, FEW_MINUTES = 3, 0.5, 180
#: Scores of a workload that the document has.
_MOST_SCORES = 3
SERIES = ["dataset", "workload", "variant", "study_strategy", "study_network"]


class Series(NamedTuple):
    """The layouts of one strategy, variant and network.

    Attributes
    ----------
    heading : its name.
    statement : a paragraph to paste.
    tables : tables of text, by their captions.
    notes : what is unavailable and why, and what weakens the series.
    """

    heading: str
    statement: str
    tables: dict[str, pd.DataFrame]
    notes: list[str]


class Study(NamedTuple):
    """The document.

    Attributes
    ----------
    kind : what the document is, one sentence.
    about : names and values on how it was measured.
    script : the job script, None if there is none.
    """

    title: str
    kind: str
    series: list[Series]
    about: list[tuple[str, str]]
    script: str | None


def study(
    tables: Tables,
    title: str,
    settings: Mapping[str, Any],
    runs: Sequence[Mapping],
    script: str | None = None,
) -> Study:
    """Return what the document says.

    Parameters
    ----------
    tables : those of `escala.report.tables`.
    settings : the key `scaling` of the experiment, with all defaults.
    runs : the contents of the `run.json` files of its timing runs.
    script : the job script in which they ran, if there is one.
    """
    groups = tables["scaling"].groupby(SERIES, sort=False)
    series = [_series(rows, tables, settings) for _, rows in groups]
    where = f" on {EMULATED}" if tables["scaling"]["emulated"].eq(True).any() else ""
    kind = f"Scaling study, of measured runs{where}."
    return Study(title, kind, series, list(provenance(tables, settings, runs)), script)


def _series(rows: pd.DataFrame, tables: Tables, settings: Mapping) -> Series:
    first = rows.iloc[0]
    network = "" if first["study_network"] == NATIVE else f", network {first['study_network']}"
    heading = (
        f"{first['scaling'].capitalize()} scaling of {first['workload']} on {first['dataset']}: "
        f"{strategy_in_words(first['study_strategy'])}, variant {first['variant']}{network}"
    )
    has_gpus = rows["gpus"].fillna(0).max() > 0
    return Series(
        heading,
        statement(rows, tables, settings),
        {
            "Time and efficiency": _time_table(rows, tables, settings),
            "What a run takes": _cost_table(rows, settings, has_gpus),
            "Scores, and predicted times": _further_table(rows, tables),
        },
        list(_notes(rows, tables)),
    )


def _time_table(rows: pd.DataFrame, tables: Tables, settings: Mapping) -> pd.DataFrame:
    rule = settings["rules"]
    a_run = unit(tables, rows.iloc[0]["workload"])
    is_weak = settings["kind"] == WEAK
    against = "over the baseline" if rule["against"] == BASELINE else "of the doubling"
    judged = f"efficiency of {'whole runs' if rule['time'] == RUN else 'steps'} {against}"
    return pd.DataFrame(
        {
            "layout": layout(row),
            "nodes": str(row["nodes"]),
            "ranks": str(row["ranks"]),
            "cores": number(row["cores"], ".0f"),
            f"s per {a_run}": interval(row, "seconds_per_epoch"),
            "rows/s": interval(row, "samples_per_second"),
            "speed-up": interval(row, "speedup"),
            ("weak " if is_weak else "") + "efficiency": interval(row, "efficiency"),
            "speed-up of whole runs": interval(row, "whole_speedup"),
            judged: "–" if row["layout"] == row["baseline"] else interval(row, "rule_efficiency"),
            f"≥ {rule['efficiency']:.0%}": _verdict(row),
        }
        for row in rows.to_dict("records")
    )


def _verdict(row: Mapping) -> str:
    if row["layout"] == row["baseline"]:
        return "baseline"
    if row["shares_cores"]:
        return "shares cores"
    return "not judged" if pd.isna(row["passes"]) else row["passes"]


def _cost_table(rows: pd.DataFrame, settings: Mapping, has_gpus: bool) -> pd.DataFrame:
    planned, margin = settings["planned_runs"], settings["margin"]
    unit_name = settings["unit"]["name"]
    found = []
    for row in rows.to_dict("records"):
        memory, sent = row["node_memory_bytes"], row["sent_bytes_per_step"]
        one_node = row["nodes"] == 1
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
            "memory of a node": UNKNOWN if pd.isna(memory) else size(memory),
            "sent by a node in a step": "–"
            if one_node
            else UNKNOWN
            if pd.isna(sent)
            else size(sent),
            "node-hours": number(row["node_hours"]),
            "core-hours": number(row["core_hours"]),
            "use of cores (%)": number(row["core_percent"]),
        }
        if has_gpus:
            columns["GPU-hours"] = number(row["gpu_hours"])
            columns["use of GPUs (%)"] = number(row["gpu_percent"])
        asked = f"{planned} run{'s' * (planned > 1)} + {margin:.0%} ({unit_name})"
        found.append(columns | {asked: number(units(row, settings))})
    return pd.DataFrame(found)


def _further_table(rows: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    a_run = unit(tables, rows.iloc[0]["workload"])
    scores = _scores(rows, tables)
    found = []
    for row in rows.to_dict("records"):
        measured, predicted = row["seconds_per_epoch"], row["predicted_seconds_per_epoch"]
        own = scores[
            (scores[list(CONFIGURATION)] == [row[key] for key in CONFIGURATION]).all(axis=1)
        ]
        values = {each["score"]: interval(each, "mean") for each in own.to_dict("records")}
        found.append(
            {
                "layout": layout(row),
                "rows in a step": number(row["global_batch"], ".0f"),
                **{name: values.get(name, UNKNOWN) for name in scores["score"].unique()},
                f"predicted s per {a_run}": _predicted(row),
                "predicted / measured": number(predicted / measured),
            }
        )
    return pd.DataFrame(found)


def _scores(rows: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    """Return the means of the first scores of the layouts, one row for each and score."""
    scores = tables["mean_scores"].merge(rows[list(CONFIGURATION)])
    scores = scores[scores["score"].isin(scores["score"].unique()[:_MOST_SCORES])]
    return scores.drop_duplicates([*CONFIGURATION, "score"])


def _predicted(row: Mapping) -> str:
    names = [f"predicted{end}_seconds_per_epoch" for end in ("", "_low", "_high")]
    return with_ends(*(row[name] for name in names))


def _notes(rows: pd.DataFrame, tables: Tables) -> Iterator[str]:
    """Yield what is unavailable and why, and what weakens the series."""
    measured = rows[(rows["kind"] != UNKNOWN) & ~rows["shares_cores"].astype(bool)]
    counts = sorted(measured["nodes"].unique())
    if len(counts) < FEWEST_NODE_COUNTS:
        listed = joined(map(str, counts)) or "none"
        yield f"Sites ask for {FEWEST_NODE_COUNTS} counts of nodes at least; measured: {listed}."
    start = measured["set_up_seconds"].fillna(0) + measured["unaccounted_seconds"]
    for row in measured[start > MOST_SET_UP * measured["wall_seconds"]].to_dict("records"):
        yield (
            f"Set-up and what is not accounted for are more than half of a whole run on "
            f"{in_words(row)}. Sites ask for runs in which the start does not dominate: train for "
            "more epochs."
        )
    walls = measured.dropna(subset=["wall_seconds"]).sort_values("wall_seconds")
    if len(walls) and (least := walls.iloc[0])["wall_seconds"] < FEW_MINUTES:
        yield (
            f"The shortest whole run, on {in_words(least)}, takes {number(least['wall_seconds'])} "
            "s. Sites ask for a few minutes at least: train for more epochs."
        )
    configurations = tables["configurations"].merge(rows[list(CONFIGURATION)])
    runs = tables["runs"].merge(rows[list(CONFIGURATION)])
    if disturbed := int((runs["disturbed"].eq(True) & runs["current"]).sum()):
        yield f"Other work disturbed {counted(disturbed, 'run')} of {int(runs['current'].sum())}."
    for row in rows[rows["shares_cores"].astype(bool)].to_dict("records"):
        yield (
            f"The cores of {in_words(row)} were shared: these times say nothing about scaling, and "
            "are left out of the statement and the figure."
        )
    for row in configurations[configurations["kind"] == UNKNOWN].itertuples():
        yield f"No time of {layout_in_words(row.layout, row.strategy)}: {row.reason}."
    for row in rows[rows["gain_reason"].notna() & ~rows["shares_cores"].astype(bool)].itertuples():
        which = layout_in_words(row.layout, row.strategy)
        yield f"No comparison of {which} with each smaller layout: {row.gain_reason}."
    for row in rows[rows["rule_reason"].notna()].to_dict("records"):
        yield f"Not judged by the rule: {in_words(row)}, since {row['rule_reason']}."
    if rows["provenance"].eq("simulated").any():
        yield "The data are simulated. Times hold for real data of the same shape, scores do not."
    batches = rows["global_batch"].dropna().unique()
    if len(batches) > 1:
        yield "The rows of a step grow with the processes. Compare the scores of layouts."
    yield from _beyond(rows, tables)
    yield from _lacking(rows, tables)


def _beyond(rows: pd.DataFrame, tables: Tables) -> Iterator[str]:
    """Yield what a law that is fitted to the series expects of twice its largest size."""
    last = judged(rows).tail(1)
    laws = tables["amdahl"].merge(last[list(CONFIGURATION)])
    laws = laws[(laws["reference"] == 1) & (laws["law_kind"] == "estimated")]
    laws = laws[laws["extrapolated_times"] > laws["cores"] / laws["reference_cores"]]
    for law in laws.to_dict("records"):
        yield (
            f"Beyond {in_words(last.iloc[0])} nothing was measured. By the universal scalability "
            f"law, fitted to these times, {law['extrapolated_times']:g} times the cores of "
            f"{layout_in_words(law['reference_layout'])} "
            f"are {number(law['extrapolated_speedup'])} times as fast: an extrapolation."
        )


def _lacking(rows: pd.DataFrame, tables: Tables) -> Iterator[str]:
    """Yield what would have to be measured or computed for the quantities that are unavailable."""
    names = list(CONFIGURATION)
    lacking = rows[rows["node_memory_bytes"].isna()][names]
    sampled = tables["resources"].query("status == 'ok'")
    short = lacking.merge(sampled[names].drop_duplicates())
    for row in short.itertuples():
        yield (
            f"An epoch of {layout_in_words(row.layout, row.strategy)} is too short for samples of "
            "its memory: write resources: {enabled: true, seconds: 0.05}, or train on more rows."
        )
    if len(lacking) > len(short):
        yield (
            "Memory and bytes that are unavailable need runs of the probe resources: write "
            "resources: {enabled: true}."
        )
    if rows["predicted_seconds_per_epoch"].isna().all():
        yield "There are no predictions: escala predict makes them."
    if _scores(rows, tables).empty:
        yield "The runs have no scores."
