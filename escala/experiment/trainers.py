"""Checks of an experiment: whether its strategies can train its workloads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from escala.core.engines import ENGINES
from escala.experiment.expand import configurations
from escala.experiment.references import ONE_PROCESS
from escala.experiment.schema import Settings
from escala.strategies import STRATEGIES

Fault = tuple[str, object, str, str]


def engines(settings: Settings) -> Iterator[Fault]:
    """Refuse a strategy of an engine for which a workload that is trained by steps has no model."""
    for position, entry in enumerate(settings["configurations"]):
        key = f"configurations.{position}.strategy"
        yield from untrained(key, entry["strategy"], _named(entry, settings), settings)


def _named(entry: Mapping[str, Any], settings: Settings) -> Iterable[str]:
    """Return the names of the workloads that a configuration is for."""
    return entry.get("workloads", settings["workloads"])


def untrained(key: str, name: str, workloads: Iterable[str], settings: Settings) -> Iterator[Fault]:
    """Refuse a strategy that a key names, if its engine has no model of one of some workloads."""
    strategy = STRATEGIES.get(name)
    if strategy is None or "steps" not in strategy.trains_by:
        return
    engine = strategy.engine.partition(".")[0]
    for workload in workloads:
        declared = settings.knows[workload]
        if declared.kind != "steps" or engine in declared.engines:
            continue
        reason = f"trains by {engine}, and {workload} has no {ENGINES[engine].module}.py"
        usable = [
            name
            for name, each in STRATEGIES.items()
            if "steps" in each.trains_by and each.engine.partition(".")[0] in declared.engines
        ]
        yield key, name, reason, f"use one of {', '.join(usable)}, or write that file"


def every_workload_runs(settings: Settings) -> Iterator[Fault]:
    """Refuse a workload without a run, and a strategy that trains none of the workloads."""
    for position, entry in enumerate(settings["configurations"]):
        kinds = {settings.knows[name].kind for name in _named(entry, settings)}
        if not kinds & STRATEGIES[entry["strategy"]].trains_by and kinds != {"fit"}:
            reason = "starts programs only, workloads with trained_by: command"
            if "command" in kinds:
                reason = "lives inside a framework, and cannot start a program that is run as it is"
            remedy = f"use one of {', '.join(_strategies_for(kinds))}"
            yield f"configurations.{position}.strategy", entry["strategy"], reason, remedy
    for name in settings["workloads"]:
        if configurations(settings, name):
            continue
        if settings.knows[name].kind != "fit":
            reason = "no strategy of the configurations can train it"
            usable = _strategies_for({settings.knows[name].kind})
            remedy = f"add one of {', '.join(usable)} to configurations"
        else:
            strategy, layout = ONE_PROCESS
            reason = (
                "is fitted in one process, and the experiment does not list the strategy "
                f"{strategy} with the layout {layout}"
            )
            remedy = f"add {{strategy: {strategy}, layouts: [{layout}]}} to configurations"
        yield f"workloads.{name}", name, reason, remedy


def _strategies_for(kinds: set[str]) -> list[str]:
    return [name for name, each in STRATEGIES.items() if kinds & each.trains_by]
