"""Choose the runs that calibrate programs: one process, and sums of gradients in their library.

| run | gives |
|---|---|
| the program as `1x1` with three numbers of rows, in turns | times of its steps |
| `escala/hook/escala_collectives.py` on each layout with several ranks | sums, contention |

The second is a program too, `NAME-sums-LIBRARY`. The same interpreter runs it under the same
strategy.
`escala.analysis.cost_model.bounds` makes bounds of these times.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

from escala.core.hardware import available_cores
from escala.experiment.folders import PATH
from escala.experiment.matrix import Experiment
from escala.experiment.runs import Run
from escala.experiment.schema import program_schema
from escala.experiment.works import Work, calibrated_rows
from escala.runtime.layout import Layout, global_batch
from escala.strategies import STRATEGIES
from escala.training.program_place import HOOK
from escala.workloads import Workload

#: Bytes that are summed, besides those of the gradients: from what latency decides to what rates
#: decide.
SIZES = (2**10, 2**16, 2**20, 2**22, 2**24, 2**26)
#: Epochs of a calibrating run: the first is not counted.
MOST_EPOCHS = 3


def unsupported(run: Run) -> str | None:
    """Return why there are no bounds of a run of a program, or None."""
    program, strategy = run.declared.workload.program(), run.declared.strategy
    if not program.named & {"rows", "rows_of_rank"}:
        return (
            "the command names neither {rows} nor {rows_of_rank}, so all its steps are of one size"
        )
    if run.layout.ranks == 1:
        return None
    if strategy.programs == "unknown":
        return f"sums of a program under {run.strategy} are not timed"
    if strategy.programs == "none" and program.gradient_bytes != 0:
        return (
            f"{run.strategy} does not tell by which library ranks sum: state gradient_bytes: 0 if "
            "they exchange nothing, or take the strategy of the library"
        )
    return None


def first_of_programs(experiment: Experiment) -> list[Run]:
    return [
        run
        for run in experiment.runs
        if run.repeat == 1 and run.declared.workload.kind == "command"
    ]


def rows_of(experiment: Experiment, run: Run) -> set[int]:
    """Return the rows of a step, and of the rank that takes the most of it."""
    ranks = run.layout.ranks
    rows = global_batch(experiment.settings_of(run)["training"], ranks)
    return {rows, -(-rows // ranks)}


def works(experiment: Experiment) -> dict[tuple, Work]:
    """Return the work of each run that has bounds, by its dataset, workload, strategy and variant.

    One process alone is no reason to calibrate.
    """
    rows: dict[tuple, set[int]] = {}
    several = set()
    for run in first_of_programs(experiment):
        if unsupported(run) is None:
            key = (run.dataset, run.workload, run.strategy, run.variant)
            rows.setdefault(key, set()).update(rows_of(experiment, run))
            several |= {key} if run.layout.ranks > 1 else set()
    return {
        key: Work(*key, calibrated_rows(found)) for key, found in rows.items() if key in several
    }


def sums_name(work: Work) -> str:
    """Return the name of the program that times sums for a work."""
    return f"{work.workload}-sums-{STRATEGIES[work.strategy].programs}"


def sums_program(work: Work, known: Workload) -> dict[str, Any]:
    """Return the declaration of that program, as in an experiment; `known` is that of the work."""
    library, program = STRATEGIES[work.strategy].programs, known.program()
    stated = program.gradient_bytes
    sizes = SIZES
    if stated is not None:
        sizes = sorted({*(size for size in SIZES if size < stated), *([stated] if stated else ())})
    return {
        "command": ["python", "escala_collectives.py", library, *map(str, sizes)],
        "directory": str(HOOK),
        "files": ["escala_collectives.py"],
        "environment": {
            "python": program.interpreter or sys.executable,
            "lines": list(program.lines),
            "variables": list(program.variables),
        },
        "data_kind": known.data_kind,
        "in_place": True,
        "epochs": 1,
    }


def one_process(known: Workload, settings: dict) -> dict:
    """Return the settings of a program for timing its steps: with few epochs, if it takes them.

    Its declaration is as the user wrote it, without defaults.
    """
    declared = program_schema()["properties"]
    found = {key: value for key, value in settings.items() if key not in declared}
    if PATH not in settings:
        found |= {key: value for key, value in known.declared.items() if key in declared}
    if "epochs" in known.program().named:
        found["epochs"] = min(settings["epochs"], MOST_EPOCHS)
    return found


def sums_layouts(experiment: Experiment, work: Work, links: bool) -> list[tuple[Layout, str]]:
    """Return each layout of several ranks with its network, on which sums can be timed here.

    Parameters
    ----------
    links : whether there are several nodes.
    """
    return [
        (run.layout, run.network)
        for run in first_of_programs(experiment)
        if (run.dataset, run.workload, run.strategy, run.variant) == work[:4]
        and unsupported(run) is None
        and run.layout.ranks > 1
        and (links or _fits(run))
    ]


def _fits(run: Run) -> bool:
    """Return whether this machine has a core for each process of a layout of one node."""
    one_node = run.layout.nodes == 1
    return one_node and run.cores <= len(available_cores())


def sums_runs(
    run: Callable[..., Run], work: Work, layouts: Sequence[tuple[Layout, str]], repeats: int
) -> list[list[Run]]:
    """Return the runs that time sums, those of each layout in a list.

    Parameters
    ----------
    run : returns the run of the calibration with some names.
    layouts : as `sums_layouts` returns them.
    """
    first, variant = (work.dataset, sums_name(work), work.strategy), work.middle_variant
    return [
        [run(*first, layout, variant, network, repeat) for repeat in range(1, repeats + 1)]
        for layout, network in layouts
    ]
