"""Draft a scaling study of a program: the same work on more and more nodes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from escala.core.errors import InputError
from escala.core.hardware import available_cores
from escala.draft import program
from escala.draft.file import PROCESSES, Draft
from escala.draft.pair import title_of
from escala.experiment.scaling import STEPS
from escala.experiment.schema import SITES
from escala.runtime.layout import Layout

#: Repeats of each size: a verdict of the rule needs five, and one may fail.
REPEATS = 6
#: The rule of a study that times windows of steps. Rules of sites mostly ask for whole runs.
_RULE = {"name": "this draft (replace it by your site's)", "efficiency": 0.75, "time": STEPS}


def parse_sizes(text: str) -> list[int | Layout]:
    """Return the sizes of a study, at least two; a type of `argparse`.

    Parameters
    ----------
    text : numbers of nodes, such as `1,2,4`; or layouts NODESxPROCESSES, such as `1x1,1x2`.
    """
    sizes: list[int | Layout] = []
    for word in text.split(","):
        try:
            sizes.append(Layout.parse(word) if "x" in word else Layout.parse(f"{word}x1").nodes)
        except ValueError:
            reason = f"{word!r} is no number of nodes such as 2, and no layout such as 1x2"
            raise argparse.ArgumentTypeError(reason) from None
    if len(set(sizes)) < 2:
        raise argparse.ArgumentTypeError("a study needs two sizes, such as 1,2")
    return sizes


def count_nodes(sizes: Sequence[int | Layout]) -> int:
    """Return the nodes of the largest size."""
    return max(size.nodes if isinstance(size, Layout) else size for size in sizes)


def draft(command: Sequence[str], options: argparse.Namespace) -> Draft:
    """Draft a study of strong scaling on a program that is started in the working directory.

    Parameters
    ----------
    options : the options of `program.add_options`, and `sizes`, a result of `parse_sizes`.

    Raises
    ------
    InputError : as `program.draft`; or it is not known how processes find each other.
    """
    named = [size for size in options.sizes if isinstance(size, Layout)]
    most = max((layout.processes for layout in named), default=None)
    if options.nodes == 1 and most and most > (cores := len(available_cores())):
        reason = f"has processes for {most} cores, and this machine has {cores}"
        raise InputError("--sizes", f"1x{most}", reason, "leave it out")
    options = argparse.Namespace(**vars(options) | {"processes": options.processes or most})
    drafted = program.draft(command, options, sizes=False)
    settings = drafted.settings
    strategy = settings["configurations"][0]["strategy"]
    largest = Layout.parse(settings["configurations"][0]["layouts"][-1])
    if strategy == program.ONE:
        reason = "is one process, and it is not known how several find each other"
        remedy = f"say how: {program.name_ways()}, or {{rank}} and {{ranks}} in the command"
        raise InputError("command", " ".join(command), reason, remedy)
    layouts = {
        size if isinstance(size, Layout) else Layout(size, largest.processes)
        for size in options.sizes
    }
    name = options.name or f"{drafted.name}-study"[:64]
    [(workload, content)] = settings["workloads"].items()
    earlier = program.list_earlier_files(program.file_of(name))
    content["files"] = sorted({*content["files"], *earlier})
    study = {
        "experiment": name,
        "title": title_of(f"Strong scaling of {workload}", "Strong scaling"),
        "repeats": options.repeats,
        "time_limit_minutes": settings["time_limit_minutes"],
        "datasets": settings["datasets"],
        "workloads": settings["workloads"],
        "variants": {PROCESSES: settings["variants"][PROCESSES]},
        "scaling": {
            "kind": "strong",
            "strategies": [strategy],
            "layouts": [
                str(layout) for layout in sorted(layouts, key=lambda one: (one.ranks, one.nodes))
            ],
            **({"rules": _RULE} if "window" in content else {}),
        },
        "resources": {"enabled": True},
    }
    words = f"`rules`: write the word for your site, one of {', '.join(SITES)}, or its keys."
    notes = drafted.notes | {"variants": "", "scaling": words}
    return Draft(study, notes, drafted.sentences)
