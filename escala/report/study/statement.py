"""The paragraph on a series of a scaling study, and the largest size that passes its rule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from escala.core.readable import counted
from escala.experiment.scaling import WEAK
from escala.experiment.spoken import layout_in_words, strategy_in_words
from escala.record.comparable import CONFIGURATION
from escala.report.findings.words import Tables, a, joined
from escala.report.study.cells import UNKNOWN, in_words, interval, number
from escala.report.tables.views import unit


def largest_passing(rows: pd.DataFrame) -> pd.Series | None:
    """Return the largest size up to which all doublings pass; None if no time is known.

    The baseline has nothing to pass. A doubling whose efficiency is unknown does not pass.
    """
    measured = rows[rows["kind"] != UNKNOWN]
    if measured.empty:
        return None
    passed = measured["passes"].fillna(False).astype(bool).to_numpy().copy()
    passed[0] = True
    return measured[np.logical_and.accumulate(passed)].iloc[-1]


def statement(rows: pd.DataFrame, tables: Tables, settings: Mapping) -> str:
    """Return the paragraph on a series to paste into a proposal."""
    measured, best = rows[rows["kind"] != UNKNOWN], largest_passing(rows)
    first = rows.iloc[0]
    what = (
        f"{first['scaling'].capitalize()} scaling of training {first['workload']} on "
        f"{first['dataset']} with {strategy_in_words(first['study_strategy'])}"
    )
    if best is None:
        return f"{what} was not measured: no run ended ok."
    base, last = measured.iloc[0], measured.iloc[-1]
    least, most = int(measured["runs"].min()), int(measured["runs"].max())
    runs = counted(least, "run") if least == most else f"{least} to {most} runs"
    times = [f"{interval(row, 'seconds_per_epoch')} s on {in_words(row)}" for row in (base, last)]
    several = len(measured) > 1
    told = [
        f"{what} was measured on {joined(map(in_words, measured.to_dict('records')))}, "
        f"with {runs} of each, which took turns{_where(rows, tables)}.",
        f"Training steps of {a(unit(tables, first['workload']))} take {times[0]}, the baseline"
        + (f", and {times[1]}." if several else "."),
    ]
    if several:
        told += [*_gains(measured, last, settings), _rule(measured, best, settings)]
    return " ".join([*told, _asked(best, settings)])


def _where(rows: pd.DataFrame, tables: Tables) -> str:
    """Return a clause on the processors of the nodes and the months of the runs."""
    runs = tables["runs"].merge(rows[list(CONFIGURATION)])
    runs = runs[runs["status"] == "ok"]
    kinds = runs[["cpu", "cores_available"]].drop_duplicates()
    nodes = [f"{row.cpu} with {counted(row.cores_available, 'core')}" for row in kinds.itertuples()]
    months = dict.fromkeys([runs["started"].min()[:7], runs["started"].max()[:7]])
    return f", on {joined(nodes)} a node, {' to '.join(months)}"


def _gains(measured: pd.DataFrame, last: pd.Series, settings: Mapping) -> Iterator[str]:
    """Yield a sentence on what the largest size gains over the baseline."""
    if pd.isna(last["speedup"]):
        yield f"The runs on {in_words(last)} cannot be compared with the baseline."
        return
    is_weak = settings["kind"] == WEAK
    counting = ", counted by rows per second, as an epoch has rows for each process" * is_weak
    yield (
        f"This is a speed-up of {interval(last, 'speedup')} with "
        f"{last['cores'] / measured.iloc[0]['cores']:g} times the cores{counting}, and "
        f"{'a weak' if is_weak else 'an'} efficiency of {interval(last, 'efficiency')}."
    )


def _rule(measured: pd.DataFrame, best: pd.Series, settings: Mapping) -> str:
    """Return a sentence on the largest size that passes the rule."""
    rule = settings["rules"]
    needed = rule["efficiency_of_doubling"]
    asks = (
        f"The rule of {rule['name']} asks for an efficiency of {needed:.0%} of each doubling, "
        f"{2 * needed:g} times the speed"
    )
    failed = measured[measured["passes"].eq(False)]
    if failed.empty and best["layout"] == measured["layout"].iloc[-1]:
        return f"{asks}: all pass, up to {in_words(best)}, the largest size measured."
    if failed.empty:
        return f"{asks}: not every doubling is known, and the last that passes is {in_words(best)}."
    worst = failed.iloc[0]
    return (
        f"{asks}: from {layout_in_words(worst['doubled_from'])} to {in_words(worst)} it is "
        f"{interval(worst, 'doubling_efficiency')}, so the largest size that passes is "
        f"{in_words(best)}."
    )


def _asked(best: pd.Series, settings: Mapping) -> str:
    """Return a sentence on the compute time of the planned runs on the size that passes."""
    if pd.isna(best["wall_seconds"]):
        return "The time of a whole run is unavailable."
    set_up = best["set_up_seconds"]
    before = (
        "" if pd.isna(set_up) else f", of which {number(set_up)} s are before the training steps"
    )
    planned, margin = settings["planned_runs"], settings["margin"]
    return (
        f"A whole run on {in_words(best)} takes {number(best['wall_seconds'])} s{before}, which "
        f"is {number(best['node_hours'])} node-hours and {number(best['core_hours'])} "
        "core-hours; "
        f"{counted(planned, 'such run')} with a margin of {margin:.0%} "
        f"{'is' if planned == 1 else 'are'} {number(units(best, settings))} "
        f"{settings['unit']['name']}."
    )


def units(row: Mapping, settings: Mapping) -> float:
    """Return the compute time of the planned runs with their margin, in the unit of the site."""
    asked = settings["unit"]
    hours = row[f"{asked['hours_of']}_hours"] * asked["per_hour"]
    return hours * settings["planned_runs"] * (1 + settings["margin"])
