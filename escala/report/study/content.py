"""What the document of a scaling study says, as text, for all of its forms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from escala.core.readable import counted, size
from escala.experiment.references import NATIVE
from escala.experiment.scaling import WEAK
from escala.record.comparable import CONFIGURATION
from escala.report.findings.words import Tables, a, joined
from escala.report.study.provenance import UNKNOWN, provenance
from escala.report.tables.views import unit

#: Sizes that sites ask for at least, and the largest fraction of a run that its set-up may take.
FEWEST_SIZES, MOST_SET_UP = 3, 0.5
#: Numbers below are shown as such.
_LEAST = 1e-4
_SERIES = ["dataset", "workload", "variant", "study_strategy", "study_network"]


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
    about : names and values on how it was measured.
    script : the job script, None if there is none.
    """

    title: str
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
    groups = tables["scaling"].groupby(_SERIES, sort=False)
    series = [_series(rows, tables, settings) for _, rows in groups]
    return Study(title, series, list(provenance(tables, settings, runs)), script)


def _series(rows: pd.DataFrame, tables: Tables, settings: Mapping) -> Series:
    first = rows.iloc[0]
    network = "" if first["study_network"] == NATIVE else f", network {first['study_network']}"
    heading = (
        f"{first['scaling'].capitalize()} scaling of {first['workload']} on {first['dataset']}: "
        f"{first['study_strategy']}, variant {first['variant']}{network}"
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
        f"{first['dataset']} with {first['study_strategy']}"
    )
    if best is None:
        return f"{what} was not measured: no run ended ok."
    base, last = measured.iloc[0], measured.iloc[-1]
    least, most = int(measured["runs"].min()), int(measured["runs"].max())
    runs = counted(least, "run") if least == most else f"{least} to {most} runs"
    times = [f"{_interval(row, 'seconds_per_epoch')} s on {_layout(row)}" for row in (base, last)]
    several = len(measured) > 1
    told = [
        f"{what} was measured on {joined(measured['layout'])} (nodes x processes of a node), "
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


def _layout(row: Mapping) -> str:
    """Return the layout of a row, with its strategy if that is not the one of the series."""
    own = row["strategy"] == row["study_strategy"]
    return row["layout"] if own else f"{row['layout']} ({row['strategy']})"


def _gains(measured: pd.DataFrame, last: pd.Series, settings: Mapping) -> Iterator[str]:
    """Yield a sentence on what the largest size gains over the baseline."""
    if pd.isna(last["speedup"]):
        yield f"{last['layout']} has no runs that can be compared with the baseline."
        return
    is_weak = settings["kind"] == WEAK
    of_rows = ", counted by rows per second, as an epoch has rows for each process" * is_weak
    yield (
        f"This is a speed-up of {_interval(last, 'speedup')} with "
        f"{last['cores'] / measured.iloc[0]['cores']:g} times the cores{of_rows}, and "
        f"{'a weak' if is_weak else 'an'} efficiency of {_interval(last, 'efficiency')}."
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
        return f"{asks}: all pass, up to {best['layout']}, the largest size measured."
    if failed.empty:
        return f"{asks}: not every doubling is known, and {best['layout']} is the last that passes."
    worst = failed.iloc[0]
    return (
        f"{asks}: from {worst['doubled_from']} to {worst['layout']} it is "
        f"{_interval(worst, 'doubling_efficiency')}, so {best['layout']} is the largest size that "
        "passes."
    )


def _asked(best: pd.Series, settings: Mapping) -> str:
    """Return a sentence on the compute time of the planned runs on the size that passes."""
    if pd.isna(best["wall_seconds"]):
        return "The time of a whole run is unavailable."
    set_up = best["set_up_seconds"]
    of_which = (
        "" if pd.isna(set_up) else f", of which {_number(set_up)} s are before the training steps"
    )
    planned, margin = settings["planned_runs"], settings["margin"]
    return (
        f"A whole run on {best['layout']} takes {_number(best['wall_seconds'])} s{of_which}, which "
        f"is {_number(best['node_hours'])} node-hours and {_number(best['core_hours'])} "
        "core-hours; "
        f"{counted(planned, 'such run')} with a margin of {margin:.0%} "
        f"{'is' if planned == 1 else 'are'} {_number(units(best, settings))} "
        f"{settings['unit']['name']}."
    )


def units(row: Mapping, settings: Mapping) -> float:
    """Return the compute time of the planned runs with their margin, in the unit of the site."""
    asked = settings["unit"]
    hours = row[f"{asked['hours_of']}_hours"] * asked["per_hour"]
    return hours * settings["planned_runs"] * (1 + settings["margin"])


def _time_table(rows: pd.DataFrame, tables: Tables, settings: Mapping) -> pd.DataFrame:
    needed = settings["rules"]["efficiency_of_doubling"]
    a_run = unit(tables, rows.iloc[0]["workload"])
    is_weak = settings["kind"] == WEAK
    return pd.DataFrame(
        {
            "layout": _layout(row),
            "nodes": str(row["nodes"]),
            "ranks": str(row["ranks"]),
            "cores": _number(row["cores"], ".0f"),
            f"s per {a_run}": _interval(row, "seconds_per_epoch"),
            "rows/s": _interval(row, "samples_per_second"),
            "speed-up": _interval(row, "speedup"),
            ("weak " if is_weak else "") + "efficiency": _interval(row, "efficiency"),
            "efficiency of the doubling": _doubling(row),
            f"≥ {needed:.0%}": _verdict(row, needed),
        }
        for row in rows.to_dict("records")
    )


def _doubling(row: Mapping) -> str:
    return "–" if row["layout"] == row["baseline"] else _interval(row, "doubling_efficiency")


def _verdict(row: Mapping, needed: float) -> str:
    """Return whether a doubling passes, and whether its whole interval does."""
    if row["layout"] == row["baseline"]:
        return "baseline"
    if pd.isna(row["passes"]):
        return UNKNOWN
    low, high = row["doubling_efficiency_low"], row["doubling_efficiency_high"]
    is_decided = not pd.isna(low) and (low >= needed or high < needed)
    return ("pass" if row["passes"] else "fail") + ("" if is_decided else ", not certain")


def _cost_table(rows: pd.DataFrame, settings: Mapping, has_gpus: bool) -> pd.DataFrame:
    planned, margin = settings["planned_runs"], settings["margin"]
    unit_name = settings["unit"]["name"]
    found = []
    for row in rows.to_dict("records"):
        known = not pd.isna(row[f"{settings['unit']['hours_of']}_hours"])
        memory, sent = row["node_memory_bytes"], row["sent_bytes_per_step"]
        one_node = row["nodes"] == 1
        columns = {
            "layout": _layout(row),
            "whole run (s)": _number(row["wall_seconds"]),
            "set-up (s)": _number(row["set_up_seconds"]),
            "input (s)": _number(row["loading_seconds"]),
            "checkpoints (s)": _number(row["checkpoint_seconds"]),
            "memory of a node": UNKNOWN if pd.isna(memory) else size(memory),
            "sent by a node in a step": "–"
            if one_node
            else UNKNOWN
            if pd.isna(sent)
            else size(sent),
            "node-hours": _number(row["node_hours"]),
            "core-hours": _number(row["core_hours"]),
        }
        if has_gpus:
            columns["GPU-hours"] = _number(row["gpu_hours"])
            columns["use of GPUs (%)"] = _number(row["gpu_percent"])
        asked = f"{planned} run{'s' * (planned > 1)} + {margin:.0%} ({unit_name})"
        found.append(columns | {asked: _number(units(row, settings)) if known else UNKNOWN})
    return pd.DataFrame(found)


def _further_table(rows: pd.DataFrame, tables: Tables) -> pd.DataFrame:
    a_run = unit(tables, rows.iloc[0]["workload"])
    return pd.DataFrame(
        {
            "layout": _layout(row),
            "rows in a step": _number(row["global_batch"], ".0f"),
            "accuracy": _interval(row, "accuracy"),
            f"predicted s per {a_run}": _predicted(row),
            "predicted / measured": _number(
                row["predicted_seconds_per_epoch"] / row["seconds_per_epoch"]
            ),
        }
        for row in rows.to_dict("records")
    )


def _predicted(row: Mapping) -> str:
    names = [f"predicted{end}_seconds_per_epoch" for end in ("", "_low", "_high")]
    return _with_ends(*(row[name] for name in names))


def _notes(rows: pd.DataFrame, tables: Tables) -> Iterator[str]:
    """Yield what is unavailable and why, and what weakens the series."""
    measured = rows[rows["kind"] != UNKNOWN]
    if len(measured) < FEWEST_SIZES:
        yield f"Sites ask for {FEWEST_SIZES} sizes at least; {len(measured)} were measured."
    if (measured["set_up_seconds"] > MOST_SET_UP * measured["wall_seconds"]).any():
        yield (
            "More than half of a run is its set-up. Sites ask for runs in which it does not "
            "dominate: train for more epochs."
        )
    configurations = tables["configurations"].merge(rows[list(CONFIGURATION)])
    runs = tables["runs"].merge(rows[list(CONFIGURATION)])
    if disturbed := int((runs["disturbed"].eq(True) & runs["current"]).sum()):
        yield f"Other work disturbed {counted(disturbed, 'run')} of {int(runs['current'].sum())}."
    for row in configurations[configurations["oversubscribed"]].itertuples():
        yield f"The processes of {row.layout} shared cores: its times say nothing about scaling."
    for row in configurations[configurations["kind"] == UNKNOWN].itertuples():
        yield f"{row.layout} has no time: {row.reason}."
    if rows["provenance"].eq("simulated").any():
        yield "The data are simulated. Times hold for real data of the same shape, scores do not."
    batches = rows["global_batch"].dropna().unique()
    if len(batches) > 1:
        yield "The rows of a step grow with the processes. Compare the scores of layouts."
    yield from _lacking(rows)


def _lacking(rows: pd.DataFrame) -> Iterator[str]:
    """Yield what would have to be measured or computed for the quantities that are unavailable."""
    if rows["node_memory_bytes"].isna().any():
        yield (
            "Memory and bytes that are unavailable need runs of the probe resources: write "
            "resources: {enabled: true}."
        )
    if rows["predicted_seconds_per_epoch"].isna().all():
        yield "There are no predictions: escala predict makes them."
    if rows["accuracy"].isna().all():
        yield "The runs have no accuracy, such as those of programs."


def _interval(row: Mapping, name: str) -> str:
    return _with_ends(*(row[f"{name}{end}"] for end in ("", "_low", "_high")))


def _with_ends(value: float, low: float, high: float) -> str:
    """Return a value with its interval in brackets, if that is known."""
    if pd.isna(value):
        return UNKNOWN
    if pd.isna(low) or pd.isna(high):
        return _number(value)
    return f"{_number(value)} ({_number(low)}–{_number(high)})"


def _number(value: Any, form: str = ".3g") -> str:
    """Return a number with three significant digits and without an exponent, or `UNKNOWN`."""
    if pd.isna(value):
        return UNKNOWN
    if form != ".3g" or value == 0:
        return format(float(value), form)
    if abs(value) < _LEAST:
        return f"< {_LEAST:f}".rstrip("0")
    digits = max(0, 2 - int(f"{abs(value):e}".rpartition("e")[2]))
    return f"{value:.{digits}f}"
