"""Checks of an experiment that its schema cannot express: whether its settings fit together.

A check yields a fault: the key, its value, the reason and the remedy.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from escala.core.engines import ENGINES
from escala.core.readable import with_noun
from escala.experiment.expand import configurations, ladder_runs, run_settings, timing_runs
from escala.experiment.runs import (
    NATIVE,
    ONE_PROCESS,
    Configuration,
    Run,
    configuration_of,
    is_compared,
    resolve,
    takes_steps,
    where_listed,
)
from escala.experiment.scaling import check_names
from escala.experiment.schema import OF_PROGRAMS, Settings
from escala.probes import PROBES
from escala.runtime.launch import LOCAL
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES
from escala.strategies.knobs import all_knobs, reads, workload_knobs
from escala.workloads import Workload

if TYPE_CHECKING:
    from escala.experiment.matrix import Experiment

Fault = tuple[str, object, str, str]


def faults_of_names(settings: Settings) -> Iterator[Fault]:
    """Yield the faults of names: unknown ones, workloads without data, and data without a workload.

    Parameters
    ----------
    settings : settings that the schema allows, with every default.
    """
    kinds = {dataset["kind"] for dataset in settings["datasets"].values()}
    kinds_read = {name: settings.knows[name].data_kind for name in settings["workloads"]}
    for name, dataset in settings["datasets"].items():
        kind = dataset["kind"]
        if kind not in kinds_read.values():
            usable = [
                name for name, workload in settings.knows.items() if workload.data_kind == kind
            ]
            reason = "no workload of the experiment reads data of this kind"
            remedy = f"add a workload with data_kind: {kind}"
            if usable:
                remedy = f"add one of {', '.join(usable)} to workloads"
            yield f"datasets.{name}.kind", kind, reason, remedy
    for name, kind in kinds_read.items():
        if kind not in kinds:
            reason = f"reads data of the kind {kind}, and the experiment has no such dataset"
            yield f"workloads.{name}", name, reason, "add one, or leave the workload out"
    for position, entry in enumerate(settings["configurations"]):
        key, strategy = f"configurations.{position}", entry["strategy"]
        yield from check_names(f"{key}.strategy", [strategy], "strategy", STRATEGIES)
        for part in ("variants", "networks", "workloads"):
            names, known = entry.get(part, []), settings[part]
            yield from check_names(f"{key}.{part}", names, part.removesuffix("s"), known)
        workloads = entry.get("workloads", settings["workloads"])
        known_workloads = [name for name in workloads if name in settings["workloads"]]
        yield from _check_models(f"{key}.strategy", strategy, known_workloads, settings)
    for position, reference in enumerate(settings.get("references", [])):
        yield from _check_parts(settings, f"references.{position}", reference)
    for name, rungs in settings["ladders"].items():
        for position, rung in enumerate(rungs):
            key, strategy = f"ladders.{name}.{position}", rung["strategy"]
            yield from _check_parts(settings, key, rung)
            yield from _check_models(f"{key}.strategy", strategy, settings["workloads"], settings)


def faults_of_runs(settings: Settings) -> Iterator[Fault]:
    """Yield the faults of settings that contradict each other. All names in them are known."""
    listed = timing_runs(settings)
    runs = [*listed, *ladder_runs(settings)]
    files = Counter(run.file for run in listed)
    if repeated := [file for file, times in files.items() if times > 1]:
        remedy = "name each strategy, layout, variant and network once"
        yield "configurations", min(repeated), "this run is listed twice", remedy
    compared = {run.configuration for run in listed if is_compared(run)}
    for position, reference in enumerate(settings.get("references", [])):
        if compared and all(
            resolve(reference, configuration) != configuration for configuration in compared
        ):
            name = " ".join(reference[part] for part in Configuration._fields if part in reference)
            remedy = f"add it there, or name one of {', '.join(sorted(map(str, compared)))}"
            yield f"references.{position}", name, "is not among the configurations", remedy
    for position, entry in enumerate(settings["configurations"]):
        for number, layout in enumerate(entry["layouts"]):
            key = f"configurations.{position}.layouts.{number}"
            yield from _check_layout(key, entry["strategy"], layout)
    yield from _check_ladders(settings)
    yield from _check_stopping(settings)
    for run in runs:
        yield from _check_run(settings, run)
    yield from _check_slow_ranks(settings, runs)
    yield from _check_that_all_run(settings)
    yield from _check_programs(settings, runs)
    # These settings need the accuracy or the loss after each epoch.
    for name, workload in settings["workloads"].items():
        if not settings.knows[name].takes_steps or workload["validate"]:
            continue
        if "target_accuracy" in workload:
            reason = "time to accuracy needs the accuracy after each epoch"
            remedy = "set validate: true, or leave target_accuracy out"
            yield f"workloads.{name}.target_accuracy", workload["target_accuracy"], reason, remedy
        monitor = workload.get("early_stopping", {}).get("monitor")
        if monitor == "validation":
            key, reason = f"workloads.{name}.early_stopping.monitor", "the validation loss is not"
            yield key, monitor, f"{reason} computed", "set validate: true, or monitor: training"
    for run in runs:
        workload, ranks = run.declared.workload, run.layout.ranks
        named = workload.program().placeholders if workload.is_program else set()
        if {"rows", "rows_of_rank"} & named or takes_steps(run):
            section, batch = f"variants.{run.variant}", run.declared.variant.get("batch")
            if batch is None:
                section = f"workloads.{run.workload}"
                batch = settings["workloads"][run.workload]["batch"]
            if batch["per"] == "global" and batch["rows"] < ranks:
                reason = f"leaves some of the {ranks} ranks of {run.layout} without rows"
                yield f"{section}.batch.rows", batch["rows"], reason, "use a larger batch"


def _check_parts(settings: Settings, key: str, parts: Mapping[str, str]) -> Iterator[Fault]:
    """Refuse a reference or a rung that names an unknown strategy, variant or network."""
    networks = settings["networks"]
    multi_node = Layout.parse(parts["layout"]).nodes > 1
    known = {
        "strategy": STRATEGIES,
        "variant": settings["variants"],
        "network": networks if multi_node else dict.fromkeys([NATIVE, *networks]),
    }
    for part, names in known.items():
        if part in parts:
            yield from check_names(f"{key}.{part}", [parts[part]], part, names)


def _check_ladders(settings: Settings) -> Iterator[Fault]:
    """Refuse ladders if no workload is trained by steps, and wrong rungs.

    A rung is wrong if its strategy cannot have its layout, if its network sets `steps`, or if the
    rung is listed twice.
    """
    for name, rungs in settings["ladders"].items():
        for position, rung in enumerate(rungs):
            key, network = f"ladders.{name}.{position}", rung["network"]
            yield from _check_layout(
                f"{key}.layout", rung["strategy"], configuration_of(rung).layout
            )
            multi_node = configuration_of(rung).layout.nodes > 1
            if multi_node and settings["networks"][network]["steps"]:
                reason = "sets `steps`, so its epochs are cut short; a ladder needs whole epochs"
                remedy = f"name another network, or leave networks.{network}.steps out"
                yield f"{key}.network", network, reason, remedy
            if configuration_of(rung) in map(configuration_of, rungs[:position]):
                reason = "is already a rung of this ladder"
                remedy = "name each strategy, layout, variant and network once"
                yield key, " ".join(configuration_of(rung)), reason, remedy
    if settings["ladders"] and not ladder_runs(settings):
        kinds = {dataset["kind"] for dataset in settings["datasets"].values()}
        usable = [
            name
            for name, workload in settings.knows.items()
            if workload.takes_steps and workload.data_kind in kinds
        ]
        reason = "no workload is trained by gradient steps, and a fit has no epochs to compare"
        remedy = "leave ladders out"
        if usable:
            remedy = f"add one of the workloads {', '.join(usable)}, or {remedy}"
        yield "ladders", list(settings["ladders"]), reason, remedy


def _check_stopping(settings: Settings) -> Iterator[Fault]:
    """Refuse `repeats` without a number, if the times of a session do not decide when it stops."""
    if isinstance(settings["repeats"], int):
        return
    remedy = "give repeats a number"
    if settings["ladders"]:
        reason = "ladders have paired runs of their own, which do not decide when the session stops"
        yield "repeats", list(settings["ladders"]), reason, f"{remedy}, or leave ladders out"
    if settings["jobs_by_nodes"]:
        reason = "divides the session that decides when it stops"
        yield "jobs_by_nodes", True, reason, f"leave jobs_by_nodes out, or {remedy}"
    if settings["question"] != "time":
        reason = "is not decided by the times of runs"
        yield "question", settings["question"], reason, remedy


def _check_layout(key: str, name: str, layout: Layout) -> Iterator[Fault]:
    """Refuse a layout with more ranks or nodes than the strategy can have."""
    strategy = STRATEGIES[name]
    if strategy.layouts.one_rank and layout.ranks > 1:
        yield key, layout, "this strategy has one process", "use the layout 1x1"
    if strategy.layouts.one_node and layout.nodes > 1:
        yield key, layout, "this strategy stays on one node", "use a layout 1xN"


def _check_run(settings: Settings, run: Run) -> Iterator[Fault]:
    """Refuse a run that the launcher cannot start, and knobs that the run cannot have."""
    strategy, variant, layout = run.declared.strategy, run.declared.variant, run.layout
    needs_launcher = layout.nodes > 1 or (strategy.meets_by == "mpi" and layout.ranks > 1)
    if settings["launcher"] == LOCAL and needs_launcher:
        reason = f"cannot start {run.strategy} {layout}"
        yield "launcher", LOCAL, reason, "use auto, or leave that configuration out"
    if variant["slowdown"] and (not strategy.waits() or strategy.layouts.process_per_node):
        reason = "slowdown needs a synchronous strategy with one process per rank"
        remedy = "use busy_neighbours, or another strategy"
        yield where_listed(run), run.variant, reason, remedy
    leave_out = f"leave {run.strategy} {layout} {run.variant} out"
    # These knobs let ranks exchange while they compute. Ranks of an asynchronous strategy make no
    # step together. With `accumulation`, a rank with fewer rows than parts would exchange less
    # often.
    for name, knob in workload_knobs(run.workload).items():
        if variant[name] not in knob.exchanging:
            continue
        if not strategy.waits():
            reason = f"needs ranks that make each step together, unlike those of {run.strategy}"
        elif variant["accumulation"] > 1:
            reason = f"needs accumulation: 1, and this variant sets {variant['accumulation']}"
        else:
            continue
        allowed = [knob.default, *knob.schema.get("enum", ())]
        usable = [value for value in allowed if value not in knob.exchanging]
        remedy = f"use {usable[0]}, or {leave_out}" if usable else leave_out
        yield f"variants.{run.variant}.{name}", variant[name], reason, remedy
    if takes_steps(run):
        wanted = run_settings(settings, run)
        knobs, every = wanted["knobs"], wanted["training"].get("checkpoint_epochs")
        for name, reason, remedy in strategy.find_refusals(knobs, every):
            key, value = f"variants.{run.variant}.{name}", knobs[name]
            yield key, value, reason, f"{remedy}, or {leave_out}"
    fractions = variant["fractions"]
    if reads(run.strategy, "fractions") and fractions is not None:
        remedy = f"give a fraction for each rank of {layout}, or leave this knob out"
        key, reason = f"variants.{run.variant}.fractions", "gives no rank any rows"
        if len(fractions) != layout.ranks:
            number = with_noun(len(fractions), "fraction")
            reason = f"has {number}, and {layout} has {with_noun(layout.ranks, 'rank')}"
        if len(fractions) != layout.ranks or not sum(fractions):
            yield key, fractions, reason, remedy


def _check_slow_ranks(settings: Settings, runs: Sequence[Run]) -> Iterator[Fault]:
    """Refuse `slowdown` and `busy_neighbours` for ranks that no layout has."""
    most_ranks: Counter[str] = Counter()
    for run in runs:
        most_ranks[run.variant] = max(most_ranks[run.variant], run.layout.ranks)
    for name, ranks in most_ranks.items():
        variant = settings["variants"][name]
        busy = max(variant["busy_neighbours"], default=-1) + 1
        for knob, needed, remedy in (
            ("slowdown", len(variant["slowdown"]), f"give at most {ranks} factors"),
            ("busy_neighbours", busy, f"name ranks 0 to {ranks - 1}"),
        ):
            if needed > ranks:
                reason = f"applies to rank {needed - 1}, which no layout of this variant has"
                yield f"variants.{name}.{knob}", variant[knob], reason, f"{remedy}, or add a layout"


def _check_programs(settings: Settings, runs: Sequence[Run]) -> Iterator[Fault]:
    """Refuse a program that cannot be started, and paths that its dataset does not have.

    A network may not set `steps`: Escala cannot cut an epoch of a program to some of its steps.
    """
    for run in {(run.dataset, run.workload, run.variant): run for run in runs}.values():
        variant = f"variants.{run.variant}"
        if not run.declared.workload.is_program:
            for key in OF_PROGRAMS:
                if key in run.declared.variant:
                    reason = f"is of a program, and {run.workload} is none"
                    yield f"{variant}.{key}", run.declared.variant[key], reason, "leave it out"
            continue
        program, described = run.declared.workload.program(), settings["datasets"][run.dataset]
        is_files = described["kind"] == "files"
        known = sorted(described.get("paths", {})) if is_files else ["split"]
        section = variant if "command" in run.declared.variant else f"workloads.{run.workload}"
        for path in program.data:
            if path not in known:
                reason = f"the dataset {run.dataset} has no such path"
                remedy = f"name one of {', '.join(known)}"
                remedy = remedy if known else f"add it to datasets.{run.dataset}.paths"
                yield f"{section}.command", f"{{data.{path}}}", reason, remedy
    for name in settings["workloads"]:
        for network, link in settings["networks"].items():
            if link["steps"] and settings.knows[name].is_program:
                reason = f"{name} is a program, whose epochs are measured whole"
                yield f"networks.{network}.steps", link["steps"], reason, "leave steps out"


def _check_models(
    key: str, name: str, workloads: Iterable[str], settings: Settings
) -> Iterator[Fault]:
    """Refuse the strategy `name` under `key` if its engine has no model of a workload."""
    strategy = STRATEGIES.get(name)
    if strategy is None or not strategy.engine:
        return
    engine = strategy.engine.partition(".")[0]
    for workload in workloads:
        declared = settings.knows[workload]
        if not declared.takes_steps or engine in declared.engines:
            continue
        reason = f"trains by {engine}, and {workload} has no {ENGINES[engine].module}.py"
        usable = [
            other
            for other, candidate in STRATEGIES.items()
            if candidate.engine and candidate.engine.partition(".")[0] in declared.engines
        ]
        yield key, name, reason, f"use one of {', '.join(usable)}, or write that file"


def _check_that_all_run(settings: Settings) -> Iterator[Fault]:
    """Refuse a workload without a run, and a strategy that trains no workload of the experiment."""
    for position, entry in enumerate(settings["configurations"]):
        workloads = entry.get("workloads", settings["workloads"])
        known = [settings.knows[name] for name in workloads]
        runs = map(STRATEGIES[entry["strategy"]].runs, known)
        if not any(runs) and not all(workload.is_fitted for workload in known):
            reason = "starts programs only, workloads with a command"
            if any(workload.is_program for workload in known):
                reason = "lives inside a framework, and cannot start a program that is run as it is"
            remedy = f"use one of {', '.join(_strategies_for(known))}"
            yield f"configurations.{position}.strategy", entry["strategy"], reason, remedy
    for name in settings["workloads"]:
        if configurations(settings, name):
            continue
        if not settings.knows[name].is_fitted:
            reason = "no strategy of the configurations can train it"
            usable = _strategies_for([settings.knows[name]])
            remedy = f"add one of {', '.join(usable)} to configurations"
        else:
            strategy, layout = ONE_PROCESS
            reason = (
                "is fitted in one process, and the experiment does not list the strategy "
                f"{strategy} with the layout {layout}"
            )
            remedy = f"add {{strategy: {strategy}, layouts: [{layout}]}} to configurations"
        yield f"workloads.{name}", name, reason, remedy


def _strategies_for(workloads: Iterable[Workload]) -> list[str]:
    """Return the names of the strategies that train at least one of some workloads."""
    return [name for name, strategy in STRATEGIES.items() if any(map(strategy.runs, workloads))]


def find_unread(experiment: Experiment) -> Iterator[str]:
    """Yield a sentence on each knob and each probe that an experiment sets and no run reads.

    A probe that is on by default counts as not set.
    """
    read: dict[str, set[str]] = {}  # The knobs that runs read, by variant.
    known = all_knobs()
    for run in experiment.timed:
        read.setdefault(run.variant, set()).update(experiment.settings_of(run)["knobs"])
    for name in read:
        for knob, value in experiment.settings["variants"][name].items():
            if knob in known and value != known[knob].default and knob not in read[name]:
                yield f"variants.{name}.{knob} is set, and no run of the variant reads it."
    for name, probe in PROBES.items():
        by_default = probe.settings["properties"]["enabled"]["default"]
        is_chosen = experiment.settings[name]["enabled"] and not by_default
        if is_chosen and not experiment.runs_under(name):
            yield f"{name} is enabled, and applies to no run of the experiment."
