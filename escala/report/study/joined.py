"""Join the doublings of a scaling study that were measured in jobs of their own.

The two sizes of a doubling ran in one job on the same nodes, and its ratio is of matches there. A
speed-up over several doublings is the product of theirs, which takes the time of the size that two
jobs share as equal. Where the runs of that size may not be compared, there is no product.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd

from escala.analysis.comparable import CONFIGURATION, refusal
from escala.analysis.statistics import Interval
from escala.analysis.tables import records
from escala.experiment.scaling import BASELINE, RUN
from escala.report.findings.words import Tables
from escala.report.study.cells import UNKNOWN, in_words, interval, with_ends
from escala.report.study.content import SERIES, Study, study
from escala.report.tables.scaling import efficiency_of, verdict

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


def joined(
    parts: Sequence[Part], title: str, settings: Mapping[str, Any]
) -> tuple[Study, dict[str, pd.DataFrame]]:
    """Return the document of several doublings, and their tables as those of one experiment.

    Parameters
    ----------
    parts : from the smallest doubling to the largest.
    settings : the key `scaling` of the whole experiment, with all defaults.
    """
    tables = {name: _together(parts, name) for name in _JOINED}
    keys = tables["scaling"][SERIES].drop_duplicates().to_dict("records")
    series = [_series(key, parts, settings) for key in keys]
    rows = [row for each in series for row in each.rows]
    kept = tables["scaling"]
    tables["scaling"] = pd.DataFrame(rows, columns=kept.columns).astype(kept.dtypes.to_dict())
    # A law is fitted to times of one job.
    tables["amdahl"] = tables["amdahl"].iloc[:0]
    found = study(tables, title, settings, [run for part in parts for run in part.runs])
    several = [
        each._replace(
            statement=f"{each.statement} {PRODUCT}",
            tables={"Doublings": pd.DataFrame(own.doublings)} | each.tables,
            notes=[*own.notes, *each.notes],
        )
        for each, own in zip(found.series, series, strict=True)
    ]
    return found._replace(series=several), tables


def _together(parts: Sequence[Part], name: str) -> pd.DataFrame:
    """Return a table of all parts; a configuration of two parts has the row of the first."""
    frames = [part.tables[name] for part in parts]
    frame = pd.concat([each for each in frames if len(each)] or frames[:1], ignore_index=True)
    one = name in ("configurations", "mean_scores")
    by = [*CONFIGURATION, *(["score"] if name == "mean_scores" else [])]
    return frame.drop_duplicates(by) if one else frame


def _series(key: Mapping, parts: Sequence[Part], settings: Mapping) -> _Series:
    """Return a series as a chain of doublings, from its first size with a time."""
    found, broken, before = _Series([], [], []), None, None
    #: Row, speed-ups and fewest paired runs of each size that is compared.
    chain: dict[tuple, tuple[dict, dict[str, Interval], int]] = {}
    for part in parts:
        own = _rows(part.tables["scaling"], key)
        measured = [row for row in own if row["baseline"] is not None]
        if not measured:
            found.rows.extend(row for row in own if _size(row) not in map(_size, found.rows))
            continue
        same = dict.fromkeys(_SPEEDUPS, Interval(1.0, 1.0, 1.0))
        last, start, pairs = chain.get(_size(measured[0]), (None, same, 0))
        if chain:
            broken = broken or _gap(last, measured[0], before, part)
            found.notes.extend(_agreement(last, measured[0], before, part))
        for row in own:
            if _size(row) in map(_size, found.rows):
                continue
            found.rows.append(row)
            if row not in measured:
                continue
            total = dict.fromkeys(_SPEEDUPS, _NOTHING) if broken else start
            fewest = min((each for each in (pairs, row["rule_matches"]) if each), default=0)
            if chain:
                gains = {name: Interval(*(row[f"{name}{end}"] for end in _ENDS)) for name in total}
                total = {name: _product(total[name], gains[name]) for name in total}
                first = next(iter(chain.values()))[0]
                row |= _over_the_first(row, total, first)
                if settings["rules"]["against"] == BASELINE:
                    times = row["cores"] / first["cores"]
                    row |= _judged(times, total, fewest, settings, broken)
                row["gain_reason"] = row["gain_reason"] or broken
                if row["doubled_from"]:
                    found.doublings.append(_doubling(row, own, part))
            chain[_size(row)] = row, total, fewest
        before = part
    return found


def _rows(table: pd.DataFrame, key: Mapping) -> list[dict]:
    own = table[(table[list(key)] == pd.Series(key)).all(axis=1)]
    return records(own)


def _size(row: Mapping) -> tuple[str, str]:
    return row["strategy"], row["layout"]


def _gain(row: Mapping, before: Mapping) -> Interval:
    """Return how many times as fast a size is as the one before it, from the efficiency of that."""
    ends = [row[f"doubling_efficiency{end}"] for end in _ENDS]
    if ends[0] is None:
        return _NOTHING
    doublings = math.log2(row["cores"] / before["cores"])
    return Interval(*(None if each is None else (2 * each) ** doublings for each in ends))


def _product(one: Interval, other: Interval) -> Interval:
    """Return the product of two independent ratios; their errors add as squares of logarithms."""
    if one.estimate is None or other.estimate is None:
        return _NOTHING
    value = one.estimate * other.estimate
    if None in (*one, *other):
        return Interval(value, None, None)
    below, above = (
        math.hypot(*(math.log(end / each.estimate) for each, end in ends))
        for ends in (
            ((one, one.low), (other, other.low)),
            ((one, one.high), (other, other.high)),
        )
    )
    return Interval(value, value / math.exp(below), value * math.exp(above))


def _over_the_first(row: Mapping, total: Mapping[str, Interval], first: Mapping) -> dict:
    """Return the columns of a size that compare it with the first one of the chain."""
    times = row["cores"] / first["cores"]
    return {
        "baseline": first["layout"],
        **{key: each for name in total for key, each in total[name].columns(name).items()},
        **efficiency_of(total["speedup"], times).columns("efficiency"),
    }


def _judged(
    times: float, total: Mapping[str, Interval], pairs: int, settings: Mapping, why: str | None
) -> dict:
    """Return the columns of a size on a rule that compares it with the first one of the chain.

    Parameters
    ----------
    times : its cores over those of the first one.
    pairs : the fewest paired runs of the doublings up to it.
    why : there is no product of them.
    """
    is_whole = settings["rules"]["time"] == RUN
    efficiency = efficiency_of(total["whole_speedup" if is_whole else "speedup"], times)
    return {
        **efficiency.columns("rule_efficiency"),
        "rule_matches": pairs,
        **verdict(efficiency, pairs, settings, why),
    }


def _gap(last: Mapping | None, first: Mapping, before: Part, part: Part) -> str | None:
    """Return why a part cannot go on from a size of those before; None if it can."""
    if last is None:
        return f"{part.name} begins with {first['layout']}, which no smaller doubling has"
    one, other = (
        {run["repeat"]: run for run in each.runs if _is_of(run, first)} for each in (before, part)
    )
    # Repeats may have other splits.
    if not (common := one.keys() & other.keys()):
        return f"{before.name} and {part.name} have no repeat of {first['layout']} in common"
    why = refusal(one[max(common)], other[max(common)])
    return f"{first['layout']} in {before.name} and in {part.name}: {why}" if why else None


def _is_of(run: Mapping, row: Mapping) -> bool:
    return run["status"] == "ok" and all(run[key] == row[key] for key in CONFIGURATION)


def _agreement(last: Mapping | None, first: Mapping, before: Part, part: Part) -> Iterator[str]:
    """Yield how the times of the size that two parts share compare."""
    if last is None:
        return
    one, other = (interval(each, "seconds_per_epoch") for each in (last, first))
    more = first["seconds_per_epoch"] / last["seconds_per_epoch"] - 1
    text = (
        f"An epoch on {in_words(first)} takes {one} s in {before.name} and {other} s in "
        f"{part.name}, {more:+.1%}. A product takes the two as equal"
    )
    ends = [each[f"seconds_per_epoch{end}"] for each in (last, first) for end in ("_low", "_high")]
    if None not in ends and (ends[0] > ends[3] or ends[2] > ends[1]):
        text += ": the jobs differ by more than their intervals, and the product may be so far off"
    yield f"{text}."


def _doubling(row: Mapping, sizes: Sequence[Mapping], part: Part) -> dict:
    """Return a doubling as a row of text: each ratio is of runs of one experiment."""
    before = next(each for each in sizes if each["layout"] == row["doubled_from"])
    step = _gain(row, before)
    ok = [run for run in part.runs if run["status"] == "ok"]
    jobs = {str(job["number"]) for run in ok if (job := run.get("job"))}
    hosts = {host for run in ok for host in run["ranks"]["hosts"]}
    return {
        "from": row["doubled_from"] or UNKNOWN,
        "to": row["layout"],
        "speed-up of the doubling": with_ends(*(_or_nan(each) for each in step)),
        "efficiency": interval(row, "doubling_efficiency"),
        "paired runs": str(row["matches"] or UNKNOWN),
        "experiment": part.name,
        "jobs": ", ".join(sorted(jobs, key=lambda each: (len(each), each))) or "none",
        "hosts": ", ".join(sorted(hosts)) or UNKNOWN,
    }


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value
