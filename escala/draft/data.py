"""Draft an experiment on a user's data: do more processes, or more threads, pay for it?"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from escala.core import plugins
from escala.core.engines import DEFAULT
from escala.core.errors import InputError
from escala.data.paths import expanded_path
from escala.draft.file import PROCESSES, Draft, compared
from escala.draft.recognise import SIMULATED, Dataset, named, recognised
from escala.experiment.references import ONE_PROCESS
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES
from escala.workloads import WORKLOADS, declared

#: The strategies of the usual engine that have several ranks, in the order of their positions.
_SEVERAL = (
    name
    for name, each in STRATEGIES.items()
    if (each.engine or "").startswith(f"{DEFAULT}.") and not each.layouts.one_rank
)
#: What a draft compares, and for how long, unless it is told otherwise.
DEFAULTS = {
    "strategies": (next(_SEVERAL),),
    "layouts": ("1x2",),
    "epochs": 5,
    "repeats": 7,
}
#: Rows of a step, all ranks together.
_ROWS = 64
#: The rate of optimisers for which that of Adam, the schema's default, is too low.
_RATES = {"mlp": 0.1, "resnet34": 0.05}
_NOTES = {
    "datasets": "Each key has its defaults in docs/reference/configuration.md.",
    "batch": "The ranks divide these rows, so any number of ranks makes the same updates.",
    "length": "Longer rows take longer to train.",
    "size": "Larger pictures take longer to train.",
}


def draft(
    name: str,
    data: str,
    *,
    workload: str | None = None,
    strategies: Sequence[str] = DEFAULTS["strategies"],
    layouts: Sequence[str] = DEFAULTS["layouts"],
    epochs: int = DEFAULTS["epochs"],
    repeats: int = DEFAULTS["repeats"],
) -> Draft:
    """Draft an experiment that compares layouts with one process.

    One process is measured on one core and, with threads, on as many cores as the largest layout of
    one node has processes.

    Parameters
    ----------
    name : of the experiment.
    data : as `escala.draft.recognise.recognised` takes it.
    workload : its name, or a folder with a `workload.yaml`; by default one for the data, and every
        workload for such data that is fitted.
    strategies, layouts : to compare with one process. A strategy of one rank has the layout `1x1`.
    epochs : of a workload that is trained by steps.
    repeats : timing runs of each configuration.

    Raises
    ------
    InputError : as `escala.draft.recognise.recognised`; there is no such workload, or its
        declaration is wrong; or a layout is not of the form `NODESxPROCS`.
    """
    dataset = recognised(data)
    seeds = list(range(1, repeats + 1)) if dataset.own_splits else [4]
    described = dataset.settings | {"split": dataset.settings["split"] | {"seeds": seeds}}
    try:
        parsed = [Layout.parse(layout) for layout in layouts]
    except ValueError as error:
        raise InputError("--layouts", layouts, str(error), "write it as 1x2") from None
    strategy, one = ONE_PROCESS
    configurations = [{"strategy": strategy, "layouts": [one]}]
    for each in strategies:
        known = STRATEGIES.get(each)
        only = [one] if known and known.layouts.one_rank else list(layouts)
        if each != strategy:
            configurations.append({"strategy": each, "layouts": only, "variants": [PROCESSES]})
    subject = "simulated genomes" if data == SIMULATED else dataset.name
    settings = compared(
        name,
        f"Does parallel training on {subject} pay?",
        repeats,
        strategy,
        max((each.processes for each in parsed if each.nodes == 1), default=1),
        datasets={dataset.name: described},
        workloads=_workloads(workload, dataset, epochs),
        configurations=configurations,
    )
    probes = {"timeline": {"enabled": False}}
    said = [f"Not read in {data}: {', '.join(dataset.not_read)}"] if dataset.not_read else []
    return Draft(settings | probes, _NOTES, said)


def _workloads(workload: str | None, dataset: Dataset, epochs: int) -> dict[str, dict]:
    """Return the workloads of a draft with their settings."""
    if workload is None:
        kind = dataset.settings["kind"]
        if dataset.workload is None:
            reason = f"no workload of Escala reads data of the kind {kind}"
            remedy = (
                "name the folder of yours: --workload FOLDER "
                "(docs/how-to/bring-your-own-workload.md), or your own script: --command TEXT"
            )
            raise InputError("workload", None, reason, remedy)
        usable = WORKLOADS.items()
        fits = [name for name, each in usable if each.is_fitted and each.data_kind == kind]
        return {dataset.workload: _steps(dataset.workload, epochs)} | {name: {} for name in fits}
    if workload in WORKLOADS:
        by_steps = WORKLOADS[workload].takes_steps
        return {workload: _steps(workload, epochs) if by_steps else {}}
    file = Path(expanded_path(workload, "workload")) / plugins.DECLARATIONS[plugins.WORKLOADS]
    if not file.is_file():
        reason = f"is neither a workload nor a folder with a {file.name}"
        remedy = f"use one of {', '.join(WORKLOADS)}, or name your folder"
        raise InputError("workload", workload, reason, remedy)
    name, path = named(file.parent), {"path": workload}
    try:
        by_steps = declared(file).takes_steps
    except (KeyError, TypeError, yaml.YAMLError):
        by_steps = False  # The check of the experiment names what is wrong.
    return {name: path | (_steps(name, epochs) if by_steps else {})}


def _steps(workload: str, epochs: int) -> dict[str, Any]:
    """Return the settings of a workload that is trained by steps."""
    return {
        "epochs": epochs,
        "batch": {"rows": _ROWS, "per": "global"},
        "learning_rate": {"value": _RATES.get(workload, 0.001), "reference_batch": _ROWS},
        "seed": 0,
    }
