"""Divide an experiment over node counts into one of each doubling, for jobs of their own.

A job of all counts holds the nodes of the largest one for the runs of all others, too. A job that
compares n nodes with 2n holds twice the nodes of its smaller side at most.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from escala.core.yaml12 import read
from escala.experiment.matrix import Experiment
from escala.experiment.scaling import layouts_of
from escala.runtime.layout import Layout


def doublings(e: Experiment) -> dict[str, dict[str, Any]]:
    """Return an experiment of each doubling of nodes, as the content of a file, by its name.

    Each has the layouts of n and of 2n nodes. From two nodes on, its references are the
    configurations of n nodes. Ladders are left out, since they are no part of a doubling.

    Raises
    ------
    InputError : no layout has twice the nodes of another.
    """
    layouts = {run.layout for run in e.runs}
    counts = sorted({layout.nodes for layout in layouts})
    found = {
        f"{e.name}-{count}to{2 * count}": _doubling(e, read(e.origin), count)
        for count in counts
        if 2 * count in counts
    }
    if not found:
        listed = ", ".join(sorted(map(str, layouts)))
        remedy = "list layouts such as 1x4, 2x4 and 4x4"
        raise e.error("layouts", listed, "none has twice the nodes of another", remedy)
    return found


def file_of(e: Experiment, name: str) -> Path:
    """Return the file of the experiment of a doubling of another one."""
    return Path("results", e.name, f"{name}.yaml")


def _doubling(e: Experiment, settings: Mapping[str, Any], count: int) -> dict[str, Any]:
    def kept(layouts: list[Layout]) -> list[str]:
        return [str(each) for each in layouts if each.nodes in (count, 2 * count)]

    changed = copy.deepcopy({key: value for key, value in settings.items() if key != "ladders"})
    changed["experiment"] = f"{e.name}-{count}to{2 * count}"
    changed["title"] = f"{e.title} ({count} and {2 * count} nodes)"
    entries = [each | {"layouts": kept(each["layouts"])} for each in e.settings["configurations"]]
    changed["configurations"] = [each for each in entries if each["layouts"]]
    if scaling := changed.get("scaling"):
        scaling["layouts"] = kept(layouts_of(scaling))
        scaling.pop("up_to", None)
    if count > 1:
        smaller = {
            (each["strategy"], layout): None
            for each in changed["configurations"]
            for layout in each["layouts"]
            if Layout.parse(layout).nodes == count
        }
        changed["references"] = [
            {"strategy": strategy, "layout": layout} for strategy, layout in smaller
        ]
    return changed
