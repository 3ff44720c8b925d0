"""Checks of an experiment that its schema cannot express: whether its settings fit together.

A check takes an experiment and raises `InputError`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from escala.core.readable import counted
from escala.data import kind_of
from escala.experiment.references import NATIVE, ONE_PROCESS, Configuration, resolve
from escala.experiment.runs import Run, configuration_of, is_compared, takes_steps, where_listed
from escala.runtime.launch import LOCAL
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES
from escala.strategies.knobs import of_workload
from escala.workloads import WORKLOADS

if TYPE_CHECKING:
    from escala.experiment.matrix import Experiment


def _check_datasets(experiment: Experiment) -> None:
    for name, settings in experiment.datasets.items():
        kind_of(settings).load("settings").check(name, settings, experiment.error)


def _check_kinds(experiment: Experiment) -> None:
    """Refuse a dataset that no workload reads, and a workload without a dataset that it reads."""
    kinds = {settings["kind"] for settings in experiment.datasets.values()}
    kind_read_by = {name: WORKLOADS[name].data_kind for name in experiment.settings["workloads"]}
    for name, settings in experiment.datasets.items():
        if settings["kind"] not in kind_read_by.values():
            candidates = [
                name
                for name, workload in WORKLOADS.items()
                if workload.data_kind == settings["kind"]
            ]
            raise experiment.error(
                f"datasets.{name}.kind",
                settings["kind"],
                "no workload of the experiment reads data of this kind",
                f"add one of {', '.join(candidates)} to workloads"
                if candidates
                else "add a workload for it",
            )
    for name, kind in kind_read_by.items():
        if kind not in kinds:
            raise experiment.error(
                f"workloads.{name}",
                name,
                f"reads data of the kind {kind}, and the experiment has no such dataset",
                "add one, or leave the workload out",
            )


def _check_configurations(experiment: Experiment) -> None:
    """Refuse unknown strategies, variants and networks, and runs that are listed twice."""
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
    repeated = [file for file, times in Counter(experiment.run_files()).items() if times > 1]
    if repeated:
        raise experiment.error(
            "configurations",
            min(repeated),
            "this run is listed twice",
            "name each strategy, layout, variant and network once",
        )


def _check_references(experiment: Experiment) -> None:
    """Refuse a reference with an unknown part, and one that no run measures."""
    configurations = {run.configuration for run in experiment.runs if is_compared(run)}
    for position, reference in enumerate(experiment.settings.get("references", [])):
        key = f"references.{position}"
        _check_names(experiment, key, reference)
        if configurations and not any(
            resolve(reference, configuration) == configuration for configuration in configurations
        ):
            measured = ", ".join(sorted(map(str, configurations)))
            raise experiment.error(
                key,
                " ".join(reference[part] for part in Configuration._fields if part in reference),
                "is not among the configurations",
                f"add it there, or name one of {measured}",
            )


def _check_names(experiment: Experiment, key: str, parts: Mapping[str, str]) -> None:
    """Refuse a reference or a rung that names an unknown strategy, variant or network.

    Parameters
    ----------
    key : place of the reference or rung in the settings.
    parts : its layout and, where it gives them, its strategy, variant and network.
    """
    networks = experiment.settings["networks"]
    multi_node = Layout.parse(parts["layout"]).nodes > 1
    known = {
        "strategy": STRATEGIES,
        "variant": experiment.settings["variants"],
        "network": networks if multi_node else dict.fromkeys([NATIVE, *networks]),
    }
    for part, names in known.items():
        if part in parts and parts[part] not in names:
            raise experiment.error(
                f"{key}.{part}", parts[part], f"no such {part}", f"use one of {', '.join(names)}"
            )


def _check_ladders(experiment: Experiment) -> None:
    """Refuse ladders if no workload is trained by steps, and rungs that cannot be compared.

    Such a rung names an unknown strategy, variant or network, has a layout that its strategy cannot
    have, has a network that sets `steps`, or is listed twice.
    """
    settings = experiment.settings
    for name, rungs in settings["ladders"].items():
        for position, rung in enumerate(rungs):
            key = f"ladders.{name}.{position}"
            _check_names(experiment, key, rung)
            _check_layout(experiment, f"{key}.layout", rung["strategy"], rung["layout"])
            multi_node = Layout.parse(rung["layout"]).nodes > 1
            if multi_node and settings["networks"][rung["network"]]["steps"]:
                raise experiment.error(
                    f"{key}.network",
                    rung["network"],
                    "sets `steps`, so its epochs are cut short; a ladder needs whole epochs",
                    f"name another network, or leave networks.{rung['network']}.steps out",
                )
            if configuration_of(rung) in map(configuration_of, rungs[:position]):
                raise experiment.error(
                    key,
                    " ".join(configuration_of(rung)),
                    "is already a rung of this ladder",
                    "name each strategy, layout, variant and network once",
                )
    if settings["ladders"] and not experiment.paired:
        kinds = {dataset["kind"] for dataset in experiment.datasets.values()}
        candidates = [
            name
            for name, workload in WORKLOADS.items()
            if workload.kind == "steps" and workload.data_kind in kinds
        ]
        adding = f"add one of the workloads {', '.join(candidates)}, or " if candidates else ""
        raise experiment.error(
            "ladders",
            list(settings["ladders"]),
            "no workload is trained by gradient steps, and a fit has no epochs to compare",
            f"{adding}leave ladders out",
        )


def _check_pairs(experiment: Experiment) -> None:
    """Refuse `pairs` if it contradicts `repeats` or its own pilot, or if there are ladders."""
    settings = experiment.settings
    pairs = settings.get("pairs")
    if not pairs:
        return
    if settings["repeats"] != pairs["pilot"]:
        raise experiment.error(
            "repeats",
            settings["repeats"],
            f"is not pairs.pilot, which is {pairs['pilot']}",
            "leave repeats out",
        )
    if pairs["at_most"] < pairs["pilot"]:
        raise experiment.error(
            "pairs.at_most",
            pairs["at_most"],
            "is below pairs.pilot",
            "raise it, or lower the pilot",
        )
    if settings["ladders"]:
        raise experiment.error(
            "pairs",
            list(settings["ladders"]),
            "ladders have pairs of their own, which the pilot does not measure",
            "move the ladders to another experiment, or leave pairs out",
        )


def _check_layouts(experiment: Experiment) -> None:
    for position, entry in enumerate(experiment.settings["configurations"]):
        for number, layout in enumerate(entry["layouts"]):
            key = f"configurations.{position}.layouts.{number}"
            _check_layout(experiment, key, entry["strategy"], layout)


def _check_layout(experiment: Experiment, key: str, name: str, layout: str) -> None:
    """Refuse a layout with more ranks or nodes than the strategy can have."""
    strategy, parsed = STRATEGIES[name], Layout.parse(layout)
    if strategy.only_one_rank and parsed.ranks > 1:
        raise experiment.error(key, layout, "this strategy has one process", "use the layout 1x1")
    if strategy.only_one_node and parsed.nodes > 1:
        raise experiment.error(key, layout, "this strategy stays on one node", "use a layout 1xN")


def _check_launcher(experiment: Experiment) -> None:
    """Refuse the local launcher for several nodes, and for several ranks of an MPI strategy."""
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
    """Refuse `slowdown` for strategies that cannot slow a single rank."""
    for run in experiment.timed:
        strategy = STRATEGIES[run.strategy]
        unsupported = strategy.asynchronous or strategy.one_process_per_node
        if unsupported and experiment.settings["variants"][run.variant]["slowdown"]:
            raise experiment.error(
                where_listed(run),
                run.variant,
                "slowdown needs a synchronous strategy with one process per rank",
                "use busy_neighbours, or another strategy",
            )


def _check_synchronous(experiment: Experiment) -> None:
    """Refuse values of knobs with which ranks exchange while they compute, where they cannot.

    Ranks of an asynchronous strategy make no step together. With `accumulation` a rank with fewer
    rows than parts would exchange less often than others.
    """
    for run in experiment.timed:
        variant = experiment.settings["variants"][run.variant]
        for name, knob in of_workload(run.workload).items():
            if variant[name] not in knob.synchronous:
                continue
            reason = None
            if STRATEGIES[run.strategy].asynchronous:
                reason = f"needs ranks that make each step together, unlike those of {run.strategy}"
            elif variant["accumulation"] > 1:
                reason = f"needs accumulation: 1, and this variant sets {variant['accumulation']}"
            if reason:
                allowed = [knob.schema["default"], *knob.schema.get("enum", ())]
                usual = [each for each in allowed if each not in knob.synchronous]
                use = f"use {usual[0]}, or leave" if usual else "leave"
                raise experiment.error(
                    f"variants.{run.variant}.{name}",
                    variant[name],
                    reason,
                    f"{use} {run.strategy} {run.layout} {run.variant} out",
                )


def _check_slow_ranks(experiment: Experiment) -> None:
    """Refuse `slowdown` and `busy_neighbours` for ranks that no layout has."""
    most_ranks: dict[str, int] = {}
    for run in experiment.timed:
        ranks = Layout.parse(run.layout).ranks
        most_ranks[run.variant] = max(most_ranks.get(run.variant, 0), ranks)
    for name, ranks in most_ranks.items():
        variant = experiment.settings["variants"][name]
        ranks_needed = {
            "slowdown": (len(variant["slowdown"]), f"give at most {ranks} factors"),
            "busy_neighbours": (
                max(variant["busy_neighbours"], default=-1) + 1,
                f"name ranks 0 to {ranks - 1}",
            ),
        }
        for knob, (needed, remedy) in ranks_needed.items():
            if needed > ranks:
                raise experiment.error(
                    f"variants.{name}.{knob}",
                    variant[knob],
                    f"applies to rank {needed - 1}, which no layout of this variant has",
                    f"{remedy}, or add a layout",
                )


def _check_shares(experiment: Experiment) -> None:
    """Refuse `shares` that are not those of all ranks, or with which nobody has rows."""
    for run in experiment.timed:
        ranks = Layout.parse(run.layout).ranks
        shares = experiment.settings["variants"][run.variant]["shares"]
        if not STRATEGIES[run.strategy].by_speed or shares is None:
            continue
        reason = None
        if len(shares) != ranks:
            given = counted(len(shares), "share")
            reason = f"has {given}, and {run.layout} has {counted(ranks, 'rank')}"
        elif not sum(shares):
            reason = "gives no rank any rows"
        if reason:
            raise experiment.error(
                f"variants.{run.variant}.shares",
                shares,
                reason,
                f"give a share for each rank of {run.layout}, or leave this knob out",
            )


def _check_every_workload_runs(experiment: Experiment) -> None:
    """Refuse a workload without a run, and a strategy that trains none of the workloads."""
    strategy, layout = ONE_PROCESS
    kinds = {WORKLOADS[name].kind for name in experiment.settings["workloads"]}
    for position, entry in enumerate(experiment.settings["configurations"]):
        trains_by = STRATEGIES[entry["strategy"]].trains_by
        if not kinds & trains_by and kinds != {"fit"}:
            usable = [name for name, each in STRATEGIES.items() if kinds & each.trains_by]
            raise experiment.error(
                f"configurations.{position}.strategy",
                entry["strategy"],
                "lives inside TensorFlow, and cannot start a program that is run as it is"
                if "command" in kinds
                else "starts programs only, workloads with trained_by: command",
                f"use one of {', '.join(usable)}",
            )
    for name in experiment.settings["workloads"]:
        if not experiment.configurations_of(name):
            if WORKLOADS[name].kind != "fit":
                usable = [
                    s for s, each in STRATEGIES.items() if WORKLOADS[name].kind in each.trains_by
                ]
                raise experiment.error(
                    f"workloads.{name}",
                    name,
                    "no strategy of the configurations can train it",
                    f"add one of {', '.join(usable)} to configurations",
                )
            raise experiment.error(
                f"workloads.{name}",
                name,
                "is fitted in one process, and the experiment does not list the strategy "
                f"{strategy} with the layout {layout}",
                f"add {{strategy: {strategy}, layouts: [{layout}]}} to configurations",
            )


def _check_programs(experiment: Experiment) -> None:
    """Refuse a program that cannot be started, or that names data which its dataset does not have.

    Its batch and the steps of an epoch are its own, so an epoch cannot be cut to some of its steps.
    """
    for name in experiment.settings["workloads"]:
        workload = WORKLOADS[name]
        if workload.kind != "command":
            continue
        program = workload.program()
        for dataset, settings in experiment.datasets.items():
            if settings["kind"] != workload.data_kind:
                continue
            known = sorted(settings.get("paths", {})) if settings["kind"] == "files" else ["split"]
            for path in program.data:
                if path not in known:
                    raise experiment.error(
                        f"workloads.{name}.command",
                        f"{{data.{path}}}",
                        f"the dataset {dataset} has no such path",
                        f"name one of {', '.join(known)}"
                        if known
                        else f"add it to datasets.{dataset}.paths",
                    )
        for network, settings in experiment.settings["networks"].items():
            if settings["steps"]:
                raise experiment.error(
                    f"networks.{network}.steps",
                    settings["steps"],
                    f"{name} is a program, whose epochs are measured whole",
                    "leave steps out",
                )


def _trained_by_steps(experiment: Experiment) -> Iterator[tuple[str, dict]]:
    """Yield name and settings of each workload that has the common training settings."""
    for name, settings in experiment.settings["workloads"].items():
        if WORKLOADS[name].kind == "steps":
            yield name, settings


def _check_target_accuracy(experiment: Experiment) -> None:
    """Refuse a target accuracy without an accuracy after each epoch."""
    for name, workload in _trained_by_steps(experiment):
        if "target_accuracy" in workload and not workload["validate"]:
            raise experiment.error(
                f"workloads.{name}.target_accuracy",
                workload["target_accuracy"],
                "time to accuracy needs the accuracy after each epoch",
                "set validate: true, or leave target_accuracy out",
            )


def _check_early_stopping(experiment: Experiment) -> None:
    """Refuse early stopping by a validation loss that is not computed."""
    for name, workload in _trained_by_steps(experiment):
        stopping = workload.get("early_stopping")
        if stopping and stopping["monitor"] == "validation" and not workload["validate"]:
            raise experiment.error(
                f"workloads.{name}.early_stopping.monitor",
                stopping["monitor"],
                "the validation loss is not computed",
                "set validate: true, or monitor: training",
            )


def _divides_batch(run: Run) -> bool:
    """Return whether the ranks of a run take rows of the batch that its settings give."""
    workload = WORKLOADS[run.workload]
    if workload.kind == "command":
        return bool({"rows", "rows_of_rank"} & workload.program().named)
    return takes_steps(run)


def _check_batches(experiment: Experiment) -> None:
    """Refuse a global batch with fewer rows than ranks."""
    for run in filter(_divides_batch, experiment.timed):
        ranks = Layout.parse(run.layout).ranks
        batch = experiment.settings_of(run)["training"]["batch"]
        if batch["per"] == "global" and batch["rows"] < ranks:
            batch_in_variant = "batch" in experiment.settings["variants"][run.variant]
            section = f"variants.{run.variant}" if batch_in_variant else f"workloads.{run.workload}"
            raise experiment.error(
                f"{section}.batch.rows",
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
    _check_pairs,
    _check_layouts,
    _check_launcher,
    _check_slowdown,
    _check_synchronous,
    _check_slow_ranks,
    _check_shares,
    _check_every_workload_runs,
    _check_programs,
    _check_target_accuracy,
    _check_early_stopping,
    _check_batches,
)
