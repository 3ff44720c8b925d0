"""The paragraph on a series of a scaling study, and the largest size that passes its rule."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from escala.analysis.comparable import CONFIGURATION
from escala.analysis.statistics import VALUES_FOR_INTERVAL
from escala.core.readable import counted
from escala.core.readable import in_words as in_words_of
from escala.experiment.runs import strategy_in_words
from escala.experiment.scaling import BASELINE, RUN, WEAK
from escala.report.findings.words import Tables, a, joined
from escala.report.study.cells import UNKNOWN, in_words, interval, number
from escala.report.tables.scaling import PASSES
from escala.report.tables.views import unit

#: How an emulated cluster is named.
EMULATED = "an emulated cluster, whose nodes are parts of one machine"


def judged(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the sizes of a series that a statement may tell of: the baseline and those with pairs.

    They do not share cores, and have as many paired runs with the baseline as an interval needs.
    """
    alone = rows[(rows["kind"] != UNKNOWN) & ~rows["shares_cores"].fillna(False).astype(bool)]
    has_pairs = alone["matches"].fillna(0) >= VALUES_FOR_INTERVAL
    return alone[has_pairs | (alone["layout"] == alone["baseline"])]


def largest_passing(rows: pd.DataFrame) -> pd.Series | None:
    """Return the largest size up to which all pass; None without the baseline.

    The baseline has nothing to pass. A size that is not decided, or not judged, does not pass.
    """
    sizes = rows[rows["baseline"].notna()]
    if sizes.empty:
        return None
    passed = sizes["passes"].eq(PASSES).to_numpy(dtype=bool, na_value=False).copy()
    passed[0] = True
    return sizes[np.logical_and.accumulate(passed)].iloc[-1]


def statement(rows: pd.DataFrame, tables: Tables, settings: Mapping) -> str:
    """Return the paragraph on a series to paste into a proposal, or why there is none."""
    sizes, first = judged(rows), rows.iloc[0]
    where = f" on {EMULATED}," if rows["emulated"].eq(True).any() else ""
    what = (
        f"{first['scaling'].capitalize()} scaling of training {first['workload']} on "
        f"{first['dataset']} with {strategy_in_words(first['study_strategy'])}"
    )
    if len(sizes) < 2:
        most = rows["matches"].fillna(0).max()
        return (
            f"{what}{where} has no statement yet: it needs two sizes that share no cores, with "
            f"{in_words_of(VALUES_FOR_INTERVAL)} paired runs, and there are {most:.0f}."
        )
    base, last = sizes.iloc[0], sizes.iloc[-1]
    pairs = sizes["matches"].dropna()
    least, most = int(pairs.min()), int(pairs.max())
    runs = counted(least, "paired run") if least == most else f"{least} to {most} paired runs"
    times = [f"{interval(row, 'seconds_per_epoch')} s on {in_words(row)}" for row in (base, last)]
    told = [
        f"{what} was measured{where} with {joined(map(in_words, sizes.to_dict('records')))}, with "
        f"{runs} of each{_where(sizes, tables)}.",
        f"Training steps of {a(unit(tables, first['workload']))} take {times[0]}, the baseline, "
        f"and {times[1]}.",
        *_gains(sizes, last, settings),
    ]
    if settings["kind"] == WEAK and settings["rules"]["same_input"]:
        told.append(
            f"The rule of {settings['rules']['name']} asks for the same input for all sizes, so it "
            "does not judge weak scaling."
        )
        return " ".join([*told, _asked(last, settings)])
    best = largest_passing(rows)
    return " ".join([*told, *_rule(sizes, best, settings), _asked(best, settings)])


def _where(rows: pd.DataFrame, tables: Tables) -> str:
    """Return a clause on the processors of the nodes and the months of the runs."""
    runs = tables["runs"].merge(rows[list(CONFIGURATION)])
    runs = runs[runs["status"] == "ok"]
    kinds = runs[["cpu", "cores_available"]].drop_duplicates()
    nodes = [f"{row.cpu} with {counted(row.cores_available, 'core')}" for row in kinds.itertuples()]
    months = dict.fromkeys([runs["started"].min()[:7], runs["started"].max()[:7]])
    return f", on {joined(nodes)} a node, {' to '.join(months)}"


