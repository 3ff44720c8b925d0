"""List the configurations of an experiment as the cost model and the advice need them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from escala.analysis.cost_model.works import (
    APPLIED,
    Works,
    first_of_programs,
    first_repeats,
    unbounded,
    unsupported,
    variant_knobs,
)
from escala.core.files import read_json
from escala.core.readable import bits_per_second
from escala.experiment import Experiment, Run
from escala.experiment.scaling import WEAK
from escala.runtime.layout import global_batch
from escala.strategies.knobs import complete, read_by_run

#: Knobs that change the time of a collective.
_OF_COLLECTIVES = (
    "yield_when_idle",
    "eager_limit_mib",
    "communication",
    "gradient_as_bucket_view",
)
#: Knobs by which ranks train another model than one process (`escala.analysis.comparable`).
_OTHER_MODEL = ("shard", "trained_module", "weighting")
_NAMES = ("dataset", "workload", "strategy", "layout", "variant", "network")


def planned(works: Works) -> list[dict]:
    """Return each configuration of the experiment as the cost model needs it, in JSON's types.

    `unavailable` is the reason why a configuration is not predicted, and None otherwise. `knobs`
    has those by which ranks may train another model than one process.
    """
    base = works.base
    step_plans = [(run, unsupported(run), _step_plan) for run in first_repeats(base)]
    program_plans = [(run, unbounded(run), _program_plan) for run in first_of_programs(base)]
    return [
        {name: getattr(run, name) for name in _NAMES}
        | {"unavailable": reason}
        | _what_it_takes(base, run)
        | ({} if reason else describe(works, run))
        for run, reason, describe in (*step_plans, *program_plans)
    ]


def _what_it_takes(base: Experiment, run: Run) -> dict[str, Any]:
    """Return the rows of a step, the cores of a process, and by what it may train another model."""
    settings = base.settings_of(run)
    return {
        "rows": global_batch(settings["training"], run.layout.ranks),
        "cores": run.declared.variant["cores_per_process"],
        "learning_rate": settings["training"].get("learning_rate"),
        "knobs": {name: value for name, value in settings["knobs"].items() if name in _OTHER_MODEL},
    }


def _step_plan(works: Works, run: Run) -> dict[str, Any]:
    base = works.base
    settings = base.settings_of(run)
    knobs, rate = complete(settings["knobs"], run.workload), settings["link"]["rate"]
    work = works.work_of(run)
    first = variant_knobs(base.settings["variants"][work.variant])
    first = complete(read_by_run(first, run.strategy, run.workload), run.workload)
    weak = settings["training"].get("weak")
    return {
        "work": work.name,
        "epoch_rows": weak and weak["ranks"] * weak["rows_per_rank"],
        "library": run.declared.strategy.library,
        "bits_per_second": bits_per_second(rate) if rate else None,
        "exchange": {name: knobs[name] for name in APPLIED},
        "other_knobs": [name for name in _OF_COLLECTIVES if knobs[name] != first[name]],
    }


def _program_plan(works: Works, run: Run) -> dict[str, Any]:
    key = (run.dataset, run.workload, run.strategy, run.variant)
    work = works.program_works.get(key)
    if work is None:
        return {"unavailable": "no layout of several ranks alongside it has bounds"}
    return {"program": work.name}


def plans(works: Works) -> dict:
    """Return what advice needs to know of an experiment, in JSON's types, without its rows."""
    settings, found = works.base.settings, planned(works)
    rules = (scaling := settings.get("scaling")) and scaling["rules"]
    if rules and scaling["kind"] == WEAK and rules["same_input"]:
        rules = None
    return {
        "experiment": works.base.name,
        "configurations": found,
        "workloads": {
            # A program validates as it likes.
            name: {
                "epochs": settings["workloads"][name]["epochs"],
                "validate": settings["workloads"][name].get("validate", False),
            }
            for name in dict.fromkeys(each["workload"] for each in found)
        },
        "memory_gib": settings["memory_gib"],
        "rules": rules,
        "power_model": works.base.settings["energy"].get("power_model"),
    }


def with_rows(described: Mapping, datasets: Iterable[Path]) -> dict:
    """Add the number of rows of each side of each dataset, of its last split.

    Parameters
    ----------
    described : the result of `plans`.
    datasets : files …/data/{dataset}/split{seed}/dataset.json
    """
    rows = {path.parent.parent.name: read_json(path)["rows"] for path in datasets}
    return {**described, "rows": rows}
