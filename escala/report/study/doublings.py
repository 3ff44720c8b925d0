"""Measure each doubling of a scaling study in a job of its own, and join what they measured.

A job of all counts of nodes holds the nodes of the largest one for the runs of all others, too. A
job that compares n nodes with 2n holds twice the nodes of its smaller side at most.

The two sizes of a doubling run in one job on the same nodes, and its ratio is of matches there. A
speed-up over several doublings is the product of theirs, which takes the time of the size that two
jobs share as equal. Where the runs of that size may not be compared, there is no product.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from escala.analysis.comparable import CONFIGURATION, refusal
from escala.analysis.statistics import Interval
from escala.analysis.tables import records
from escala.core.readable import UNAVAILABLE, with_interval
from escala.core.yaml12 import read
from escala.experiment.matrix import Experiment
from escala.experiment.scaling import BASELINE, RUN, layouts_of
from escala.report.findings.words import Tables
from escala.report.study.content import SERIES, Study, study
from escala.report.study.statement import in_words, interval
from escala.report.tables.scaling import efficiency_of, verdict
from escala.runtime.layout import Layout

#: Tables of a part that the document reads.
_JOINED = (
    "scaling", "configurations", "mean_scores", "runs", "speedup", "amdahl", "resources",
)  # fmt: skip
_ENDS = ("", "_low", "_high")
_NOTHING = Interval(None, None, None)
_SPEEDUPS = ("speedup", "whole_speedup")
PRODUCT = (
    "Each doubling was measured in a job of its own, both of its sizes on the same nodes. A "
    "speed-up over several doublings is the product of theirs, and its interval combines their "
    "intervals as those of independent ratios."
)


class Part(NamedTuple):
    """One doubling: the name of its experiment, its tables, and its timing runs."""

    name: str
    tables: Tables
    runs: Sequence[Mapping]


class _Series(NamedTuple):
    """The sizes of a series, its doublings as text, and what is to be known of them."""

    rows: list[dict]
    doublings: list[dict]
    notes: list[str]


def doublings(e: Experiment) -> dict[str, dict[str, Any]]:
    """Return an experiment of each doubling of nodes, as the content of a file, by its name.

    Each has the layouts of n and of 2n nodes. From two nodes on, its references are the
    configurations of n nodes. Ladders are left out, since they are no part of a doubling.

    Raises
    ------
    InputError : no layout has twice the nodes of another.
    """
    layouts = {run.layout for run in e.runs}
    counts = sorted({layout.nodes for layout in layouts})
    experiments = {
        f"{e.name}-{count}to{2 * count}": _experiment(e, read(e.origin), count)
        for count in counts
        if 2 * count in counts
    }
    if not experiments:
        listed = ", ".join(sorted(map(str, layouts)))
        remedy = "list layouts such as 1x4, 2x4 and 4x4"
        raise e.error("layouts", listed, "none has twice the nodes of another", remedy)
    return experiments


def file_of(e: Experiment, name: str) -> Path:
    """Return the file of the experiment of a doubling of another one."""
    return Path("results", e.name, f"{name}.yaml")


def _experiment(e: Experiment, settings: Mapping[str, Any], count: int) -> dict[str, Any]:
    def those_of(layouts: list[Layout]) -> list[str]:
        return [str(layout) for layout in layouts if layout.nodes in (count, 2 * count)]

    changed = copy.deepcopy({key: value for key, value in settings.items() if key != "ladders"})
    changed["experiment"] = f"{e.name}-{count}to{2 * count}"
    changed["title"] = f"{e.title} ({count} and {2 * count} nodes)"
    entries = [
        entry | {"layouts": those_of(entry["layouts"])} for entry in e.settings["configurations"]
    ]
    changed["configurations"] = [entry for entry in entries if entry["layouts"]]
    if scaling := changed.get("scaling"):
        scaling["layouts"] = those_of(layouts_of(scaling))
        scaling.pop("up_to", None)
    if count > 1:
        smaller = {
            (entry["strategy"], layout): None
            for entry in changed["configurations"]
            for layout in entry["layouts"]
            if Layout.parse(layout).nodes == count
        }
        changed["references"] = [
            {"strategy": strategy, "layout": layout} for strategy, layout in smaller
        ]
    return changed


def join(
    parts: Sequence[Part], title: str, settings: Mapping[str, Any]
) -> tuple[Study, dict[str, pd.DataFrame]]:
    """Return the document of several doublings, and their tables as those of one experiment.

    Parameters
    ----------
    parts : from the smallest doubling to the largest.
    settings : the key `scaling` of the whole experiment, with all defaults.
    """
    tables = {}
    for name in _JOINED:
        frames = [part.tables[name] for part in parts]
        tables[name] = pd.concat(
            [rows for rows in frames if len(rows)] or frames[:1], ignore_index=True
        )
    # A configuration of two parts has the row of the first.
    for name, further in (("configurations", ()), ("mean_scores", ("score",))):
        tables[name] = tables[name].drop_duplicates([*CONFIGURATION, *further])
    keys = tables["scaling"][SERIES].drop_duplicates().to_dict("records")
    series = [_series(key, parts, settings) for key in keys]
    rows = [row for one in series for row in one.rows]
    kept = tables["scaling"]
    tables["scaling"] = pd.DataFrame(rows, columns=kept.columns).astype(kept.dtypes.to_dict())
    # A law is fitted to times of one job.
    tables["amdahl"] = tables["amdahl"].iloc[:0]
    whole = study(tables, title, settings, [run for part in parts for run in part.runs])
    several = [
        of_whole._replace(
            statement=f"{of_whole.statement} {PRODUCT}",
            tables={"Doublings": pd.DataFrame(chained.doublings)} | of_whole.tables,
            notes=[*chained.notes, *of_whole.notes],
        )
        for of_whole, chained in zip(whole.series, series, strict=True)
    ]
    return whole._replace(series=several), tables


def _series(key: Mapping, parts: Sequence[Part], settings: Mapping) -> _Series:
    """Return a series as a chain of doublings, from its first size with a time."""
    chained, broken, before = _Series([], [], []), None, None
    #: Row, speed-ups and fewest paired runs of each size that is compared.
    chain: dict[tuple, tuple[dict, dict[str, Interval], int]] = {}
    for part in parts:
        table = part.tables["scaling"]
        sizes = records(table[(table[list(key)] == pd.Series(key)).all(axis=1)])
        measured = [row for row in sizes if row["baseline"] is not None]
        if not measured:
            chained.rows.extend(row for row in sizes if _size(row) not in map(_size, chained.rows))
            continue
        same = dict.fromkeys(_SPEEDUPS, Interval(1.0, 1.0, 1.0))
        last, start, pairs = chain.get(_size(measured[0]), (None, same, 0))
        if chain:
            broken = broken or _gap(last, measured[0], before, part)
            chained.notes.extend(_agreement(last, measured[0], before, part))
        for row in sizes:
            if _size(row) in map(_size, chained.rows):
                continue
            chained.rows.append(row)
            if row not in measured:
                continue
            total = dict.fromkeys(_SPEEDUPS, _NOTHING) if broken else start
            fewest = min((number for number in (pairs, row["rule_matches"]) if number), default=0)
            if chain:
                gains = {name: Interval(*(row[f"{name}{end}"] for end in _ENDS)) for name in total}
                total = {name: _product(total[name], gains[name]) for name in total}
                first = next(iter(chain.values()))[0]
                times = row["cores"] / first["cores"]
                row |= {"baseline": first["layout"]}
                for name, gain in total.items():
                    row |= gain.columns(name)
                row |= efficiency_of(total["speedup"], times).columns("efficiency")
                if settings["rules"]["against"] == BASELINE:
                    is_whole = settings["rules"]["time"] == RUN
                    judged = total["whole_speedup" if is_whole else "speedup"]
                    efficiency = efficiency_of(judged, times)
                    row |= efficiency.columns("rule_efficiency") | {"rule_matches": fewest}
                    row |= verdict(efficiency, fewest, settings, broken)
                row["gain_reason"] = row["gain_reason"] or broken
                if row["doubled_from"]:
                    chained.doublings.append(_describe_doubling(row, sizes, part))
            chain[_size(row)] = row, total, fewest
        before = part
    return chained


def _size(row: Mapping) -> tuple[str, str]:
    return row["strategy"], row["layout"]


def _product(one: Interval, other: Interval) -> Interval:
    """Return the product of two independent ratios; their errors add as squares of logarithms."""
    if one.estimate is None or other.estimate is None:
        return _NOTHING
    value = one.estimate * other.estimate
    if None in (*one, *other):
        return Interval(value, None, None)
    below, above = (
        math.hypot(*(math.log(end / ratio.estimate) for ratio, end in ends))
        for ends in (
            ((one, one.low), (other, other.low)),
            ((one, one.high), (other, other.high)),
        )
    )
    return Interval(value, value / math.exp(below), value * math.exp(above))


def _gap(last: Mapping | None, first: Mapping, before: Part, part: Part) -> str | None:
    """Return why a part cannot go on from a size of those before; None if it can."""
    if last is None:
        return f"{part.name} begins with {first['layout']}, which no smaller doubling has"
    one, other = (
        {
            run["repeat"]: run
            for run in job.runs
            if run["status"] == "ok" and all(run[key] == first[key] for key in CONFIGURATION)
        }
        for job in (before, part)
    )
    # Repeats may have other splits.
    if not (common := one.keys() & other.keys()):
        return f"{before.name} and {part.name} have no repeat of {first['layout']} in common"
    why = refusal(one[max(common)], other[max(common)])
    return f"{first['layout']} in {before.name} and in {part.name}: {why}" if why else None


def _agreement(last: Mapping | None, first: Mapping, before: Part, part: Part) -> Iterator[str]:
    """Yield how the times of the size that two parts share compare."""
    if last is None:
        return
    one, other = (interval(row, "seconds_per_epoch") for row in (last, first))
    more = first["seconds_per_epoch"] / last["seconds_per_epoch"] - 1
    text = (
        f"An epoch on {in_words(first)} takes {one} s in {before.name} and {other} s in "
        f"{part.name}, {more:+.1%}. A product takes the two as equal"
    )
    ends = [row[f"seconds_per_epoch{end}"] for row in (last, first) for end in ("_low", "_high")]
    if None not in ends and (ends[0] > ends[3] or ends[2] > ends[1]):
        text += ": the jobs differ by more than their intervals, and the product may be so far off"
    yield f"{text}."


def _describe_doubling(row: Mapping, sizes: Sequence[Mapping], part: Part) -> dict:
    """Return a doubling as a row of text: each ratio is of runs of one experiment."""
    before = next(size for size in sizes if size["layout"] == row["doubled_from"])
    # How many times as fast it is, from the efficiency of each doubling.
    doublings = math.log2(row["cores"] / before["cores"])
    ends = (row[f"doubling_efficiency{end}"] for end in _ENDS)
    gain = Interval(*(end and (2 * end) ** doublings for end in ends))
    ok = [run for run in part.runs if run["status"] == "ok"]
    jobs = {str(job["number"]) for run in ok if (job := run.get("job"))}
    hosts = {host for run in ok for host in run["ranks"]["hosts"]}
    return {
        "from": row["doubled_from"] or UNAVAILABLE,
        "to": row["layout"],
        "speed-up of the doubling": with_interval(*gain),
        "efficiency": interval(row, "doubling_efficiency"),
        "paired runs": str(row["matches"] or UNAVAILABLE),
        "experiment": part.name,
        "jobs": ", ".join(sorted(jobs, key=lambda number: (len(number), number))) or "none",
        "hosts": ", ".join(sorted(hosts)) or UNAVAILABLE,
    }
