"""The table of a scaling study: measured times, speed-ups and costs by the size of a layout.

A series is the layouts of one strategy, variant and network that the key `scaling` of the
experiment names. Its baseline is the smallest layout with a measured time. All ratios are judged
as in `speedup`: over matches of runs of one session and repeat, of the question "next time". With
weak scaling they are of the time for the same number of rows. A size whose processes share cores is
compared with nothing.

The rule of a site asks for an efficiency, p_b T_b / (p_n T_n) of cores p and times T. T is that of
whole runs or of training steps, and b the baseline or the next smaller size. A size passes or fails
by the whole interval of it, from six matches on.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from escala.analysis import laws
from escala.analysis.comparable import CONFIGURATION, Matched, Measurement, is_emulated
from escala.analysis.statistics import (
    LEVEL,
    VALUES_FOR_INTERVAL,
    Interval,
    inverse,
    median_interval,
)
from escala.analysis.tables import records
from escala.experiment.runs import NATIVE, one_process
from escala.experiment.scaling import BASELINE, RUN, WEAK, layouts_of
from escala.report.tables import base
from escala.report.tables.base import Evidence, Tables
from escala.report.tables.speedup import Comparison, Judge, usable

#: Parts of a run before its training steps, and after them.
SET_UP = ("startup", "loading", "build", "first_step", "first_prediction", "broadcast")
_AFTER = ("averaging", "evaluation", "save")
PASSES, FAILS, NOT_DECIDED = "passes", "fails", "not decided"
_SECONDS_PER_HOUR = 3600
_ENDS = ("", "_low", "_high")
_PREDICTED = [f"predicted{end}_seconds_per_epoch" for end in _ENDS]


class _Series(NamedTuple):
    """The configurations of a series, from the smallest to the largest, by their names."""

    strategy: str
    network: str
    sizes: list[tuple]


def scaling(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each layout of each series; none if the experiment has no scaling study."""
    if evidence.scaling is None:
        return
    judge, timed = Judge(evidence, tables), usable(evidence)
    sampled = base.by_configuration(
        run for run in evidence.probe_runs("resources") if run["status"] == "ok"
    )
    tabled = {
        name: {tuple(row[key] for key in CONFIGURATION): row for row in records(tables[name])}
        for name in ("configurations", "predictions")
    }
    every = base.by_configuration(evidence.runs)
    for series in _series(every, evidence.scaling):
        alone = [names for names in series.sizes if timed.get(names) and not _share(every[names])]
        for names in series.sizes:
            before = alone[: alone.index(names)] if names in alone else None
            predicted = tabled["predictions"].get(names)
            yield {
                "study_strategy": series.strategy,
                "study_network": series.network,
                "scaling": evidence.scaling["kind"],
                **base.name_columns(names),
                "shares_cores": _share(every[names]),
                "emulated": any(map(is_emulated, every[names])),
                **_times(names, before, timed, judge),
                **_costs(every[names], timed.get(names, ()), tabled["configurations"][names]),
                **_resources(sampled.get(names, ())),
                **{name: predicted and predicted[name] for name in _PREDICTED},
                **base.data_of(every[names][0], base.ABOUT),
            }


def _share(runs: Sequence[Measurement]) -> bool:
    return any(run["ranks"]["oversubscribed"] for run in runs)


def _series(every: Mapping[tuple, Sequence], study: Mapping) -> Iterator[_Series]:
    """Yield the series of a study among the configurations that were run."""
    layouts = set(layouts_of(study))
    for strategy in study["strategies"]:
        sizes: dict[tuple, list[tuple]] = {}
        alone: dict[tuple, list[tuple]] = {}
        for names in every:
            dataset, workload, name, layout, variant, network = names
            key = dataset, workload, variant
            if layout not in layouts:
                continue
            if layout.ranks == 1 and name in (strategy, one_process(strategy)[0]):
                alone.setdefault(key, []).append(names)
            elif layout.ranks > 1 and name == strategy:
                sizes.setdefault(key, []).append(names)
        for key, several in sizes.items():
            # One process without the strategy comes first, if both are measured.
            first = sorted(alone.get(key, []), key=lambda names: names[2] == strategy)[:1]
            networks = {names[5] for names in several if names[3].nodes > 1}
            for network in sorted(networks) or [NATIVE]:
                over = [n for n in several if n[5] == network or n[3].nodes == 1]
                over.sort(key=lambda n: (n[3].ranks, n[3].nodes))
                yield _Series(strategy, network, [*first, *over])


