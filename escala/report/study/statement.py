"""The paragraph on a series of a scaling study, what its site asks for, and words.

`statement.txt` is the template of the paragraph. A row is a row of the table `scaling` as a
dictionary (`escala.analysis.tables.records`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from escala.analysis.comparable import CONFIGURATION, SAME_ROWS
from escala.analysis.statistics import MATCHES_FOR_INTERVAL
from escala.analysis.tables import records
from escala.core.files import read_yaml
from escala.core.readable import UNAVAILABLE, number, with_interval, with_noun
from escala.core.readable import in_words as number_in_words
from escala.experiment.runs import layout_in_words, strategy_in_words
from escala.experiment.scaling import BASELINE, WEAK
from escala.experiment.schema import SCHEMA
from escala.report.findings.words import Tables, join_words
from escala.report.tables.scaling import PASSES
from escala.report.tables.views import unit

#: Fields of the document that Escala fills: what they are, and the key with which it does.
_FILLED = {
    "bytes": ("Bytes that the runs read from storage and write.", "resources: {enabled: true}"),
    "memory": ("Memory of a node.", "resources: {enabled: true}"),
    "gpu_use": ("Use of the GPUs.", "resources: {enabled: true}"),
    "plan": ("Compute time by period and work package.", "scaling.plan"),
}
#: Words for an emulated cluster.
EMULATED = "an emulated cluster, whose nodes are parts of one machine"


def layout(row: Mapping) -> str:
    """Return the layout of a row, with its strategy if that differs from the series."""
    of_series = row["strategy"] == row["study_strategy"]
    return row["layout"] if of_series else f"{row['layout']} ({row['strategy']})"


def in_words(row: Mapping) -> str:
    """Return in words what `layout` returns."""
    text = layout_in_words(row["layout"], row["strategy"])
    if row["strategy"] == row["study_strategy"] or text == layout_in_words("1x1"):
        return text
    return f"{text} ({strategy_in_words(row['strategy'])})"


def case_in_words(row: Mapping) -> str:
    """Return the workload of a row and its dataset, which a program may lack."""
    return row["workload"] + f" on {row['dataset']}" * (row["dataset"] != "none")


def interval(row: Mapping, name: str, unit: str = "") -> str:
    """Return a column of a row with its interval."""
    return with_interval(*(row[f"{name}{end}{unit}"] for end in ("", "_low", "_high")))


def units(row: Mapping, settings: Mapping) -> float:
    """Return the compute time of the planned runs with their margin, in the unit of the site.

    The time is NaN if the site counts GPUs, for example, and the runs used none.
    """
    unit = settings["unit"]
    hours = (row[f"{unit['hours_of']}_hours"] or math.nan) * unit["per_hour"]
    return hours * settings["planned_runs"] * (1 + settings["margin"])


def sizes_to_state(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the sizes of a series for its statement: the baseline, and sizes with an interval.

    Processes of these sizes do not share cores. Every size except the baseline has enough paired
    runs with the baseline for an interval.
    """
    alone = rows[(rows["kind"] != UNAVAILABLE) & ~rows["shares_cores"].fillna(False).astype(bool)]
    has_pairs = alone["matches"].fillna(0) >= MATCHES_FOR_INTERVAL
    return alone[has_pairs | (alone["layout"] == alone["baseline"])]


def largest_passing(rows: pd.DataFrame) -> dict | None:
    """Return the row of the largest size up to which all sizes pass; None without a baseline.

    The baseline always passes. An undecided size does not pass, and neither does a size without
    judgement.
    """
    sizes = rows[rows["baseline"].notna()]
    if sizes.empty:
        return None
    passed = sizes["passes"].eq(PASSES).to_numpy(dtype=bool, na_value=False).copy()
    passed[0] = True
    return records(sizes[np.logical_and.accumulate(passed)])[-1]


def states_number(rule: Mapping) -> bool:
    """Return whether a rule has a number that sizes must reach."""
    return bool(rule.get("efficiency") or rule.get("tiers"))


def is_judged(settings: Mapping) -> bool:
    """Return whether the rule judges sizes: it has a number, and is one of this kind of scaling."""
    rule = settings["rules"]
    return states_number(rule) and not (settings["kind"] == WEAK and rule["same_input"])


