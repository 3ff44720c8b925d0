"""Check that the settings of an experiment fit together, which its schema cannot express.

A check takes an experiment and raises `InputError`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from escala.data import kind_of
from escala.experiment.references import NATIVE, ONE_PROCESS, Configuration
from escala.experiment.runs import asked_by, configuration_of, takes_steps
from escala.runtime.launch import LOCAL
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES
from escala.workloads import WORKLOADS

if TYPE_CHECKING:
    from escala.experiment.matrix import Experiment


def _check_datasets(experiment: Experiment) -> None:
    for name, settings in experiment.datasets.items():
        kind_of(settings).load("settings").check(name, settings, experiment.error)


def _check_kinds(experiment: Experiment) -> None:
    """Refuse a dataset that no workload reads, and a workload without a dataset that it reads."""
    kinds = {settings["kind"] for settings in experiment.datasets.values()}
    read = {name: WORKLOADS[name].data_kind for name in experiment.settings["workloads"]}
    for name, settings in experiment.datasets.items():
        if settings["kind"] not in read.values():
            able = [w for w, each in WORKLOADS.items() if each.data_kind == settings["kind"]]
            raise experiment.error(
                f"datasets.{name}.kind",
                settings["kind"],
                "no workload of the experiment reads data of this kind",
                f"add one of {', '.join(able)} to workloads" if able else "add a workload for it",
            )
    for name, kind in read.items():
        if kind not in kinds:
            raise experiment.error(
                f"workloads.{name}",
                name,
                f"reads data of the kind {kind}, and the experiment has no such dataset",
                "add one, or leave the workload out",
            )


def _check_configurations(experiment: Experiment) -> None:
    for position, entry in enumerate(experiment.settings["configurations"]):
        if entry["strategy"] not in STRATEGIES:
            raise experiment.error(
                f"configurations.{position}.strategy",
                entry["strategy"],
                "no such strategy",
                f"use one of {', '.join(STRATEGIES)}",
            )
        for part in ("variants", "networks"):
            known = experiment.settings[part]
            for name in entry.get(part, []):
                if name not in known:
                    raise experiment.error(
                        f"configurations.{position}.{part}",
                        name,
                        f"no such {part.removesuffix('s')}",
                        f"use one of {', '.join(known)}",
                    )
    files = experiment.run_files()
    repeated = {file for file in files if files.count(file) > 1}
    if repeated:
        raise experiment.error(
            "configurations",
            min(repeated),
            "asked for twice",
            "name each strategy, layout and variant once",
        )


def _check_references(experiment: Experiment) -> None:
    """Refuse a reference that is never measured: nothing would be compared with it."""
    configurations = {run.configuration for run in experiment.runs if takes_steps(run)}
    known = {"strategy": STRATEGIES, "variant": experiment.settings["variants"]}
    for position, reference in enumerate(experiment.settings.get("references", [])):
        for part, names in known.items():
            if part in reference and reference[part] not in names:
                raise experiment.error(
                    f"references.{position}.{part}",
                    reference[part],
                    f"no such {part}",
                    f"use one of {', '.join(names)}",
                )
        if configurations and not any(
            reference.items() <= configuration._asdict().items() for configuration in configurations
        ):
            measured = ", ".join(sorted(map(str, configurations)))
            raise experiment.error(
                f"references.{position}",
                " ".join(reference[part] for part in Configuration._fields if part in reference),
                "is not among the configurations",
                f"add it there, or name one of {measured}",
            )


def _check_ladders(experiment: Experiment) -> None:
    settings = experiment.settings
    for name, rungs in settings["ladders"].items():
        for position, rung in enumerate(rungs):
            several = Layout.parse(rung["layout"]).nodes > 1
            networks = settings["networks"] if several else {NATIVE, *settings["networks"]}
            known = {"strategy": STRATEGIES, "variant": settings["variants"]}
            for part, names in (known | {"network": networks}).items():
                if rung[part] not in names:
                    raise experiment.error(
                        f"ladders.{name}.{position}.{part}",
                        rung[part],
                        f"no such {part}",
                        f"use one of {', '.join(names)}",
                    )
            key = f"ladders.{name}.{position}"
            _check_layout(experiment, f"{key}.layout", rung["strategy"], rung["layout"])
            if several and settings["networks"][rung["network"]]["steps"]:
                raise experiment.error(
                    f"{key}.network",
                    rung["network"],
                    "has steps: an epoch is cut short there, and a ladder compares whole ones",
                    f"name another network, or leave networks.{rung['network']}.steps out",
                )
            if configuration_of(rung) in map(configuration_of, rungs[:position]):
                raise experiment.error(
                    key,
                    " ".join(configuration_of(rung)),
                    "stands on this ladder already, and nothing lies between it and itself",
                    "name each strategy, layout, variant and network once",
                )
    if settings["ladders"] and not experiment.paired:
        raise experiment.error(
            "ladders",
            list(settings["ladders"]),
            "no workload is trained by gradient steps, and a fit has no epochs to compare",
            "add the workload virus-cnn, or leave ladders out",
        )


def _check_layouts(experiment: Experiment) -> None:
    for entry in experiment.settings["configurations"]:
        for layout in entry["layouts"]:
            key = f"configurations: {entry['strategy']}"
            _check_layout(experiment, key, entry["strategy"], layout)


def _check_layout(experiment: Experiment, key: str, name: str, layout: str) -> None:
    strategy, parsed = STRATEGIES[name], Layout.parse(layout)
    if strategy.only_one_rank and parsed.ranks > 1:
        raise experiment.error(key, layout, "this strategy has one process", "use layout 1x1")
    if strategy.only_one_node and parsed.nodes > 1:
        raise experiment.error(key, layout, "this strategy stays on one node", "use a layout 1xN")


def _check_launcher(experiment: Experiment) -> None:
    """Refuse to start by hand processes that find each other through MPI, or on other machines."""
    if experiment.settings["launcher"] != LOCAL:
        return
    for run in experiment.timed:
        layout, strategy = Layout.parse(run.layout), STRATEGIES[run.strategy]
        if layout.nodes > 1 or (strategy.mpi and layout.ranks > 1):
            raise experiment.error(
                "launcher",
                LOCAL,
                f"cannot start {run.strategy} {run.layout}",
                "use auto, or leave that configuration out",
            )


def _check_slowdown(experiment: Experiment) -> None:
    for run in experiment.timed:
        strategy = STRATEGIES[run.strategy]
        apart = strategy.asynchronous or strategy.one_process_per_node
        if apart and experiment.settings["variants"][run.variant]["slowdown"]:
            raise experiment.error(
                asked_by(run),
                run.variant,
                "slowdown is for strategies whose ranks are processes that step together",
                "use busy_neighbours, or another strategy",
            )


def _check_slow_ranks(experiment: Experiment) -> None:
    """Refuse to slow ranks that no layout has: nothing would be slow, and nothing would say so."""
    most: dict[str, int] = {}
    for run in experiment.timed:
        most[run.variant] = max(most.get(run.variant, 0), Layout.parse(run.layout).ranks)
    for name, ranks in most.items():
        variant = experiment.settings["variants"][name]
        named = {
            "slowdown": len(variant["slowdown"]),
            "busy_neighbours": max(variant["busy_neighbours"], default=-1) + 1,
        }
        for knob, needed in named.items():
            if needed > ranks:
                raise experiment.error(
                    f"variants.{name}.{knob}",
                    variant[knob],
                    f"names rank {needed - 1}, and no layout under this variant has it",
                    f"name ranks 0 to {ranks - 1}, or add a layout",
                )


def _check_fitted(experiment: Experiment) -> None:
    """Refuse a workload that would have no run at all."""
    strategy, layout = ONE_PROCESS
    for name in experiment.settings["workloads"]:
        if not experiment.configurations_of(name):
            raise experiment.error(
                f"workloads.{name}",
                name,
                f"is fitted in one process, and the experiment lists no {strategy} {layout}",
                f"add {{strategy: {strategy}, layouts: [{layout}]}} to configurations",
            )


def _check_targets(experiment: Experiment) -> None:
    for name, workload in experiment.settings["workloads"].items():
        if WORKLOADS[name].kind == "fit":
            continue
        if "target_accuracy" in workload and not workload["validate"]:
            raise experiment.error(
                f"workloads.{name}.target_accuracy",
                workload["target_accuracy"],
                "time to accuracy needs the accuracy after each epoch",
                "set validate: true, or leave target_accuracy out",
            )
        stopping = workload.get("early_stopping")
        if stopping and stopping["monitor"] == "validation" and not workload["validate"]:
            raise experiment.error(
                f"workloads.{name}.early_stopping.monitor",
                stopping["monitor"],
                "the validation loss is not computed",
                "set validate: true, or monitor: training",
            )
        for run in experiment.timed:
            if run.workload != name:
                continue
            ranks = Layout.parse(run.layout).ranks
            batch = experiment.settings_of(run)["training"]["batch"]
            if batch["per"] == "global" and batch["rows"] < ranks:
                of_variant = "batch" in experiment.settings["variants"][run.variant]
                owner = f"variants.{run.variant}" if of_variant else f"workloads.{name}"
                raise experiment.error(
                    f"{owner}.batch.rows",
                    batch["rows"],
                    f"leaves some of the {ranks} ranks of {run.layout} without rows",
                    "use a larger batch",
                )


CHECKS: tuple[Callable[[Experiment], None], ...] = (
    _check_datasets,
    _check_kinds,
    _check_configurations,
    _check_references,
    _check_ladders,
    _check_layouts,
    _check_launcher,
    _check_slowdown,
    _check_slow_ranks,
    _check_fitted,
    _check_targets,
)