def _times(
    names: tuple,
    before: Sequence[tuple] | None,
    timed: Mapping[tuple, list],
    judge: Judge,
) -> dict:
    """Return the columns on the time of a size, and on what it gains.

    Parameters
    ----------
    before : the smaller sizes of the series to compare it with, None if it is not compared.
    """
    layout, runs = names[3], timed.get(names, ())
    about = {"nodes": layout.nodes, "ranks": layout.ranks, "runs": len(runs)}
    if not runs:
        return about | {"kind": "unavailable"}
    columns = about | {
        "cores": base.cores_of(runs[0]),
        "gpus": base.gpus_of(runs[0]),
        "kind": base.least_certain(map(base.kind, runs)),
        **median_interval([*map(base.seconds_per_epoch, runs)]).columns("seconds_per_epoch"),
    }
    if before is None:
        return columns | {"gain_reason": "its processes share cores"}
    if not before:
        one = Interval(1.0, None, None).columns
        return columns | {"baseline": names[3], **one("speedup"), **one("efficiency"),
                        **one("whole_speedup")}  # fmt: skip
    first, last = (Comparison.of(names, other, timed) for other in (before[0], before[-1]))
    return columns | {"baseline": before[0][3], "doubled_from": before[-1][3],
                    **_gains(first, last, judge)}  # fmt: skip


def _gains(first: Comparison, last: Comparison, judge: Judge) -> dict:
    """Return the columns on what a size gains over the baseline and over the next smaller size."""
    times, step_times = (
        base.cores_of(judge.runs[compared.names][0])
        / base.cores_of(judge.runs[compared.reference_names][0])
        for compared in (first, last)
    )
    gain, step = (_gain(compared, judge, base.ratios) for compared in (first, last))
    whole = _gain(first, judge, _whole_run_ratios)
    study = judge.evidence.scaling
    rule = study["rules"]
    is_whole, over_first = rule["time"] == RUN, rule["against"] == BASELINE
    time = _whole_run_ratios if is_whole else base.ratios
    judged = _gain(first if over_first else last, judge, time)
    efficiency = (
        efficiency_of(judged.factor, times)
        if over_first
        else efficiency_of_doubling(judged.factor, step_times)
    )
    return {
        "matches": gain.matches,
        **gain.factor.columns("speedup"),
        **efficiency_of(gain.factor, times).columns("efficiency"),
        **whole.factor.columns("whole_speedup"),
        **efficiency_of_doubling(step.factor, step_times).columns("doubling_efficiency"),
        "gain_reason": gain.reason or step.reason or whole.reason,
        **efficiency.columns("rule_efficiency"),
        "rule_matches": judged.matches,
        **verdict(efficiency, judged.matches, study, judged.reason, judged.stays_disturbed),
    }


def efficiency_of(gain: Interval, times: float) -> Interval:
    """Return the efficiency of `times` the cores that are so many times as fast."""
    return Interval(*(factor and factor / times for factor in gain))


def efficiency_of_doubling(gain: Interval, times: float) -> Interval:
    """Return that of each doubling within them (`escala.analysis.laws`)."""
    return Interval(*(laws.efficiency_of_doubling(factor, times) for factor in gain))


def verdict(
    efficiency: Interval,
    matches: int,
    study: Mapping,
    reason: str | None = None,
    stays_disturbed: bool = False,
) -> dict[str, str | None]:
    """Return whether a size passes the rule of a study, or why that is not judged.

    Parameters
    ----------
    efficiency : that which the rule asks for, over `matches`.
    reason : why there is none.
    stays_disturbed : whether other work disturbed too many of the runs.
    """
    rule = study["rules"]
    if study["kind"] == WEAK and rule["same_input"]:
        why = "the rule asks for the same input for all sizes, and that of weak scaling grows"
        return {"passes": None, "rule_reason": why}
    if efficiency.estimate is None:
        return {"passes": None, "rule_reason": reason or "it has not more cores"}
    if matches < VALUES_FOR_INTERVAL or efficiency.low is None:
        why = f"a verdict needs {VALUES_FOR_INTERVAL} paired runs, and there are {matches}"
        return {"passes": None, "rule_reason": why}
    if stays_disturbed:
        return {"passes": None, "rule_reason": "other work disturbed too many of the runs"}
    passes, fails = efficiency.low >= rule["efficiency"], efficiency.high < rule["efficiency"]
    return {"passes": PASSES if passes else FAILS if fails else NOT_DECIDED, "rule_reason": None}


class _Gain(NamedTuple):
    """How many times as fast a size is as another, over their matches.

    Attributes
    ----------
    reason : why there is no match; None if there is one.
    """

    factor: Interval
    matches: int
    reason: str | None
    stays_disturbed: bool


