"""Expand the settings of an experiment into its runs, in their order, each with its request.

A request holds everything that determines the result of a run, except the data and the code.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from escala.data import kind_of
from escala.experiment import folders
from escala.experiment.runs import (
    ALONE,
    DEFAULT_REFERENCES,
    DUPLICATE,
    NATIVE,
    NO_LINK,
    ONE_PROCESS,
    Configuration,
    Declared,
    Reference,
    Run,
    Rung,
    configuration_of,
    is_compared,
)
from escala.experiment.scaling import weak_growth
from escala.experiment.schema import OF_PROGRAMS, Settings, program_schema
from escala.probes import PROBES
from escala.programs.environment import identity
from escala.strategies import STRATEGIES
from escala.strategies.knobs import read_by_run
from escala.workloads import Workload

T = TypeVar("T")
#: Settings of a workload that a variant may override.
_OVERRIDDEN = ("batch", "learning_rate", "checkpoint_epochs")
#: Keys of a network that determine a run only where they are set.
_LINK_IF_SET = ("transport",)


def tasks(settings: Settings) -> list[tuple[str, str]]:
    """Return each dataset with each workload that reads data of its kind."""
    return [
        (dataset, workload)
        for dataset, described in settings["datasets"].items()
        for workload in settings["workloads"]
        if settings.knows[workload].data_kind == described["kind"]
    ]


def configurations(settings: Settings, workload: str) -> list[Configuration]:
    """Return the configurations of a workload: those of the strategies that can train it.

    An entry with `workloads` is for these workloads only. Only layouts of several nodes use a
    network. A fit is one process, and no knob changes its result. A fit runs as `single` `1x1`,
    with the first variant that is listed for this layout.
    """
    declared = settings.knows[workload]
    listed = [
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
        return [one for one in listed if one[:2] == ONE_PROCESS][:1]
    return listed


def references(settings: Settings) -> list[Reference]:
    """Return the references of an experiment, the main one first.

    If an experiment lists no references, its reference is one process of the first engine with such
    a run. If there is no such run, a program is compared with one process of its strategy.
    """
    if listed := settings.get("references"):
        return listed
    only_programs = all(settings.knows[name].is_program for name in settings["workloads"])
    alone = {
        entry["strategy"]
        for entry in settings["configurations"]
        if ONE_PROCESS[1] in entry["layouts"]
    }
    for strategy, layout in ALONE.values():
        if strategy in alone:
            return [{"strategy": strategy, "layout": layout}]
    if not only_programs or not alone:
        return list(DEFAULT_REFERENCES)
    return [{"strategy": name, "layout": ONE_PROCESS[1]} for name in sorted(alone)]


def _make_run(
    settings: Settings, dataset: str, workload: str, configuration: Configuration, **names: Any
) -> Run:
    """Return a run of a configuration. `names` are its repeat, and its instrument or its series."""
    declared = Declared(
        _with_variant(settings, settings.knows[workload], configuration.variant),
        STRATEGIES[configuration.strategy],
        settings["variants"][configuration.variant],
        settings["networks"][configuration.network] if configuration.layout.nodes > 1 else NO_LINK,
    )
    first = settings["experiment"], dataset, workload, *configuration
    return Run(*first, **names, declared=declared)


def _with_variant(settings: Settings, workload: Workload, variant: str) -> Workload:
    """Return a workload; if it is a program, with what a variant replaces of its declaration."""
    content = settings["variants"][variant]
    replaced = {key: content[key] for key in OF_PROGRAMS if key in content}
    if not (replaced and workload.is_program):
        return workload
    origin, _, _ = str(workload.declared.get("where", workload.folder)).partition(": workloads.")
    where = f"{origin}: variants.{variant}"
    declared = folders.with_interpreter({**workload.declared, **replaced, "where": where}, where)
    return replace(workload, declared=declared)


def _runs_of_tasks(settings: Settings, **names: Any) -> Iterator[Run]:
    """Yield a run of each configuration of each task; for `names` see `_make_run`."""
    for dataset, workload in tasks(settings):
        for configuration in configurations(settings, workload):
            yield _make_run(settings, dataset, workload, configuration, **names)


def most_repeats(settings: Settings) -> int:
    """Return the number of repeats, or the largest one if the session decides when it stops."""
    repeats = settings["repeats"]
    return repeats if isinstance(repeats, int) else repeats["at_most"]


def timing_runs(settings: Settings) -> list[Run]:
    """Return every timing run outside ladders, without duplicates.

    A fit draws no random numbers, and its time is not compared. So a fit is repeated only on other
    splits.
    """
    return [
        run
        for repeat in range(1, most_repeats(settings) + 1)
        for run in _runs_of_tasks(settings, repeat=repeat)
        if is_compared(run) or repeat <= len(settings["datasets"][run.dataset]["split"]["seeds"])
    ]


def probe_runs(settings: Settings, probe: str) -> list[Run]:
    """Return every possible run of a probe. Its setting `repeats` is the number of repeats."""
    repeats = settings[probe].get("repeats")
    return [
        run
        for repeat in (range(1, repeats + 1) if repeats else [None])
        for run in _runs_of_tasks(settings, repeat=repeat, instrument=probe)
        if PROBES[probe].applies(run)
    ]


def rungs(settings: Settings) -> list[Rung]:
    """Return the rungs of every ladder: neighbours, and the ends if these are others.

    A rung without a `label` is called by the settings that differ, each as `key: old → new`.
    """
    result = []
    for ladder, listed in settings["ladders"].items():
        for number, (before, after) in enumerate(itertools.pairwise(listed), start=1):
            sides = configuration_of(before), configuration_of(after)
            old, new = (
                {name: getattr(side, name) for name in ("strategy", "layout", "network")}
                | settings["variants"][side.variant]
                for side in sides
            )
            changes = ", ".join(
                f"{key}: {json.dumps(old.get(key))} → {json.dumps(new.get(key))}"
                for key in old | new
                if old.get(key) != new.get(key)
            )
            label = after.get("label") or changes or "nothing"
            result.append(Rung(f"{ladder}-{number}", ladder, number, *sides, label))
        if len(listed) > 2:
            ends = configuration_of(listed[0]), configuration_of(listed[-1])
            result.append(Rung(f"{ladder}-ends", ladder, None, *ends, None))
    return result


def ladder_runs(settings: Settings) -> list[Run]:
    """Return every run of the ladders' rungs, in the order of execution.

    Each rung is timed in its own series. If all rungs took turns, the product of the neighbours'
    ratios would equal the ratio of the ends by arithmetic. The side of a rung that runs first
    alternates.
    """
    all_rungs = rungs(settings)
    return [
        _make_run(settings, dataset, workload, configuration, repeat=repeat, series=rung.name)
        for dataset, workload in tasks(settings)
        if not settings.knows[workload].is_fitted
        for rung in all_rungs
        for repeat in range(1, most_repeats(settings) + 1)
        for configuration in (rung.before, rung.after)[:: 1 if repeat % 2 else -1]
    ]


def permute(runs: Sequence[T], repeat: int, seed: str) -> list[T]:
    """Return the runs of one repeat in the order of execution.

    The order of a repeat is a row of a balanced Latin square (E. J. Williams, 1949). The seed
    decides the order of its rows, and which run each symbol of the square stands for. With n runs,
    each run has each place once in n repeats. If n is even, each run also follows each other run
    once in n repeats; if n is odd, in 2n repeats. So neither the place nor the previous run favours
    a configuration.

    Parameters
    ----------
    runs : the runs of the repeat. Their order must be equal for all repeats.
    repeat : from 1. The order does not depend on the number of repeats.
    """
    count = len(runs)
    run_of_symbol = Random(seed).sample(runs, count)
    block, row = divmod(repeat - 1, count)
    first = Random(f"{seed} {block}").sample(range(count), count)[row]
    # 0, 1, -1, 2, -2, …: all differences of neighbours are different.
    steps = [(place + 1) // 2 * (1 if place % 2 else -1) for place in range(count)]
    order = [run_of_symbol[(first + step) % count] for step in steps]
    return order[::-1] if count % 2 and block % 2 else order


def interleave(runs: Sequence[Run], seed: str, tasks: Sequence[tuple[str, str]]) -> list[Run]:
    """Return timing runs outside ladders in the order of execution.

    The repeats follow each other. Inside a repeat the tasks follow each other. Inside a task the
    order of the runs is drawn from the seed and the task.
    """
    groups: dict[tuple, list[Run]] = {}
    for run in runs:
        groups.setdefault((run.repeat, run.dataset, run.workload), []).append(run)
    places = {task: place for place, task in enumerate(tasks)}
    return [
        run
        for repeat, *task in sorted(groups, key=lambda group: (group[0], places[group[1:]]))
        for run in permute(groups[repeat, *task], repeat, "/".join([seed, *task]))
    ]


def turns(timed: Sequence[Run]) -> dict[Run, dict[str, int]]:
    """Return for each timing run its `place` in its repeat, from 1, and `of`, the last place.

    A repeat has the runs of one dataset and workload, or the two sides of a ladder's rung. The
    places are valid for a session that measures all runs of the repeat.
    """

    def group(run: Run) -> tuple:
        return (
            run.repeat,
            run.dataset,
            run.workload,
            None if run.series == DUPLICATE else run.series,
        )

    places = {}
    for _, members in itertools.groupby(timed, key=group):
        runs = list(members)
        places |= {run: {"place": n, "of": len(runs)} for n, run in enumerate(runs, start=1)}
    return places


def request(settings: Settings, run: Run) -> dict:
    """Return the request of a run. A probe run takes one epoch, or some steps of it.

    The request of a program also has two parts: `program` determines its results; `start` holds the
    paths of the program and of its data, and does not determine results.
    """
    about_program = {}
    if run.declared.workload.is_program:
        dataset, program = settings["datasets"][run.dataset], run.declared.workload.program()
        package = kind_of(dataset).settings
        paths = package.paths(dataset) if hasattr(package, "paths") else {}
        texts = {name: str(path) for name, path in paths.items()}
        start = {"program": program.as_plan(), "paths": texts}
        about_program = {"program": identity(program), "start": start}
    return {
        **run.names,
        **run_settings(settings, run),
        "launcher": settings["launcher"],
        "oversubscribe": settings["oversubscribe"],
        "probe_settings": probe_settings(settings, run),
        **about_program,
    }


def run_settings(settings: Mapping[str, Any], run: Run) -> dict:
    """Return how a run trains: its settings, the knobs it reads, its link and number of steps."""
    declared, variant = run.declared.workload, run.declared.variant
    # The content of a workload's folder or of a program determines the run; the path does not.
    ignored = {folders.PATH, *(program_schema()["properties"] if declared.is_program else ())}
    workload = settings["workloads"][run.workload]
    training = {key: value for key, value in workload.items() if key not in ignored}
    overridden = _OVERRIDDEN if declared.takes_steps else ()
    if declared.is_program:
        overridden = ("batch",)
    training |= {key: variant[key] for key in overridden if key in variant}
    if growth := weak_growth(settings, run.layout, declared):
        training["weak"] = growth
    link = run.declared.link
    steps = link["steps"]
    if run.instrument:
        steps = PROBES[run.instrument].steps(probe_settings(settings, run)) or steps
    if (run.instrument or steps) and not declared.is_program:
        short = {"epochs": 1, "validate": False, "save_model": False, "checkpoint_epochs": None}
        left_out = ("target_accuracy", "early_stopping")
        training = {k: v for k, v in training.items() if k not in left_out} | short
    knobs = {
        key: value for key, value in variant.items() if key not in (*_OVERRIDDEN, *OF_PROGRAMS)
    }
    return {
        "training": training,
        "knobs": read_by_run(knobs, run.strategy, run.workload, declared.takes_steps),
        "link": {key: link[key] for key in ("interface", "rate")}
        | {key: link[key] for key in _LINK_IF_SET if link.get(key)},
        "max_steps": None if declared.is_program else steps,
    }


def probe_settings(settings: Mapping[str, Any], run: Run) -> dict | None:
    """Return the settings that determine a run of a probe; None for a timing run.

    The result is without `enabled`, and without settings that the probe declares with
    `determines_run: false`.
    """
    if run.instrument is None:
        return None
    declared = PROBES[run.instrument].settings["properties"]
    return {
        key: value
        for key, value in settings[run.instrument].items()
        if key != "enabled" and declared[key].get("determines_run", True)
    }
