"""The table of a scaling study: measured times, speed-ups and costs by the size of a layout.

A series is the layouts of one strategy, variant and network that the key `scaling` of the
experiment names. Its baseline is the smallest layout with a measured time. All ratios are judged as
in the table `speedup`: over paired runs, and with an interval for what a later session would
measure. With weak scaling, ratios compare the time for the same number of rows. A size whose
processes share cores is compared with nothing.

The rule of a site asks for an efficiency, p_b T_b / (p_n T_n) of cores p and times T. T is the time
of whole runs or of training steps, and b the baseline or the next smaller size. A site may ask for
less of more cores, or state no number. A size passes or fails by the whole interval of its
efficiency, from five paired runs on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from escala.analysis import laws
from escala.analysis.comparable import CONFIGURATION, Matched, Measurement, is_emulated, work
from escala.analysis.statistics import (
    MATCHES_FOR_INTERVAL,
    Interval,
    inverse,
    median_interval,
)
from escala.analysis.tables import records
from escala.experiment.runs import NATIVE, one_process
from escala.experiment.scaling import BASELINE, RUN, WEAK, layouts_of
from escala.report.tables import base
from escala.report.tables.base import LAYOUT, NETWORK, STRATEGY, Evidence, Tables
from escala.report.tables.speedup import Comparison, Judge, runs_for_ratios

#: Parts of a run before its training steps, and after its training steps.
SET_UP = ("startup", "loading", "build", "first_step", "first_prediction", "broadcast")
_AFTER = ("averaging", "evaluation", "save")
PASSES, FAILS, NOT_DECIDED = "passes", "fails", "not decided"
#: Why runs have no ratio of the times of whole runs.
_CUT = "its runs were ended after some steps, and are no whole runs"
_SECONDS_PER_HOUR = 3600
_ENDS = ("", "_low", "_high")
_PREDICTED = [f"predicted{end}_seconds_per_epoch" for end in _ENDS]


class _Series(NamedTuple):
    """A series of a study.

    Attributes
    ----------
    sizes : its configurations from the smallest to the largest, as values of `CONFIGURATION`.
    """

    strategy: str
    network: str
    sizes: list[tuple]


def scaling(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each layout of each series; none if the experiment has no scaling study."""
    if evidence.scaling is None:
        return
    judge, timed = Judge(evidence, tables), runs_for_ratios(evidence)
    sampled = base.by_configuration(
        run for run in evidence.probe_runs("resources") if run["status"] == "ok"
    )
    rows_of_configurations, rows_of_predictions = (
        {tuple(row[key] for key in CONFIGURATION): row for row in records(tables[name])}
        for name in ("configurations", "predictions")
    )
    by_names = base.by_configuration(evidence.runs)
    for series in _series(by_names, evidence.scaling):
        comparable = [n for n in series.sizes if timed.get(n) and not _share_cores(by_names[n])]
        for names in series.sizes:
            runs, predicted = by_names[names], rows_of_predictions.get(names)
            smaller = comparable[: comparable.index(names)] if names in comparable else None
            yield {
                "study_strategy": series.strategy,
                "study_network": series.network,
                "scaling": evidence.scaling["kind"],
                **base.name_columns(names),
                "shares_cores": _share_cores(runs),
                "emulated": any(map(is_emulated, runs)),
                **_times(names, smaller, timed, judge),
                **_costs(runs, timed.get(names, ()), rows_of_configurations[names]),
                **_resources(sampled.get(names, ())),
                **{column: predicted and predicted[column] for column in _PREDICTED},
                **base.data_of(runs[0], base.ABOUT),
            }


def _share_cores(runs: Sequence[Measurement]) -> bool:
    return any(run["ranks"]["oversubscribed"] for run in runs)


def _series(configurations: Collection[tuple], study: Mapping) -> Iterator[_Series]:
    """Yield the series of a study among the configurations that were run."""
    layouts = set(layouts_of(study))
    for strategy in study["strategies"]:
        # The sizes of a series, by dataset, workload and variant.
        with_one_rank: dict[tuple, list[tuple]] = {}
        with_several: dict[tuple, list[tuple]] = {}
        for names in configurations:
            dataset, workload, name, layout, variant, _ = names
            key = dataset, workload, variant
            if layout not in layouts:
                continue
            if layout.ranks == 1 and name in (strategy, one_process(strategy)[0]):
                with_one_rank.setdefault(key, []).append(names)
            elif layout.ranks > 1 and name == strategy:
                with_several.setdefault(key, []).append(names)
        for key, several in with_several.items():
            # One process without the strategy comes first, if both are measured.
            first = sorted(with_one_rank.get(key, []), key=lambda n: n[STRATEGY] == strategy)[:1]
            networks = {names[NETWORK] for names in several if names[LAYOUT].nodes > 1}
            for network in sorted(networks) or [NATIVE]:
                over = [n for n in several if n[NETWORK] == network or n[LAYOUT].nodes == 1]
                over.sort(key=lambda n: (n[LAYOUT].ranks, n[LAYOUT].nodes))
                yield _Series(strategy, network, [*first, *over])