def _gains(sizes: pd.DataFrame, last: pd.Series, settings: Mapping) -> Iterator[str]:
    """Yield sentences on what the largest size gains over the baseline."""
    if pd.isna(last["speedup"]):
        yield f"The runs on {in_words(last)} cannot be compared with the baseline."
        return
    is_weak = settings["kind"] == WEAK
    counting = ", counted by rows per second, as an epoch has rows for each process" * is_weak
    yield (
        f"This is a speed-up of {interval(last, 'speedup')} with "
        f"{last['cores'] / sizes.iloc[0]['cores']:g} times the cores{counting}, and "
        f"{'a weak' if is_weak else 'an'} efficiency of {interval(last, 'efficiency')}."
    )
    if not pd.isna(last["whole_speedup"]):
        yield f"Of whole runs, the speed-up is {interval(last, 'whole_speedup')}."


def rule_in_words(rule: Mapping) -> str:
    """Return what a rule asks for."""
    times = "whole runs" if rule["time"] == RUN else "training steps"
    needed = rule["efficiency"]
    if rule["against"] == BASELINE:
        return (
            f"an efficiency of {times} of {needed:.0%} over the baseline, {2 * needed:g} times the "
            f"speed with twice the cores and {4 * needed:g} times with four times"
        )
    return (
        f"an efficiency of {times} of {needed:.0%} of each doubling, {2 * needed:g} times the speed"
    )


def _rule(sizes: pd.DataFrame, best: pd.Series, settings: Mapping) -> Iterator[str]:
    """Yield sentences on the verdict of each size by the rule, and on the largest that passes."""
    rule = settings["rules"]
    yield f"The rule of {rule['name']} asks for {rule_in_words(rule)}."
    verdicts = [
        f"{in_words(row)}: {row['passes']}, {interval(row, 'rule_efficiency')}"
        if not pd.isna(row["passes"])
        else f"{in_words(row)}: not judged, since {row['rule_reason']}"
        for row in sizes.iloc[1:].to_dict("records")
    ]
    text = "; ".join(verdicts)
    yield f"{text[0].upper()}{text[1:]}."
    if best["layout"] == best["baseline"]:
        yield f"No size is decided to pass beyond the baseline, {in_words(best)}."
    else:
        yield f"The largest size up to which all pass is {in_words(best)}."


def _asked(best: pd.Series, settings: Mapping) -> str:
    """Return a sentence on the compute time of the planned runs on the size that passes."""
    if pd.isna(best["wall_seconds"]):
        return "The time of a whole run is unavailable."
    set_up = best["set_up_seconds"]
    before = (
        "" if pd.isna(set_up) else f", of which {number(set_up)} s are before the training steps"
    )
    planned, margin = settings["planned_runs"], settings["margin"]
    counted_of = ["node", "core", *(["GPU"] if best["gpu_hours"] else [])]
    hours = [f"{number(best[f'{each.lower()}_hours'])} {each}-hours" for each in counted_of]
    return (
        f"A whole run on {in_words(best)} takes {number(best['wall_seconds'])} s{before}, which "
        f"is {joined(hours)}; {counted(planned, 'such run')} with a margin of {margin:.0%} "
        f"{'is' if planned == 1 else 'are'} {number(units(best, settings))} "
        f"{settings['unit']['name']}."
    )


def units(row: Mapping, settings: Mapping) -> float:
    """Return the compute time of the planned runs with their margin, in the unit of the site.

    NaN if nothing of what the site counts was used, such as GPUs.
    """
    asked = settings["unit"]
    hours = (row[f"{asked['hours_of']}_hours"] or math.nan) * asked["per_hour"]
    return hours * settings["planned_runs"] * (1 + settings["margin"])
