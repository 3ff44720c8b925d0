"""The paragraph on a series of a scaling study, the largest size that passes its rule, and words.

`statement.txt` is the template of the paragraph. A row is a row of the table `scaling` as a
dictionary (`escala.analysis.tables.records`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from escala.analysis.comparable import CONFIGURATION
from escala.analysis.statistics import MATCHES_FOR_INTERVAL
from escala.analysis.tables import records
from escala.core.readable import UNAVAILABLE, number, with_interval, with_noun
from escala.core.readable import in_words as number_in_words
from escala.experiment.runs import layout_in_words, strategy_in_words
from escala.experiment.scaling import BASELINE, WEAK
from escala.report.findings.words import Tables, join_words
from escala.report.tables.scaling import PASSES
from escala.report.tables.views import unit

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


def rule_in_words(rule: Mapping, unit: str = "epoch") -> str:
    """Return in words what a rule requires; `unit` is `escala.report.tables.views.unit`."""
    times = "whole runs" if "run" in (rule["time"], unit) else "training steps"
    needed = rule["efficiency"]
    if rule["against"] == BASELINE:
        return (
            f"an efficiency of {times} of {needed:.0%} over the baseline, {2 * needed:g} times the "
            f"speed with twice the cores and {4 * needed:g} times with four times"
        )
    return (
        f"an efficiency of {times} of {needed:.0%} of each doubling, {2 * needed:g} times the speed"
    )


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
        margin=settings["margin"],
        unit_name=settings["unit"]["name"],
        hours=hours,
        units=lambda row: units(row, settings),
    )
    return " ".join(text.split())
