"""Expand the settings of an experiment into its runs, in the order of the file."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from escala.experiment.references import (
    ALONE,
    DEFAULT_REFERENCES,
    NATIVE,
    ONE_PROCESS,
    Configuration,
    Reference,
)
from escala.experiment.runs import NO_LINK, Declared, Run, Rung, configuration_of, is_compared
from escala.experiment.schema import Settings
from escala.probes import PROBES
from escala.strategies import STRATEGIES


def tasks(settings: Settings) -> list[tuple[str, str]]:
    """Return each dataset with each workload that reads data of its kind."""
    return [
        (dataset, workload)
        for dataset, described in settings["datasets"].items()
        for workload in settings["workloads"]
        if settings.knows[workload].data_kind == described["kind"]
    ]


def configurations(settings: Settings, workload: str) -> list[Configuration]:
    """Return the configurations that a workload runs in, of the strategies that can train it.

    An entry that names workloads is for them alone. Only layouts of several nodes use a network. A
    fit is one process, and no knob changes its result: it runs as `single` `1x1`, under the first
    variant of that configuration.
    """
    declared = settings.knows[workload]
    found = [
        Configuration(entry["strategy"], layout, variant, network)
        for entry in settings["configurations"]
        if workload in entry.get("workloads", [workload])
        if STRATEGIES[entry["strategy"]].runs(declared)
        for layout in entry["layouts"]
        for variant in entry.get("variants", settings["variants"])
        for network in (
            entry.get("networks", settings["networks"]) if layout.nodes > 1 else [NATIVE]
        )
    ]
    if declared.is_fitted:
        return [each for each in found if each[:2] == ONE_PROCESS][:1]
    return found


def references(settings: Settings) -> list[Reference]:
    """Return the references of an experiment, the main one first.

    If an experiment lists no references, and has no run of one process of the first engine, it is
    compared with that of the first engine that has one, and programs with their own strategies on
    one process.
    """
    if listed := settings.get("references"):
        return listed
    programs = all(settings.knows[name].is_program for name in settings["workloads"])
    alone = {
        entry["strategy"]
        for entry in settings["configurations"]
        if ONE_PROCESS[1] in entry["layouts"]
    }
    for strategy, layout in ALONE.values():
        if strategy in alone:
            return [{"strategy": strategy, "layout": layout}]
    if not programs or not alone:
        return list(DEFAULT_REFERENCES)
    return [{"strategy": name, "layout": ONE_PROCESS[1]} for name in sorted(alone)]


def _run(
    settings: Settings, dataset: str, workload: str, configuration: Configuration, **last: Any
) -> Run:
    declared = Declared(
        settings.knows[workload],
        STRATEGIES[configuration.strategy],
        settings["variants"][configuration.variant],
        settings["networks"][configuration.network] if configuration.layout.nodes > 1 else NO_LINK,
    )
    names = settings["experiment"], dataset, workload, *configuration
    return Run(*names, **last, declared=declared)


def _cells(settings: Settings, **last: Any) -> Iterator[Run]:
    for dataset, workload in tasks(settings):
        for configuration in configurations(settings, workload):
            yield _run(settings, dataset, workload, configuration, **last)


def timing_runs(settings: Settings) -> list[Run]:
    """Return every timing run outside ladders, without duplicates.

    A fit draws no random numbers, and its time is not compared, so it is repeated only on other
    splits.
    """
    return [
        run
        for repeat in range(1, settings["repeats"] + 1)
        for run in _cells(settings, repeat=repeat)
        if is_compared(run) or repeat <= len(settings["datasets"][run.dataset]["split"]["seeds"])
    ]


def probe_runs(settings: Settings, probe: str) -> list[Run]:
    """Return every possible run of a probe; its setting `repeats` is the number of each."""
    repeats = settings[probe].get("repeats")
    return [
        run
        for repeat in (range(1, repeats + 1) if repeats else [None])
        for run in _cells(settings, repeat=repeat, instrument=probe)
        if PROBES[probe].applies(run)
    ]


def rungs(settings: Settings) -> list[Rung]:
    """Return the rungs of every ladder: neighbours, and the ends if these are others."""
    found = []
    for ladder, rungs in settings["ladders"].items():
        for number, (before, after) in enumerate(itertools.pairwise(rungs), start=1):
            sides = configuration_of(before), configuration_of(after)
            change = after.get("label") or _change(*sides, settings["variants"])
            found.append(Rung(f"{ladder}-{number}", ladder, number, *sides, change))
        if len(rungs) > 2:
            ends = configuration_of(rungs[0]), configuration_of(rungs[-1])
            found.append(Rung(f"{ladder}-ends", ladder, None, *ends, None))
    return found


def _change(before: Configuration, after: Configuration, variants: Mapping[str, dict]) -> str:
    """Return which settings of two rungs differ, each as `key: old → new`."""
    old, new = (
        {name: getattr(each, name) for name in ("strategy", "layout", "network")}
        | variants[each.variant]
        for each in (before, after)
    )
    changes = (
        f"{key}: {json.dumps(old.get(key))} → {json.dumps(new.get(key))}"
        for key in old | new
        if old.get(key) != new.get(key)
    )
    return ", ".join(changes) or "nothing"


def ladder_runs(settings: Settings) -> list[Run]:
    """Return every run of the ladders' rungs, in the order of execution.

    Each rung is timed in its own series. If all rungs took turns, the product of the neighbours'
    ratios would equal the ratio of the ends by arithmetic. The first side of a rung alternates.
    """
    found = rungs(settings)
    return [
        _run(settings, dataset, workload, configuration, repeat=repeat, series=rung.name)
        for dataset, workload in tasks(settings)
        if not settings.knows[workload].is_fitted
        for rung in found
        for repeat in range(1, settings["repeats"] + 1)
        for configuration in (rung.before, rung.after)[:: 1 if repeat % 2 else -1]
    ]
