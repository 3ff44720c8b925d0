"""Tell which configurations of an experiment the cost model predicts, and what they compute."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from escala.experiment.matrix import Experiment
from escala.experiment.references import one_process
from escala.experiment.runs import Run, takes_steps
from escala.probes.clocks import Clocks
from escala.probes.collectives import Collectives
from escala.runtime.layout import global_batch
from escala.strategies import STRATEGIES
from escala.strategies.knobs import all_knobs, read_by_run, reads
from escala.strategies.torch import SHARED_MEMORY

#: Knobs that the cost model applies itself, and that slow ranks on purpose.
APPLIED = (
    "accumulation",
    "bucket_cap_mb",
    "communication_hook",
    "compression",
    "dense_exchange",
    "sparse_as_dense",
)
ON_PURPOSE = ("slowdown", "busy_neighbours", "fractions", "shard", "timeline")
#: Keys of a variant that are no knobs.
_TRAINING = ("batch", "learning_rate", "checkpoint_epochs")


def first_repeats(experiment: Experiment) -> list[Run]:
    """Return the first repeat of each configuration of a workload that is trained by steps."""
    return [run for run in experiment.runs if run.repeat == 1 and takes_steps(run)]


def predictable(experiment: Experiment) -> list[Run]:
    """Return the first repeat of each configuration that the cost model predicts."""
    return [run for run in first_repeats(experiment) if unsupported(run) is None]


def unsupported(run: Run) -> str | None:
    """Return why the cost model does not predict a run, or None."""
    strategy, variant = run.declared.strategy, run.declared.variant
    alone = STRATEGIES[one_process(run.strategy)[0]]
    if not alone.records_for(Clocks.name):
        return f"no run of {alone.name} records when the parts of a step begin and end"
    if strategy is not alone and not (strategy.library and strategy.records_for(Collectives.name)):
        return f"the model does not know how {run.strategy} exchanges gradients"
    name = "communication_hook"
    if variant[name] == SHARED_MEMORY and reads(run.strategy, name):
        unknown = "how fast ranks copy and sum gradients in shared memory"
        return f"the model does not know {unknown}"
    if reads(run.strategy, "fractions"):
        return f"{run.strategy} divides the rows by the speed of the ranks"
    if variant["shard"] is not True:
        return f"the ranks do not divide the rows (shard: {variant['shard']})"
    if variant["slowdown"] or variant["busy_neighbours"]:
        return "ranks are slowed on purpose"
    return None


def rows_of_part(experiment: Experiment, run: Run) -> int:
    """Return the rows that a rank computes at a time."""
    ranks = run.layout.ranks
    rows = math.ceil(global_batch(experiment.settings_of(run)["training"], ranks) / ranks)
    return math.ceil(rows / run.declared.variant["accumulation"])


def knobs_of_one_process(run: Run) -> dict:
    """Return the knobs that determine what one process computes in a step."""
    known = all_knobs()
    usual = {name: known[name].default for name in (*APPLIED, *ON_PURPOSE)}
    knobs = variant_knobs(run.declared.variant) | usual
    return read_by_run(knobs, one_process(run.strategy)[0], run.workload)


def variant_knobs(variant: Mapping[str, Any]) -> dict:
    return {name: value for name, value in variant.items() if name not in _TRAINING}