def rule_in_words(rule: Mapping, unit: str = "epoch") -> str:
    """Return in words what a rule requires; `unit` is `escala.report.tables.views.unit`."""
    times = "whole runs" if "run" in (rule["time"], unit) else "training steps"
    if not states_number(rule):
        return f"a speed-up of {times}, and no number to reach"
    if tiers := rule.get("tiers"):
        listed = join_words(f"{tier['speedup']:g} up to {tier['cores']} cores" for tier in tiers)
        return f"a speed-up of {times} by each doubling of the cores of {listed}"
    needed = rule["efficiency"]
    if rule["against"] == BASELINE:
        return (
            f"an efficiency of {times} of {needed:.0%} over the baseline, {2 * needed:g} times the "
            f"speed with twice the cores and {4 * needed:g} times with four times"
        )
    return (
        f"an efficiency of {times} of {needed:.0%} of each doubling, {2 * needed:g} times the speed"
    )


def other_work(measured: pd.DataFrame) -> str | None:
    """Return in words the rows of an epoch, if sizes of strong scaling train on other rows.

    Parameters
    ----------
    measured : rows of the table `scaling` of one series, with times.
    """
    rows_of_epoch = (measured["samples_per_second"] * measured["seconds_per_epoch"]).dropna()
    is_weak = measured["scaling"].eq(WEAK).any()
    if is_weak or not rows_of_epoch.max() > (1 + SAME_ROWS) * rows_of_epoch.min():
        return None
    least, most = (
        f"{in_words(records(measured.loc[[place]])[0])} {rows_of_epoch[place]:.0f}"
        for place in (rows_of_epoch.idxmin(), rows_of_epoch.idxmax())
    )
    return f"the rows of an epoch are on {least}, and on {most}"


def conditions(rows: pd.DataFrame, settings: Mapping) -> pd.DataFrame:
    """Return what the site asks of the runs of a series, what they are, and whether it holds."""
    rule, lines = settings["rules"], []
    measured = rows[(rows["kind"] != UNAVAILABLE) & ~rows["shares_cores"].astype(bool)]
    walls = measured["wall_seconds"]

    def add(condition: str, value: str, holds: bool | None) -> None:
        word = UNAVAILABLE if holds is None else "yes" if holds else "no"
        lines.append({"condition": condition, "here": value, "holds": word})

    if least := rule.get("node_counts"):
        counts = sorted(measured["nodes"].unique())
        value = join_words(map(str, counts)) or "none"
        add(f"{least} counts of nodes at least", value, len(counts) >= least)
    if rule["same_input"]:
        is_weak, other = settings["kind"] == WEAK, other_work(measured)
        value = "the rows of an epoch grow with the processes" if is_weak else other or "the same"
        add("the same input for all sizes", value, not (is_weak or other))
    more_epochs = ": train for more epochs"
    if minutes := rule.get("shortest_minutes"):
        condition, value, holds = f"{minutes:g} minutes for the shortest run", UNAVAILABLE, None
        if walls.notna().any():
            least = records(measured.loc[[walls.idxmin()]])[0]
            holds = least["wall_seconds"] >= 60 * minutes
            value = f"{number(least['wall_seconds'])} s on {in_words(least)}"
        add(condition, value + more_epochs * (holds is False), holds)
    if most := rule.get("start_at_most"):
        shares = (measured["set_up_seconds"].fillna(0) + measured["unaccounted_seconds"]) / walls
        condition, value, holds = "a start that does not dominate a run", UNAVAILABLE, None
        if shares.notna().any():
            longest, holds = records(measured.loc[[shares.idxmax()]])[0], bool(shares.max() <= most)
            value = f"at most {shares.max():.0%}, on {in_words(longest)}"
        add(condition, value + more_epochs * (holds is False), holds)
    return pd.DataFrame(lines)


def missing_fields(
    rows: pd.DataFrame, settings: Mapping, runs: Sequence[Mapping]
) -> Iterator[tuple[str, str]]:
    """Yield what the site asks for and the document lacks: what it is, and the key to fill.

    Parameters
    ----------
    rows : the table `scaling`.
    runs : as in `escala.report.study.content.study`.
    """
    timed = rows[rows["kind"] != UNAVAILABLE]
    known = {
        "bytes": not timed.empty and timed["read_bytes"].notna().all(),
        "memory": not timed.empty and timed["node_memory_bytes"].notna().all(),
        "checkpoints": not timed.empty and timed["checkpoint_bytes"].notna().all(),
        "gpu_use": not timed.empty and (timed["gpus"].eq(0) | timed["gpu_percent"].notna()).all(),
        "plan": bool(settings["plan"]),
        # One process, or one core for each, places no threads.
        "affinity": not any(
            max(map(len, run["ranks"]["cores"][1:]), default=1) > 1 for run in runs
        ),
    }
    if settings["unit"]["hours_of"] == "gpu" and not (timed.empty or timed["gpu_hours"].any()):
        yield "Compute time: the unit counts hours of GPUs, and no run used one.", "scaling.unit"
    properties = read_yaml(SCHEMA)["properties"]["scaling"]["properties"]["proposal"]["properties"]
    for field in settings["rules"].get("fields", ()):
        if field in settings["proposal"] or known.get(field):
            continue
        yield _FILLED.get(field) or (properties[field]["description"], f"scaling.proposal.{field}")


