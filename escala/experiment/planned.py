"""List the configurations of an experiment as the cost model and the advice need them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from escala.core.files import read_json
from escala.core.rates import bits_per_second
from escala.experiment import program_calibration as programs
from escala.experiment.matrix import Experiment
from escala.experiment.references import ONE_PROCESS
from escala.experiment.runs import Run, takes_steps
from escala.probes.collectives import library
from escala.runtime.layout import Layout, global_batch
from escala.strategies import STRATEGIES
from escala.strategies.knobs import all_knobs, complete, read_by_run, reads

if TYPE_CHECKING:
    from escala.experiment.calibration import Calibration

#: Knobs that the cost model applies itself, and that slow ranks on purpose.
APPLIED = ("accumulation", "compression", "dense_exchange", "sparse_as_dense")
ON_PURPOSE = ("slowdown", "busy_neighbours", "fractions", "shard", "timeline")
#: Knobs that change the time of a collective.
_OF_COLLECTIVES = ("yield_when_idle", "eager_limit_mib", "communication")
#: Keys of a variant that are no knobs.
_TRAINING = ("batch", "learning_rate", "checkpoint_epochs")
_NAMES = ("dataset", "workload", "strategy", "layout", "variant", "network")


def first_repeats(experiment: Experiment) -> list[Run]:
    """Return the first repeat of each configuration of a workload that is trained by steps."""
    return [run for run in experiment.runs if run.repeat == 1 and takes_steps(run)]


def predictable(experiment: Experiment) -> list[Run]:
    """Return the first repeat of each configuration that the cost model predicts."""
    return [run for run in first_repeats(experiment) if unsupported(experiment, run) is None]


def unsupported(experiment: Experiment, run: Run) -> str | None:
    """Return why the cost model does not predict a run, or None."""
    strategy = STRATEGIES[run.strategy]
    variant = experiment.settings["variants"][run.variant]
    if run.strategy != ONE_PROCESS[0] and library(strategy) is None:
        return f"the model does not know how {run.strategy} exchanges gradients"
    if reads(run.strategy, "fractions"):
        return f"{run.strategy} divides the rows by the speed of the ranks"
    if variant["shard"] is not True:
        return f"the ranks do not divide the rows (shard: {variant['shard']})"
    if variant["slowdown"] or variant["busy_neighbours"]:
        return "ranks are slowed on purpose"
    return None


def rows_of_part(experiment: Experiment, run: Run) -> int:
    """Return the rows that a rank computes at a time."""
    ranks = Layout.parse(run.layout).ranks
    rows = math.ceil(global_batch(experiment.settings_of(run)["training"], ranks) / ranks)
    return math.ceil(rows / experiment.settings["variants"][run.variant]["accumulation"])


def knobs_of_one_process(experiment: Experiment, run: Run) -> dict:
    """Return the knobs that determine what one process computes in a step."""
    known = all_knobs()
    usual = {name: known[name].default for name in (*APPLIED, *ON_PURPOSE)}
    return read_by_run(_knobs(experiment, run.variant) | usual, ONE_PROCESS[0], run.workload)


def _knobs(experiment: Experiment, variant: str) -> dict:
    settings = experiment.settings["variants"][variant]
    return {name: value for name, value in settings.items() if name not in _TRAINING}


def planned(calibration: Calibration) -> list[dict]:
    """Return each configuration of the experiment as the cost model needs it, in JSON's types.

    `unavailable` is the reason why a configuration is not predicted, and None otherwise.
    """
    base = calibration.base
    step_plans = [(run, unsupported(base, run), _step_plan) for run in first_repeats(base)]
    program_plans = [
        (run, programs.unsupported(run), _program_plan) for run in programs.first_of_programs(base)
    ]
    return [
        {name: getattr(run, name) for name in _NAMES}
        | {"unavailable": reason}
        | ({} if reason else describe(calibration, run))
        for run, reason, describe in (*step_plans, *program_plans)
    ]


def _step_plan(calibration: Calibration, run: Run) -> dict[str, Any]:
    base = calibration.base
    settings = base.settings_of(run)
    knobs, rate = complete(settings["knobs"], run.workload), settings["link"]["rate"]
    work = calibration.works[run.dataset, run.workload, run.variant]
    first = read_by_run(_knobs(base, work.variant), run.strategy, run.workload)
    first = complete(first, run.workload)
    return {
        "work": work.name,
        "rows": global_batch(settings["training"], Layout.parse(run.layout).ranks),
        "library": library(STRATEGIES[run.strategy]),
        "cores": knobs["cores_per_process"],
        "bits_per_second": bits_per_second(rate) if rate else None,
        "exchange": {name: knobs[name] for name in APPLIED},
        "other_knobs": [name for name in _OF_COLLECTIVES if knobs[name] != first[name]],
    }


def _program_plan(calibration: Calibration, run: Run) -> dict[str, Any]:
    key = (run.dataset, run.workload, run.strategy, run.variant)
    work = calibration.program_works.get(key)
    if work is None:
        return {"unavailable": "no layout of several ranks alongside it has bounds"}
    base = calibration.base
    training = base.settings_of(run)["training"]
    return {
        "program": work.name,
        "rows": global_batch(training, Layout.parse(run.layout).ranks),
        "cores": base.settings["variants"][run.variant]["cores_per_process"],
    }


def plans(calibration: Calibration) -> dict:
    """Return what advice needs to know of an experiment, in JSON's types, without its rows."""
    settings, found = calibration.base.settings, planned(calibration)
    return {
        "experiment": calibration.base.name,
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
        "power_model": calibration.base.probe_settings["energy"].get("power_model"),
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