def _times(
    names: tuple,
    smaller: Sequence[tuple] | None,
    timed: Mapping[tuple, list],
    judge: Judge,
) -> dict:
    """Return the columns on the time of a size, and on what it gains.

    Parameters
    ----------
    smaller : the smaller sizes of the series to compare the size with; None without comparison.
    """
    layout, runs = names[LAYOUT], timed.get(names, ())
    about = {"nodes": layout.nodes, "ranks": layout.ranks, "runs": len(runs)}
    if not runs:
        return about | {"kind": "unavailable"}
    columns = about | {
        "cores": base.cores_of(runs[0]),
        "gpus": base.gpus_of(runs[0]),
        "kind": base.least_certain(map(base.kind, runs)),
        **median_interval([*map(base.seconds_per_epoch, runs)], level=judge.evidence.level).columns(
            "seconds_per_epoch"
        ),
    }
    if smaller is None:
        return columns | {"gain_reason": "its processes share cores"}
    if not smaller:
        known = ["speedup", "efficiency", *["whole_speedup"] * (not any(map(base.is_cut, runs)))]
        return columns | {"baseline": layout} | dict.fromkeys(known, 1.0)
    baseline, next_smaller = smaller[0], smaller[-1]
    return {
        **columns,
        "baseline": baseline[LAYOUT],
        "doubled_from": next_smaller[LAYOUT],
        **_gains(
            Comparison.of(names, baseline, timed), Comparison.of(names, next_smaller, timed), judge
        ),
    }


def _gains(over_baseline: Comparison, over_smaller: Comparison, judge: Judge) -> dict:
    """Return the columns on what a size gains over the baseline and over the next smaller size."""
    cores, cores_of_baseline, cores_of_smaller = (
        base.cores_of(judge.runs[names][0])
        for names in (
            over_baseline.names, over_baseline.reference_names, over_smaller.reference_names
        )
    )  # fmt: skip
    cores_to_baseline, cores_to_smaller = cores / cores_of_baseline, cores / cores_of_smaller
    gain, gain_of_doubling = (
        _gain(compared, judge, base.ratios) for compared in (over_baseline, over_smaller)
    )
    whole = _gain(over_baseline, judge, _whole_run_ratios)
    study = judge.evidence.scaling
    rule = study["rules"]
    ratios = _whole_run_ratios if rule["time"] == RUN else base.ratios
    if rule["against"] == BASELINE:
        judged = _gain(over_baseline, judge, ratios)
        efficiency = efficiency_of(judged.factor, cores_to_baseline)
    else:
        judged = _gain(over_smaller, judge, ratios)
        efficiency = efficiency_of_doubling(judged.factor, cores_to_smaller)
    least = least_efficiency(rule, cores_of_smaller, cores)
    of_doubling = efficiency_of_doubling(gain_of_doubling.factor, cores_to_smaller)
    return {
        "matches": gain.matches,
        **gain.factor.columns("speedup"),
        **efficiency_of(gain.factor, cores_to_baseline).columns("efficiency"),
        **whole.factor.columns("whole_speedup"),
        **of_doubling.columns("doubling_efficiency"),
        "gain_reason": gain.reason
        or gain_of_doubling.reason
        or (None if whole.reason == _CUT else whole.reason),
        **efficiency.columns("rule_efficiency"),
        "rule_least": least,
        "rule_matches": judged.matches,
        **verdict(efficiency, least, judged.matches, study, judged.reason, judged.stays_disturbed),
    }


def efficiency_of(speedup: Interval, times_the_cores: float) -> Interval:
    """Return the efficiency of a speed-up: its fraction of the ideal speed-up."""
    return Interval(*(factor and factor / times_the_cores for factor in speedup))


def efficiency_of_doubling(speedup: Interval, times_the_cores: float) -> Interval:
    """Return the efficiency of each doubling of the cores (`escala.analysis.laws`)."""
    return Interval(*(laws.efficiency_of_doubling(f, times_the_cores) for f in speedup))