def size_to_ask(rows: pd.DataFrame, settings: Mapping) -> dict | None:
    """Return the row of the size for which compute time is asked; None without one.

    It is the largest that passes, or the largest to state if the rule judges none.
    """
    if is_judged(settings):
        return largest_passing(rows)
    return next(iter(records(sizes_to_state(rows).tail(1))), None)


def plan_table(rows: pd.DataFrame, settings: Mapping) -> pd.DataFrame:
    """Return the compute time of each entry of the plan, and of all; the unit has the margin."""
    sizes = {row["layout"]: row for row in records(rows)}
    usual, lines = size_to_ask(rows, settings), []
    for entry in settings["plan"]:
        row = sizes.get(entry["layout"]) if "layout" in entry else usual
        line = {"period": entry["period"], "work package": entry["package"]}
        line |= {"layout": layout(row) if row else UNAVAILABLE, "runs": entry["runs"]}
        for name in ("node", "GPU"):
            hours = row and row[f"{name.lower()}_hours"]
            line[f"{name}-hours"] = math.nan if hours is None else hours * entry["runs"]
        cost = units(row, settings | {"planned_runs": entry["runs"]}) if row else math.nan
        lines.append(line | {f"{settings['unit']['name']} + {settings['margin']:.0%}": cost})
    table = pd.DataFrame(lines)
    if not table["GPU-hours"].any():
        table = table.drop(columns="GPU-hours")
    sums = table.iloc[:, 3:].sum(skipna=False)
    table.loc[len(table)] = ["all", "", "", *sums]
    amounts = table.iloc[:, 4:].map(number)
    return table.iloc[:, :3].assign(runs=table["runs"].map("{:.0f}".format)).join(amounts)


def statement(rows: pd.DataFrame, tables: Tables, settings: Mapping) -> str:
    """Return the paragraph on a series to paste into a proposal, or why there is none."""
    sizes = sizes_to_state(rows)
    pairs = sorted({int(pairs) for pairs in sizes["matches"].dropna()})
    runs = tables["runs"].merge(sizes[list(CONFIGURATION)])
    runs = runs[runs["status"] == "ok"]
    nodes = runs[["cpu", "cores_available"]].drop_duplicates().itertuples()
    months = sorted(runs["started"].str[:7])

    def hours(row: Mapping) -> list[str]:
        resources = ["node", "core", *(["GPU"] if row["gpu_hours"] else [])]
        return [f"{number(row[f'{name.lower()}_hours'])} {name}-hours" for name in resources]

    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), undefined=StrictUndefined
    )
    environment.filters["in_words"] = in_words
    environment.globals |= {
        function.__name__: function
        for function in (
            case_in_words,
            with_noun,
            interval,
            join_words,
            number,
            rule_in_words,
            strategy_in_words,
        )
    }
    # The text is not escaped here: each format of the document has its escapes.
    text = environment.get_template("statement.txt").render(
        rows=records(rows),
        sizes=records(sizes),
        best=largest_passing(rows),
        size=size_to_ask(rows, settings),
        is_judged=is_judged(settings),
        emulated=EMULATED if rows["emulated"].eq(True).any() else None,
        needed=number_in_words(MATCHES_FOR_INTERVAL),
        most_pairs=f"{rows['matches'].fillna(0).max():.0f}",
        pairs=with_noun(pairs[0], "paired run")
        if len(pairs) == 1
        else f"{min(pairs, default=0)} to {max(pairs, default=0)} paired runs",
        nodes=[f"{node.cpu} with {with_noun(node.cores_available, 'core')}" for node in nodes],
        months=" to ".join(dict.fromkeys([*months[:1], *months[-1:]])),
        unit=unit(tables, rows.iloc[0]["workload"]),
        is_weak=settings["kind"] == WEAK,
        rule=settings["rules"],
        planned_runs=settings["planned_runs"],
        plan=plan_table(rows, settings).iloc[-1, -1] if settings["plan"] else None,
        margin=settings["margin"],
        unit_name=settings["unit"]["name"],
        hours=hours,
        units=lambda row: units(row, settings),
    )
    return " ".join(text.split())
