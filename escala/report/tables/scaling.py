"""The table of a scaling study: measured times, speed-ups and costs by the size of a layout.

A series is the layouts of one strategy, variant and network that the key `scaling` of the
experiment names. Its baseline is the smallest layout with a measured time. All ratios are formed
over matches of runs of one session and repeat, as in `speedup`. With weak scaling they are of the
time for the same number of rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from escala.analysis import laws
from escala.analysis.statistics import Interval, median_interval, ratio_interval
from escala.analysis.tables import records
from escala.analysis.verdicts import leave_out_disturbed
from escala.experiment.references import NATIVE, one_process
from escala.experiment.scaling import layouts_of
from escala.record.comparable import CONFIGURATION, Measurement, matched, newest_of_repeats
from escala.report.tables import base
from escala.report.tables.base import Evidence, Tables
from escala.report.tables.speedup import inverse
from escala.runtime.layout import Layout

#: Parts of a run before its training steps.
SET_UP = ("startup", "loading", "build", "first_step", "first_prediction", "broadcast")
_SECONDS_PER_HOUR = 3600
_NOTHING = Interval(None, None, None)
_ENDS = ("", "_low", "_high")


class _Series(NamedTuple):
    """The configurations of a series, from the smallest to the largest, by their names."""

    strategy: str
    network: str
    sizes: list[tuple]


def scaling(evidence: Evidence, tables: Tables) -> Iterator[dict]:
    """Yield a row for each layout of each series; none if the experiment has no scaling study."""
    if evidence.scaling is None:
        return
    usable = base.by_configuration(filter(base.is_timed, (*evidence.runs, *evidence.earlier)))
    sampled = base.by_configuration(
        run for run in evidence.probe_runs("resources") if run["status"] == "ok"
    )
    tabled = {
        name: {tuple(row[key] for key in CONFIGURATION): row for row in records(tables[name])}
        for name in ("configurations", "predictions")
    }
    every = base.by_configuration(evidence.runs)
    for series in _series(every, evidence.scaling):
        measured = [names for names in series.sizes if usable.get(names)]
        needed = evidence.scaling["rules"]["efficiency_of_doubling"]
        for names in series.sizes:
            before = measured[: measured.index(names)] if names in measured else []
            row = _times(names, before, usable, evidence)
            found = row.get("doubling_efficiency")
            row["passes"] = None if found is None else found >= needed
            yield {
                "study_strategy": series.strategy,
                "study_network": series.network,
                "scaling": evidence.scaling["kind"],
                **base.named(names),
                **row,
                **_costs(every[names], tabled["configurations"][names]),
                **_resources(sampled.get(names, ())),
                **_predicted(tabled["predictions"].get(names)),
                **base.data_of(every[names][0], base.ABOUT),
            }


def _series(every: Mapping[tuple, Sequence], study: Mapping) -> Iterator[_Series]:
    """Yield the series of a study among the configurations that were run."""
    layouts = set(layouts_of(study))
    for strategy in study["strategies"]:
        sizes: dict[tuple, list[tuple]] = {}
        alone: dict[tuple, list[tuple]] = {}
        for names in every:
            dataset, workload, name, layout, variant, network = names
            parsed, key = Layout.parse(layout), (dataset, workload, variant)
            if layout not in layouts:
                continue
            if parsed.ranks == 1 and name in (strategy, one_process(strategy)[0]):
                alone.setdefault(key, []).append(names)
            elif parsed.ranks > 1 and name == strategy:
                sizes.setdefault(key, []).append(names)
        for key, several in sizes.items():
            # One process without the strategy comes first, if both are measured.
            first = sorted(alone.get(key, []), key=lambda names: names[2] == strategy)[:1]
            networks = {names[5] for names in several if Layout.parse(names[3]).nodes > 1}
            for network in sorted(networks) or [NATIVE]:
                own = [names for names in several if names[5] == network
                       or Layout.parse(names[3]).nodes == 1]  # fmt: skip
                yield _Series(strategy, network, [*first, *sorted(own, key=_size)])


def _size(names: tuple) -> tuple[int, int]:
    layout = Layout.parse(names[3])
    return layout.ranks, layout.nodes


def _times(
    names: tuple, before: Sequence[tuple], usable: Mapping[tuple, Sequence], evidence: Evidence
) -> dict:
    """Return the columns on the time of a size, and on what it gains.

    Parameters
    ----------
    before : the smaller sizes of the series that were measured.
    """
    layout, runs = Layout.parse(names[3]), usable.get(names, ())
    about = {"nodes": layout.nodes, "ranks": layout.ranks, "runs": len(runs)}
    if not runs:
        return about | {"kind": "unavailable"}
    cores = base.cores_of(runs[0])
    found = about | {
        "cores": cores,
        "gpus": sum(map(len, runs[0]["ranks"].get("gpus", ()))),
        "kind": base.least_certain(map(base.kind, runs)),
        **median_interval([*map(base.seconds_per_epoch, runs)]).columns("seconds_per_epoch"),
    }
    if not before:
        one = Interval(1.0, None, None)
        return found | {"baseline": names[3], **one.columns("speedup"), **one.columns("efficiency")}
    first, last = (base.cores_of(usable[each][0]) for each in (before[0], before[-1]))
    gain, matches, why = _gain(runs, usable[before[0]], evidence)
    step, _, why_not_step = _gain(runs, usable[before[-1]], evidence)
    efficiency = Interval(*(laws.efficiency_of_doubling(each, cores / last) for each in step))
    return found | {
        "baseline": before[0][3],
        "matches": matches,
        **gain.columns("speedup"),
        **Interval(*(each and each * first / cores for each in gain)).columns("efficiency"),
        "doubled_from": before[-1][3],
        **efficiency.columns("doubling_efficiency"),
        "gain_reason": why or why_not_step,
    }


def _gain(
    runs: Sequence[Measurement], others: Sequence[Measurement], evidence: Evidence
) -> tuple[Interval, int, str | None]:
    """Return how many times as fast runs are as others, over their matches, and their number.

    Last is why there is no match, None if there is one.
    """
    found = leave_out_disturbed(newest_of_repeats(matched(runs, others))).matches
    if not found.runs:
        return _NOTHING, 0, found.why_none()
    ratio = ratio_interval(base.ratios(found))
    return inverse(ratio), len(found.runs), None


def _costs(runs: Sequence[Measurement], row: Mapping) -> dict:
    """Return the columns on a whole run: its parts, and its hours.

    Parameters
    ----------
    row : of the table `configurations`.
    """
    layout, run = Layout.parse(runs[0]["layout"]), runs[0]
    wall, parts = row["wall_seconds"], [row[f"{part}_seconds"] for part in SET_UP]
    hours = None if wall is None else wall / _SECONDS_PER_HOUR
    counts = {
        "node": layout.nodes,
        "core": base.cores_of(run),
        "gpu": sum(map(len, run["ranks"].get("gpus", ()))),
    }
    return {
        "wall_seconds": wall,
        "set_up_seconds": None if None in parts else sum(parts),
        "loading_seconds": row["loading_seconds"],
        "checkpoint_seconds": row["checkpoint_seconds"],
        **{f"{what}_hours": hours and hours * count for what, count in counts.items()},
        "global_batch": run["training"]["global_batch"],
        **{f"samples_per_second{end}": row[f"samples_per_second{end}"] for end in _ENDS},
    }


def _resources(runs: Sequence[Measurement]) -> dict:
    """Return the columns on memory, bytes and cores, from runs whose resources were sampled."""
    found = [_used_by_nodes(run) for run in runs if run["resources"]]
    keys = ("node_memory_bytes", "sent_bytes_per_step", "core_percent", "gpu_percent")
    known = {key: [each[key] for each in found if each[key] is not None] for key in keys}
    return {key: float(np.median(values)) if values else None for key, values in known.items()}


def _used_by_nodes(run: Measurement) -> dict:
    """Return the memory and the bytes of the node with the most, and the use of cores and GPUs.

    Several processes of a node share its interface, so its bytes count once. Within a node ranks
    exchange through memory.
    """
    nodes = Layout.parse(run["layout"]).nodes
    by_node = np.array_split(np.array(run["resources"], object), nodes)
    steps = sum(epoch["steps"] or 0 for epoch in run["epochs"])
    seconds = sum(epoch["train_seconds"] for epoch in run["epochs"])
    memory = [[each["rss_bytes_max"] for each in node] for node in by_node if len(node)]
    # Samples leave out the begin and the end of the steps, so bytes are counted by their rate.
    sent = [node[0]["sent_bytes_per_second"] for node in by_node if len(node)]
    core_use, gpu_use = (
        [value for each in run["resources"] if (value := each.get(name)) is not None]
        for name in ("cpu_percent_mean", "gpu_percent_mean")
    )
    is_known = nodes > 1 and steps and None not in sent
    return {
        "node_memory_bytes": None
        if any(None in node for node in memory)
        else max(map(sum, memory)),
        "sent_bytes_per_step": max(sent) * seconds / steps if is_known else None,
        "core_percent": sum(core_use) / base.cores_of(run) if core_use else None,
        "gpu_percent": float(np.mean(gpu_use)) if gpu_use else None,
    }


def _predicted(row: Mapping | None) -> dict:
    """Return the predicted seconds of an epoch with its interval, where there is a prediction."""
    names = [f"predicted{end}_seconds_per_epoch" for end in _ENDS]
    return {name: row and row[name] for name in names}
