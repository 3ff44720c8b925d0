"""The key `scaling`: the configurations of a scaling study, and the rows of weak scaling."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Iterator

from escala.experiment.runs import NATIVE, Configuration, one_process
from escala.experiment.schema import Settings
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES
from escala.workloads import Workload

STRONG, WEAK = "strong", "weak"
#: The size with which a site's rule compares: the smallest (default), or the next smaller one.
BASELINE, DOUBLING = "baseline", "doubling"
#: The times that the rule compares: of whole runs (default), or of steps.
RUN, STEPS = "run", "steps"
#: Keys that select some of the variants, networks and workloads of the experiment for a study.
_NARROWED = ("variants", "networks", "workloads")


def layouts_of(scaling: Settings) -> list[Layout]:
    """Return the layouts of a scaling study, by their ranks and then their nodes.

    With `up_to`, the nodes of the largest layout are halved, rounded up, until one is left. If the
    largest layout has one node, its processes are halved instead.
    """
    if "layouts" in scaling:
        layouts = map(Layout.parse, scaling["layouts"])
    else:
        largest = Layout.parse(scaling["up_to"])
        several = largest.nodes > 1
        sizes = [largest.nodes if several else largest.processes]
        while sizes[-1] > 1:
            sizes.append(-(-sizes[-1] // 2))
        layouts = (Layout(n, largest.processes) if several else Layout(1, n) for n in sizes)
    return sorted(layouts, key=lambda layout: (layout.ranks, layout.nodes))


def smaller_size(configuration: Configuration, scaling: Settings) -> list[Configuration]:
    """Return the next smaller size of a configuration in a scaling study, if there is one.

    One process may run with the strategy or without it. Then both configurations are returned,
    measured or not.
    """
    strategy, layout, _, network = configuration
    layouts = layouts_of(scaling)
    smaller_layouts = [other for other in layouts if other.ranks < layout.ranks]
    if strategy not in scaling["strategies"] or layout not in layouts or not smaller_layouts:
        return []
    smaller = smaller_layouts[-1]
    network = network if smaller.nodes > 1 else NATIVE
    alone = [one_process(strategy)[0]] if smaller.ranks == 1 else []
    return [
        configuration._replace(strategy=name, layout=smaller, network=network)
        for name in dict.fromkeys([*alone, strategy])
    ]


def with_scaling(settings: Settings) -> Settings:
    """Return checked settings with the configurations and the references of their scaling study.

    Settings without `scaling` are returned as they are. Settings with `scaling` must have no
    `faults`.
    """
    scaling = settings.get("scaling")
    if scaling is None:
        return settings
    listed, layouts = list(settings["configurations"]), layouts_of(scaling)
    narrowed = {key: scaling[key] for key in _NARROWED if key in scaling}
    workloads = scaling.get("workloads", settings["workloads"])
    takes_steps = any(settings.knows[name].takes_steps for name in workloads)
    for strategy in scaling["strategies"]:
        by_steps = takes_steps and STRATEGIES[strategy].engine
        alone = one_process(strategy)[0] if by_steps else strategy
        by_strategy: dict[str, list[Layout]] = {}
        for layout in layouts:
            runs_as = alone if layout.ranks == 1 else strategy
            by_strategy.setdefault(runs_as, []).append(layout)
        for name, layouts_of_name in by_strategy.items():
            same = [entry for entry in listed if entry["strategy"] == name]
            entry_of_study = {"strategy": name, "layouts": layouts_of_name, **narrowed}
            unlisted = []
            for layout in layouts_of_name:
                present = set().union(*(_combinations(entry, layout, settings) for entry in same))
                if not present:
                    unlisted.append(layout)
                    continue
                # The experiment may list a layout for some variants or workloads only.
                for names in _combinations(entry_of_study, layout, settings):
                    if names not in present:
                        parts = {key: [value] for key, value in zip(_NARROWED, names, strict=True)}
                        listed.append({"strategy": name, "layouts": [layout], **parts})
            if unlisted:
                listed.append(entry_of_study | {"layouts": unlisted})
    result = settings | {"configurations": listed}
    if "references" not in settings and layouts[0].ranks > 1:
        result["references"] = [
            {"strategy": strategy, "layout": layouts[0]} for strategy in scaling["strategies"]
        ]
    return result


def _combinations(entry: Settings, layout: Layout, settings: Settings) -> list[tuple[str, ...]]:
    """Return each combination of variant, network and workload in which an entry has a layout."""
    if layout not in entry["layouts"]:
        return []
    strategy = STRATEGIES[entry["strategy"]]
    variants, networks, workloads = (entry.get(part, settings[part]) for part in _NARROWED)
    # One node uses no network.
    networks = networks if layout.nodes > 1 else [*settings["networks"]][:1]
    trained = [name for name in workloads if strategy.runs(settings.knows[name])]
    return list(itertools.product(variants, networks, trained))


def check_names(
    key: str, names: Iterable[str], what: str, known: Iterable[str]
) -> Iterator[tuple[str, object, str, str]]:
    """Yield a fault for each name that is unknown."""
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            remedy = f"use one of {', '.join(known)}"
            remedy = f"did you mean {near[0]}? Otherwise {remedy}" if near else remedy
            yield key, name, f"no such {what}", remedy


def faults(settings: Settings) -> Iterator[tuple[str, object, str, str]]:
    """Yield the faults of `scaling`, as `escala.experiment.checks` yields others.

    Parameters
    ----------
    settings : settings that the schema allows, with every default.
    """
    scaling = settings.get("scaling")
    if scaling is None:
        if not settings["configurations"]:
            reason = "nothing is compared"
            yield "configurations", [], reason, "list some, or write scaling with its layouts"
        return
    for position, strategy in enumerate(scaling["strategies"]):
        key = f"scaling.strategies.{position}"
        yield from check_names(key, [strategy], "strategy", STRATEGIES)
        if strategy in STRATEGIES and STRATEGIES[strategy].layouts.one_rank:
            reason = "this strategy has one process, in every layout"
            remedy = "name one of several processes; the layout 1x1 is added for it"
            yield key, strategy, reason, remedy
    for part in _NARROWED:
        names = scaling.get(part, [])
        yield from check_names(f"scaling.{part}", names, part.removesuffix("s"), settings[part])
    has_layouts, has_largest = "layouts" in scaling, "up_to" in scaling
    if has_layouts == has_largest:
        reason = "are given by both layouts and up_to" if has_layouts else "are not given"
        yield "scaling", scaling["kind"], f"its layouts {reason}", "write one of layouts and up_to"
    elif len(layouts_of(scaling)) < 2:
        yield "scaling.up_to", scaling["up_to"], "is a single layout", "name a larger one"
    if scaling["rules"].get("tiers") and scaling["rules"]["against"] == BASELINE:
        reason = "are speed-ups of doublings, and the rule compares with the baseline"
        yield "scaling.rules.tiers", scaling["rules"]["tiers"], reason, "write against: doubling"
    for position, entry in enumerate(scaling["plan"]):
        known = [*map(str, layouts_of(scaling))] if has_layouts != has_largest else ()
        key, layouts = f"scaling.plan.{position}.layout", [entry["layout"]] * ("layout" in entry)
        yield from check_names(key, layouts, "layout in the study", known)
    if scaling["kind"] != WEAK:
        if "rows_per_rank" in scaling:
            reason = (
                "is for weak scaling only: all layouts of strong scaling train on the same rows"
            )
            yield "scaling.rows_per_rank", scaling["rows_per_rank"], reason, "leave it out"
        return
    workloads, knows = settings["workloads"], settings.knows
    by_steps = [name for name in workloads if knows[name].takes_steps]
    if by_steps and "rows_per_rank" not in scaling:
        reason = f"does not say how many rows {by_steps[0]} trains on with one rank"
        remedy = "write scaling.rows_per_rank, at most the training rows of the dataset / the ranks"
        yield "scaling", WEAK, reason, remedy
    # In weak scaling, the rows of a rank must not change with the ranks.
    names = [name for name in workloads if not knows[name].is_fitted]
    sections = {f"workloads.{name}": workloads[name] for name in names}
    sections |= {f"variants.{name}": content for name, content in settings["variants"].items()}
    for section, content in sections.items():
        if content.get("batch", {}).get("per") == "global":
            reason = "divides the rows of a step among the ranks, so the scaling is not weak"
            yield f"{section}.batch.per", "global", reason, "write per: rank, or kind: strong"
        if content.get("shard", True) is not True:
            reason = "lets ranks train on the same rows, so the rows do not grow with the ranks"
            yield f"{section}.shard", content["shard"], reason, "leave shard out, or kind: strong"


def weak_growth(settings: Settings, layout: Layout, workload: Workload) -> dict[str, int] | None:
    """Return how the rows of an epoch grow with the ranks; None without weak scaling.

    Returns
    -------
    The `ranks` of the layout; and, if the workload is trained by steps, the `rows_per_rank`.
    """
    scaling = settings.get("scaling")
    if scaling is None or scaling["kind"] != WEAK or workload.is_fitted:
        return None
    growth = {"ranks": layout.ranks}
    if workload.takes_steps:
        growth["rows_per_rank"] = scaling["rows_per_rank"]
    return growth
