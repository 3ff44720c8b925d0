"""Draft an experiment that compares two programs: the second against the first."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import Any

from escala.analysis.verdicts import NO_VERDICT
from escala.core.readable import in_percent
from escala.draft import program
from escala.draft.file import PROCESSES, THREADS, Draft
from escala.experiment.schema import is_allowed
from escala.runtime.layout import Layout


def draft_side(command: Sequence[str], options: argparse.Namespace) -> Draft:
    """Draft a side of a pair: a command as it is typed, with as many processes as it names.

    A strategy that is only guessed from its script does not count.

    Raises
    ------
    InputError : as `escala.draft.program.draft`.
    """
    side = program.draft(command, options, sizes=False)
    return side.as_typed or side


def title_of(title: str, otherwise: str) -> str:
    """Return a title if an experiment may have it: words of the user may be long. Else another."""
    return title if is_allowed(title, {"$ref": "#/$defs/line"}) else otherwise


def pair(sides: Mapping[str, Draft], name: str, title: str, threshold: float = 0.0) -> Draft:
    """Draft an experiment that compares two sides, each of one configuration.

    A side of several processes has one core, or its part of the cores, for each; one process has
    all of the cores, as threads.

    Parameters
    ----------
    sides : the two, by the names of their variants; the first is the reference.
    name, title : of the experiment.
    threshold : the session stops when it is decided whether the second takes more than 1 +
        `threshold` of the time of the first.

    Returns
    -------
    The draft. Both sides have the files of both: they are measured in turns, and so again together.
    """
    (first, reference), (second, other) = sides.items()
    programs = [_program(side) for side in sides.values()]
    earlier = program.list_earlier_files(program.file_of(name))
    files = sorted({*programs[0]["files"], *programs[1]["files"], *earlier})
    replaced = {
        key: programs[1].get(key, {})
        for key in ("command", "environment")
        if programs[1].get(key) != programs[0].get(key)
    }
    variants, configurations = {}, []
    for variant, side in sides.items():
        strategy, layout, cores = _largest(side)
        variants[variant] = {"cores_per_process": cores}
        configurations.append({"strategy": strategy, "layouts": [layout], "variants": [variant]})
    variants[second] |= replaced
    workload = {**programs[1], **programs[0], "files": files}
    repeats = reference.settings["repeats"]
    settings = reference.settings | {
        "experiment": name,
        "title": title,
        "repeats": repeats | {"threshold": threshold} if isinstance(repeats, dict) else repeats,
        "datasets": other.settings["datasets"] | reference.settings["datasets"],
        "workloads": {next(iter(reference.settings["workloads"])): workload},
        "variants": variants,
        "configurations": configurations,
        "references": [
            {
                "strategy": configurations[0]["strategy"],
                "layout": configurations[0]["layouts"][0],
                "variant": first,
            }
        ],
    }
    sentences = [
        sentence if sentence in reference.sentences and sentence in other.sentences
        else f"{variant}: {sentence}"
        for variant, side in sides.items()
        for sentence in side.sentences
    ]  # fmt: skip
    notes = reference.notes | {"variants": f"`{second}` is compared with `{first}`."}
    return Draft(settings, notes, [*dict.fromkeys(sentences)])


def describe(compared: Mapping[str, Any], verdict: str) -> str:
    """Return a verdict on a comparison of an answer, with its figures, as a sentence."""
    if compared["ratio_of_session"] is None:
        return f"{verdict}: {compared['reason']}."
    low, high = compared["interval_of_session"]
    figures = [f"{compared['paired_runs']} paired runs"]
    if low is not None and high is not None:
        figures.append(f"{in_percent(compared['level'])} interval {low:.3f} to {high:.3f}")
    if compared["verdict_of_session"] == NO_VERDICT:
        figures.append("other work disturbed the runs" if compared["disturbed"] else "too few")
    return f"{verdict}: {compared['ratio_of_session']:.3f} of its time ({', '.join(figures)})."


def _program(side: Draft) -> dict[str, Any]:
    [workload] = side.settings["workloads"].values()
    return workload


def _largest(side: Draft) -> tuple[str, str, int]:
    """Return the strategy, the layout and the cores per process of the largest configuration."""
    variants, (first, *_) = side.settings["variants"], side.settings["configurations"]
    layout = first["layouts"][-1]
    one = Layout.parse(layout).ranks == 1
    variant = variants[THREADS if one and THREADS in variants else PROCESSES]
    return first["strategy"], layout, variant["cores_per_process"]
