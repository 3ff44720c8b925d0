"""Draft an experiment on a user's data: its settings, and its file with a comment on each key.

`escala.experiment.Experiment` checks a draft like every other experiment.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from escala.core import plugins
from escala.core.errors import InputError
from escala.core.files import read_yaml
from escala.data.paths import expanded_path
from escala.experiment.recognise import Dataset, named, recognised
from escala.experiment.references import ONE_PROCESS
from escala.experiment.schema import SCHEMA, composed
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES
from escala.workloads import WORKLOADS, declared

#: Names of the variants: a core for each process, and one process with threads on all cores.
PROCESSES, THREADS = "tuned", "threads"
#: What a draft compares, and for how long, unless it is told otherwise.
DEFAULTS = {"strategies": ("horovod-mpi",), "layouts": ("1x2",), "epochs": 5, "repeats": 7}
#: Rows of a step, all ranks together.
_ROWS = 64
#: The rate of optimisers for which that of Adam, the schema's default, is too low.
_RATES = {"mlp": 0.1, "resnet34": 0.05}
_WIDTH = 100
#: Sentences on this draft, below those of the schema.
_NOTES = {
    "datasets": "Each key has its defaults in docs/reference/configuration.md.",
    "repeats": "A 95 % interval of a ratio needs six pairs. With seven, one may fail.",
    "batch": "The ranks divide these rows, so any number of ranks makes the same updates.",
    "variants": f"`{THREADS}` is the alternative to more processes: one process with threads.",
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
) -> dict[str, Any]:
    """Return the settings of an experiment that compares layouts with one process.

    One process is measured on one core and, with threads, on as many cores as the largest layout of
    one node has processes.

    Parameters
    ----------
    name : of the experiment.
    data : as `escala.experiment.recognise.recognised` takes it.
    workload : its name, or a folder with a `workload.yaml`; by default one for the data, and every
        workload for such data that is fitted.
    strategies, layouts : to compare with one process. A strategy of one rank has the layout `1x1`.
    epochs : of a workload that is trained by steps.
    repeats : timing runs of each configuration.

    Raises
    ------
    InputError : as `escala.experiment.recognise.recognised`; there is no such workload, or its
        declaration is wrong.
    ValueError : a layout is not of the form `NODESxPROCS`.
    """
    dataset = recognised(data)
    seeds = list(range(1, repeats + 1)) if dataset.own_splits else [4]
    settings = dataset.settings | {"split": dataset.settings["split"] | {"seeds": seeds}}
    parsed = [Layout.parse(layout) for layout in layouts]
    cores = max((each.processes for each in parsed if each.nodes == 1), default=1)
    variants = {PROCESSES: {"cores_per_process": 1}}
    if cores > 1:
        variants[THREADS] = {"cores_per_process": cores}
    strategy, layout = ONE_PROCESS
    one_process = {"strategy": strategy, "layout": layout}
    return {
        "experiment": name,
        "title": f"Does parallel training on {dataset.name} pay?",
        "repeats": repeats,
        "time_limit_minutes": 60,
        "datasets": {dataset.name: settings},
        "workloads": _workloads(workload, dataset, epochs),
        "variants": variants,
        "configurations": [
            {"strategy": strategy, "layouts": [layout]},
            *(_configuration(each, layouts) for each in strategies if each != strategy),
        ],
        "references": [one_process | {"variant": variant} for variant in variants],
        "timeline": {"enabled": False},
        "clocks": {"enabled": True},
    }


def _configuration(strategy: str, layouts: Sequence[str]) -> dict[str, Any]:
    known = STRATEGIES.get(strategy)
    only = [ONE_PROCESS[1]] if known and known.only_one_rank else list(layouts)
    return {"strategy": strategy, "layouts": only, "variants": [PROCESSES]}


def _workloads(workload: str | None, dataset: Dataset, epochs: int) -> dict[str, dict]:
    """Return the workloads of a draft with their settings."""
    if workload is None:
        kind = dataset.settings["kind"]
        if dataset.workload is None:
            raise InputError(
                "workload",
                None,
                f"no workload of Escala reads data of the kind {kind}",
                "name the folder of yours: --workload FOLDER "
                "(docs/how-to/bring-your-own-workload.md), or your own script: --command TEXT",
            )
        fits = [
            name
            for name, each in WORKLOADS.items()
            if each.kind == "fit" and each.data_kind == kind
        ]
        return {dataset.workload: _steps(dataset.workload, epochs)} | {name: {} for name in fits}
    if workload in WORKLOADS:
        by_steps = WORKLOADS[workload].kind == "steps"
        return {workload: _steps(workload, epochs) if by_steps else {}}
    file = Path(expanded_path(workload, "workload")) / plugins.DECLARATIONS[plugins.WORKLOADS]
    if not file.is_file():
        raise InputError(
            "workload",
            workload,
            f"is no workload and no folder with a {file.name}",
            f"use one of {', '.join(WORKLOADS)}, or name your folder",
        )
    name, own = named(file.parent), {"path": workload}
    try:
        by_steps = declared(file).kind == "steps"
    except (KeyError, TypeError, yaml.YAMLError):
        by_steps = False  # The check of the experiment names what is wrong.
    return {name: own | (_steps(name, epochs) if by_steps else {})}


def _steps(workload: str, epochs: int) -> dict[str, Any]:
    """Return the settings of a workload that is trained by steps."""
    rate = {"value": _RATES.get(workload, 0.001), "reference_batch": _ROWS}
    return {
        "epochs": epochs,
        "batch": {"rows": _ROWS, "per": "global"},
        "learning_rate": rate,
        "seed": 0,
    }


def text(
    settings: Mapping[str, Any], notes: Mapping[str, str] = _NOTES, by: str = "escala new"
) -> str:
    """Return the file of an experiment, with the first sentence of the schema above each key.

    Parameters
    ----------
    settings : of an experiment. Its workloads must be known, so `Experiment` comes before.
    notes : a further sentence by key.
    by : the command that writes it.
    """
    schema = composed(read_yaml(SCHEMA))
    return "\n".join(_lines(settings, schema, notes, by)) + "\n"


def _lines(
    settings: Mapping[str, Any], schema: Mapping[str, Any], notes: Mapping[str, str], by: str
) -> Iterator[str]:
    yield f"# An experiment of Escala, written by `{by}`. Change any value."
    yield "# docs/reference/configuration.md describes every key, also those that are not here."
    for key, value in settings.items():
        # Short keys at the top stand together, with their comments; sections stand apart.
        yield from ("",) if isinstance(value, (dict, list)) else ()
        yield from _comment(key, schema["properties"].get(key, {}), notes, 0)
        if key in ("datasets", "workloads"):
            yield f"{key}:"
            for name, inner in value.items():
                yield f"  {_flow(name)}:{'' if inner else ' {}'}"
                described = schema["$defs"][_definition(key, name, inner)]["properties"]
                for part, content in inner.items():
                    yield from _comment(part, described.get(part, {}), notes, 4)
                    yield f"    {part}: {_flow(content)}"
        elif key == "variants":
            yield f"{key}:"
            yield from (f"  {name}: {_flow(inner)}" for name, inner in value.items())
        elif isinstance(value, list):
            yield f"{key}:"
            yield from (f"  - {_flow(item)}" for item in value)
        else:
            yield f"{key}: {_flow(value)}"


def _definition(key: str, name: str, settings: Mapping[str, Any]) -> str:
    """Return the name of the definition of a dataset or a workload in the composed schema."""
    return f"dataset_{settings['kind']}" if key == "datasets" else f"workload_{name}"


def _comment(
    key: str, schema: Mapping[str, Any], notes: Mapping[str, str], indent: int
) -> Iterator[str]:
    """Yield the lines of the comment above a key."""
    first, *_ = re.split(r"(?<=\.)\s+(?=[A-Z`])", schema.get("description", ""))
    sentences = " ".join(filter(None, [first, notes.get(key)]))
    prefix = " " * indent + "# "
    yield from textwrap.wrap(
        sentences,
        _WIDTH,
        initial_indent=prefix,
        subsequent_indent=prefix,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _flow(value: Any) -> str:
    """Return a value as YAML on one line."""
    dumped = yaml.safe_dump(
        value, default_flow_style=True, width=math.inf, allow_unicode=True, sort_keys=False
    )
    return dumped.removesuffix("...\n").strip()