def _gain(compared: Comparison, judge: Judge, ratios: Callable[[Matched], np.ndarray]) -> _Gain:
    """Return what a size gains by some ratios of its times to those of another."""
    judged, reason = judge.decide(compared, ratios, LEVEL), None
    if not judged.matches:
        reason = "no two whole runs of the same epochs share session and repeat"
        reason = reason if compared.newest.runs else compared.newest.why_none()
    return _Gain(inverse(judged.ratio), judged.matches, reason, judged.stays_disturbed)


def _whole_run_ratios(matches: Matched) -> np.ndarray:
    """Return the ratios of the times of whole runs that trained for the same epochs."""
    walls = ([run["wall_seconds"] for run in side] for side in (matches.runs, matches.references))
    ratios = np.divide(*map(np.array, walls))
    alike = [
        run["training"]["epochs_done"] == other["training"]["epochs_done"]
        and not (base.is_cut(run) or base.is_cut(other))
        for run, other in matches.pairs
    ]
    return (ratios / base.works(matches))[np.array(alike, bool)]


def _costs(runs: Sequence[Measurement], usable: Sequence[Measurement], row: Mapping) -> dict:
    """Return the columns on a whole run: its parts, which add up, and its hours.

    Parameters
    ----------
    usable : those whose times count; without any, nothing is known.
    row : of the table `configurations`.
    """
    run = next(iter(usable), runs[0])
    wall, nodes = row["wall_seconds"], run["layout"].nodes
    hours = None if wall is None else wall / _SECONDS_PER_HOUR
    counts = {"node": nodes, "core": base.cores_of(run), "gpu": base.gpus_of(run)}
    before, after = ([row[f"{part}_seconds"] for part in parts] for parts in (SET_UP, _AFTER))
    parts = {
        "set_up_seconds": None if None in before else sum(before),
        "train_seconds": _median(timed["seconds"]["train"] for timed in usable),
        "validation_seconds": _median(
            sum(epoch["validation_seconds"] or 0 for epoch in timed["epochs"]) for timed in usable
        ),
        "checkpoint_seconds": row["checkpoint_seconds"],
        "closing_seconds": None if None in after else sum(after),
    }
    known = [*(seconds for seconds in before if parts["set_up_seconds"] is None), *parts.values(),
             *(seconds for seconds in after if parts["closing_seconds"] is None)]  # fmt: skip
    return {
        "wall_seconds": wall,
        **parts,
        "unaccounted_seconds": wall
        and wall - sum(seconds for seconds in known if seconds is not None),
        "loading_seconds": row["loading_seconds"],
        **{f"{what}_hours": hours and hours * count for what, count in counts.items()},
        "global_batch": run["training"]["global_batch"],
        **{f"samples_per_second{end}": row[f"samples_per_second{end}"] for end in _ENDS},
    }


def _median(values: Iterator[float]) -> float | None:
    listed = list(values)
    return float(np.median(listed)) if listed else None


def _resources(runs: Sequence[Measurement]) -> dict:
    """Return the columns on memory, bytes and cores, from runs whose resources were sampled.

    Memory and bytes are those of the node with the most. Several processes of a node share its
    interface, so its bytes count once. Within a node ranks exchange through memory.
    """
    used: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        if not run["resources"]:
            continue
        nodes = run["layout"].nodes
        by_node = np.array_split(np.array(run["resources"], object), nodes)
        memory = [[process["rss_bytes_max"] for process in node] for node in by_node if len(node)]
        if not any(None in node for node in memory):
            used["node_memory_bytes"].append(max(map(sum, memory)))
        # Samples leave out the begin and the end of the steps, so bytes are counted by their rate.
        sent = [node[0]["sent_bytes_per_second"] for node in by_node if len(node)]
        steps = sum(epoch["steps"] or 0 for epoch in run["epochs"])
        if nodes > 1 and steps and None not in sent:
            seconds = sum(epoch["train_seconds"] for epoch in run["epochs"])
            used["sent_bytes_per_step"].append(max(sent) * seconds / steps)
        cores, gpus = (
            [value for process in run["resources"] if (value := process.get(name)) is not None]
            for name in ("cpu_percent_mean", "gpu_percent_mean")
        )
        if cores:
            used["core_percent"].append(sum(cores) / base.cores_of(run))
        if gpus:
            used["gpu_percent"].append(float(np.mean(gpus)))
    names = "node_memory_bytes", "sent_bytes_per_step", "core_percent", "gpu_percent"
    return {name: _median(iter(used[name])) for name in names}