def least_efficiency(rule: Mapping, smaller: int, cores: int) -> float | None:
    """Return the least efficiency that a rule allows; None if it states none for so many cores.

    With tiers it is that of each doubling: half of the speed-up of the tier. Where the cores pass
    through several tiers, it is the geometric mean over the doublings.

    Parameters
    ----------
    smaller, cores : the cores of the next smaller size, and of the size.
    """
    if not rule.get("tiers"):
        return rule.get("efficiency")
    tiers = sorted((tier["cores"], tier["speedup"]) for tier in rule["tiers"])
    ends, speedups = zip(*tiers, strict=True)
    if not smaller < cores <= ends[-1]:
        return None
    doublings = np.diff(np.log2(np.clip([smaller, *ends], smaller, cores)))
    return float(2 ** (doublings @ np.log2(speedups) / doublings.sum()) / 2)


def verdict(
    efficiency: Interval,
    least: float | None,
    matches: int,
    study: Mapping,
    reason: str | None = None,
    stays_disturbed: bool = False,
) -> dict[str, str | None]:
    """Return whether a size passes the rule of a study, or why that is not judged.

    Parameters
    ----------
    efficiency : the efficiency that the rule judges.
    least : the result of `least_efficiency`.
    matches : the number of paired runs behind the efficiency.
    reason : why the efficiency is unknown.
    stays_disturbed : whether other work disturbed too many of the runs.
    """
    rule = study["rules"]
    if study["kind"] == WEAK and rule["same_input"]:
        why = "the rule asks for the same input for all sizes, and weak scaling increases the input"
        return {"passes": None, "rule_reason": why}
    if efficiency.estimate is None:
        return {
            "passes": None,
            "rule_reason": reason or "it has no more cores than the smaller size",
        }
    if least is None:
        scope = " for so many cores" if rule.get("tiers") else ""
        why = f"{rule['name']} states no number to reach{scope}"
        return {"passes": None, "rule_reason": why}
    if matches < MATCHES_FOR_INTERVAL or efficiency.low is None:
        why = f"a verdict needs {MATCHES_FOR_INTERVAL} paired runs, and there are {matches}"
        return {"passes": None, "rule_reason": why}
    if stays_disturbed:
        return {"passes": None, "rule_reason": "other work disturbed too many of the runs"}
    passes, fails = efficiency.low >= least, efficiency.high < least
    return {"passes": PASSES if passes else FAILS if fails else NOT_DECIDED, "rule_reason": None}


class _Gain(NamedTuple):
    """The speed of a size divided by the speed of another size, over paired runs.

    Attributes
    ----------
    reason : why the two sizes have no paired run; None with one.
    """

    factor: Interval
    matches: int
    reason: str | None
    stays_disturbed: bool


def _gain(compared: Comparison, judge: Judge, ratios: Callable[[Matched], np.ndarray]) -> _Gain:
    """Return what a size gains over another.

    Parameters
    ----------
    ratios : as in `Judge.decide`.
    """
    judged, reason = judge.decide(compared, ratios, judge.evidence.level), None
    if not judged.matches and any(map(base.is_cut, compared.newest.runs)):
        reason = _CUT
    elif not judged.matches and compared.newest.runs:
        reason = "no two whole runs of the same epochs share session and repeat"
    elif not judged.matches:
        reason = compared.newest.why_none()
    return _Gain(inverse(judged.ratio), judged.matches, reason, judged.stays_disturbed)


def _whole_run_ratios(matches: Matched) -> np.ndarray:
    """Return the ratios of the times of whole runs that trained for the same epochs."""
    ratios = [
        run["wall_seconds"] / reference["wall_seconds"] / work(run, reference)
        for run, reference in matches.pairs
        if run["training"]["epochs_done"] == reference["training"]["epochs_done"]
        and not (base.is_cut(run) or base.is_cut(reference))
    ]
    return np.array(ratios, float)


def _costs(runs: Sequence[Measurement], timed: Sequence[Measurement], row: Mapping) -> dict:
    """Return the columns on a whole run: its parts, which add up, and its hours.

    Parameters
    ----------
    timed : the runs whose times count. If there are none, the times are unknown.
    row : of the table `configurations`.
    """
    run = next(iter(timed), runs[0])
    is_program, is_cut = "program" in run, any(map(base.is_cut, timed))
    train = _median([*map(_train_seconds, timed)])
    wall = _median([*map(_wall_seconds, timed)]) if is_cut else row["wall_seconds"]
    hours = None if wall is None else wall / _SECONDS_PER_HOUR
    counts = {
        "node": run["layout"].nodes, "core": base.cores_of(run), "gpu": base.gpus_of(run)
    }  # fmt: skip
    # Of a program, only the time until its first step is known, and not what it does after steps.
    set_up, closing = (
        [row[f"{part}_seconds"] for part in parts]
        for parts in (SET_UP[:1] if is_program else SET_UP, _AFTER)
    )
    validation = None
    if not is_program:
        validation = _median(
            [sum(epoch["validation_seconds"] or 0 for epoch in run["epochs"]) for run in timed]
        )
    parts = [*set_up, train, validation, row["checkpoint_seconds"], *closing]
    known = [seconds for seconds in parts if seconds is not None]
    return {
        "wall_seconds": wall,
        "set_up_seconds": None if None in set_up else sum(set_up),
        "train_seconds": train,
        "validation_seconds": validation,
        "checkpoint_seconds": row["checkpoint_seconds"],
        "closing_seconds": None if None in closing else sum(closing),
        "unaccounted_seconds": None if wall is None else wall - sum(known),
        "loading_seconds": row["loading_seconds"],
        "checkpoint_bytes": _median([run.get("checkpoint_bytes") for run in timed]),
        **{f"{resource}_hours": hours and hours * count for resource, count in counts.items()},
        "global_batch": run["training"]["global_batch"] or _rows_of_step(run),
        **{f"samples_per_second{end}": row[f"samples_per_second{end}"] for end in _ENDS},
    }


def _train_seconds(run: Measurement) -> float | None:
    """Return the training seconds of a whole run, projected if it was cut; None if unknown.

    The first epoch of a program is among them, although its time does not count.
    """
    if not base.is_cut(run):
        first = run["program"]["first_epoch_seconds"] if "program" in run else None
        return run["seconds"]["train"] + (first or 0.0)
    epochs = run["training"]["epochs_asked"]
    return epochs and epochs * base.seconds_per_epoch(run)


def _wall_seconds(run: Measurement) -> float | None:
    """Return the seconds of a whole run, projected if it was cut; None if unknown."""
    train = _train_seconds(run)
    return None if train is None else run["wall_seconds"] - run["seconds"]["train"] + train


def _rows_of_step(run: Measurement) -> float | None:
    """Return the mean rows of a step of all ranks, as they were seen; None if unknown."""
    rows, steps = ([epoch[key] for epoch in run["epochs"]] for key in ("rows", "steps"))
    return sum(rows) / sum(steps) if rows and None not in (*rows, *steps) else None


def _median(values: Sequence[float | None]) -> float | None:
    """Return the median of values; None if one is unknown, or there is none."""
    return float(np.median(values)) if values and None not in values else None


def _resources(runs: Sequence[Measurement]) -> dict:
    """Return the columns on memory, bytes and cores, from runs whose resources were sampled.

    Memory and bytes are of the node with the largest value. Processes of a node share a network
    interface, so the bytes of a node count once. Within a node ranks exchange through memory.
    """
    # For each quantity, the values of the runs in which the quantity is known.
    values: dict[str, list[float]] = {
        "node_memory_bytes": [], "sent_bytes_per_step": [], "core_percent": [], "gpu_percent": [],
        "read_bytes": [], "written_bytes": [],
    }  # fmt: skip
    for run in runs:
        if not run["resources"]:
            continue
        nodes = run["layout"].nodes
        by_node = np.array_split(np.array(run["resources"], object), nodes)
        memory = [[process["rss_bytes_max"] for process in node] for node in by_node if len(node)]
        if not any(None in node for node in memory):
            values["node_memory_bytes"].append(max(map(sum, memory)))
        # Samples leave out the begin and the end of the steps, so bytes are computed from their
        # rate.
        sent = [node[0]["sent_bytes_per_second"] for node in by_node if len(node)]
        steps = sum(epoch["steps"] or 0 for epoch in run["epochs"])
        if nodes > 1 and steps and None not in sent:
            seconds = sum(epoch["train_seconds"] for epoch in run["epochs"])
            values["sent_bytes_per_step"].append(max(sent) * seconds / steps)
        for name in ("read_bytes", "written_bytes"):
            moved = [process.get(f"{name}_max") for process in run["resources"]]
            if None not in moved:
                values[name].append(sum(moved))
        core_percent, gpu_percent = (
            [percent for process in run["resources"] if (percent := process.get(name)) is not None]
            for name in ("cpu_percent_mean", "gpu_percent_mean")
        )
        if core_percent:
            values["core_percent"].append(sum(core_percent) / base.cores_of(run))
        if gpu_percent:
            values["gpu_percent"].append(float(np.mean(gpu_percent)))
    return {column: _median(of_runs) for column, of_runs in values.items()}
