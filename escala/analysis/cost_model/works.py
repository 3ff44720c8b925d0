"""List what one process computes in an experiment, and which configurations can be predicted.

`plan_works` describes each configuration as the cost model and the advice need it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from escala.analysis.comparable import CONFIGURATION
from escala.core.files import read_json
from escala.core.readable import bits_per_second
from escala.data.settings import derive
from escala.engines import costs
from escala.experiment import Experiment, Run
from escala.experiment.runs import ONE_PROCESS, one_process, takes_steps
from escala.experiment.scaling import WEAK
from escala.experiment.schema import OF_PROGRAMS
from escala.probes.clocks import Clocks
from escala.runtime.layout import global_batch
from escala.strategies import STRATEGIES
from escala.strategies.knobs import all_knobs, complete, read_by_run, reads

#: Knobs of the exchange, which the cost model applies itself, and knobs that slow ranks on purpose.
APPLIED = (
    "accumulation",
    "bucket_cap_mb",
    "communication_hook",
    "compression",
    "dense_exchange",
    "sparse_as_dense",
)
ON_PURPOSE = ("slowdown", "busy_neighbours", "fractions", "shard", "timeline")
#: Knobs that change the time of a collective.
_OF_COLLECTIVES = (
    "yield_when_idle",
    "eager_limit_mib",
    "communication",
    "gradient_as_bucket_view",
)
#: Knobs by which ranks train another model than one process (`escala.analysis.comparable`).
_OTHER_MODEL = ("shard", "trained_module", "weighting")
#: Keys of a variant that are no knobs.
_TRAINING = ("batch", "learning_rate", "checkpoint_epochs", *OF_PROGRAMS)
#: `_NUMBERS` numbers of rows are calibrated: from `_LEAST` times the fewest predicted rows to
#: `_MOST` times the most predicted rows.
_LEAST, _MOST, _NUMBERS = 0.75, 1.5, 3
#: A split surely has this fraction of the expected training rows.
_SURE = 0.9
#: Largest number of letters in the name of a variant.
_NAME_LETTERS = 64


class Work(NamedTuple):
    """A computation of one process, timed with several numbers of rows.

    Two variants are one work if they have the same values of the knobs that the strategy of one
    process reads. So variants that differ only in the exchange of the ranks are one work.

    Attributes
    ----------
    strategy : strategy of the one process: that of the engine, or for a program that of its runs.
    variant : the first variant of the experiment that belongs to this work.
    rows : numbers of rows in a step of one process, in increasing order.
    """

    dataset: str
    workload: str
    strategy: str
    variant: str
    rows: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name of the work in a calibration."""
        return " ".join(part for part in self[:4] if part != ONE_PROCESS[0])

    @property
    def middle_rows(self) -> int:
        return self.rows[len(self.rows) // 2]


class Works:
    """The work of one process in the configurations of `base` that are predicted."""

    def __init__(self, base: Experiment):
        self.base = base

    @cached_property
    def works(self) -> dict[tuple[str, str, str, str], Work]:
        """The work of each dataset, workload, strategy of one process and variant."""
        # A computation is a dataset, a workload, a strategy, and the knobs that the strategy reads.
        computations: dict[tuple[str, str, str, str], tuple] = {}
        rows: dict[tuple, set[int]] = {}
        first_variant: dict[tuple, str] = {}
        for run in predictable(self.base):
            names = self._names_of_work(run)
            knobs = variant_knobs(run.declared.variant) | usual_knobs()
            knobs = read_by_run(knobs, names[2], run.workload)
            computation = (*names[:3], repr(knobs))
            computations[names] = computation
            first_variant.setdefault(computation, run.variant)
            ranks = run.layout.ranks
            rank_rows = -(-global_batch(self.base.settings_of(run)["training"], ranks) // ranks)
            rows_at_a_time = -(-rank_rows // run.declared.variant["accumulation"])
            rows.setdefault(computation, set()).add(rows_at_a_time)
        works = {}
        for names, computation in computations.items():
            train_rows = derive("size", self.base.datasets[names[0]]).rows
            most = None if train_rows is None else _SURE * train_rows
            to_calibrate = rows_to_calibrate(rows[computation], most)
            works[names] = Work(*names[:3], first_variant[computation], to_calibrate)
        return works

    @staticmethod
    def _names_of_work(run: Run) -> tuple[str, str, str, str]:
        return run.dataset, run.workload, one_process(run.strategy)[0], run.variant

    def work_of(self, run: Run) -> Work:
        """Return the work of a configuration that the cost model predicts."""
        return self.works[self._names_of_work(run)]

    @property
    def different_works(self) -> list[Work]:
        return list(dict.fromkeys(self.works.values()))

    @cached_property
    def program_works(self) -> dict[tuple[str, str, str, str], Work]:
        """The work of each dataset, program, strategy and variant that has bounds.

        A work that runs only in one process is left out: there is nothing to predict.
        """
        rows: dict[tuple, set[int]] = {}
        with_several_ranks = set()
        for run in first_of_programs(self.base):
            if why_unbounded(run) is None:
                names = run.dataset, run.workload, run.strategy, run.variant
                ranks = run.layout.ranks
                batch = global_batch(self.base.settings_of(run)["training"], ranks)
                rows.setdefault(names, set()).update((batch, -(-batch // ranks)))
                if ranks > 1:
                    with_several_ranks.add(names)
        return {
            names: Work(*names, rows_to_calibrate(predicted))
            for names, predicted in rows.items()
            if names in with_several_ranks
        }


def rows_to_calibrate(predicted: Iterable[int], most: float | None = None) -> tuple[int, ...]:
    """Return numbers of rows around the predicted numbers, without these, in increasing order.

    The result is approximately a geometric series.

    Parameters
    ----------
    most : limit of the largest number, which may exceed this limit by a few rows; None for no
        limit.
    """
    predicted = set(predicted)
    low, high = max(1.0, _LEAST * min(predicted)), _MOST * max(predicted)
    if most is not None:
        high = min(high, most)
        low = max(1.0, min(low, _LEAST * high))
    numbers: set[int] = set()
    for number in range(_NUMBERS):
        rows = round(low * (high / low) ** (number / (_NUMBERS - 1)))
        while rows in predicted or rows in numbers:
            rows += 1
        numbers.add(rows)
    return tuple(sorted(numbers))


def variant_name(variant: str, rows: int) -> str:
    """Return the name of a variant with another number of rows for each rank.

    A long name is cut, and ends with a digest of the whole name.
    """
    name = f"rows{rows}-{variant}"
    if len(name) <= _NAME_LETTERS:
        return name
    digest = hashlib.sha256(variant.encode()).hexdigest()[:8]
    return f"{name[: _NAME_LETTERS - len(digest) - 1]}-{digest}"


def first_repeats(experiment: Experiment) -> list[Run]:
    """Return the first repeat of each configuration of a workload that is trained by steps."""
    return [run for run in experiment.runs if run.repeat == 1 and takes_steps(run)]


def predictable(experiment: Experiment) -> list[Run]:
    """Return the first repeat of each configuration that the cost model predicts."""
    return [run for run in first_repeats(experiment) if why_unsupported(run) is None]


def first_of_programs(experiment: Experiment) -> list[Run]:
    return [run for run in experiment.runs if run.repeat == 1 and run.declared.workload.is_program]


def why_unsupported(run: Run) -> str | None:
    """Return why the cost model does not predict a run, or None."""
    strategy, variant = run.declared.strategy, run.declared.variant
    single = STRATEGIES[one_process(run.strategy)[0]]
    if not single.records_for(Clocks.name):
        return f"no run of {single.name} records when the parts of a step begin and end"
    if strategy is not single and not strategy.library:
        return f"the model does not know how {run.strategy} exchanges gradients"
    knob = "communication_hook"
    if variant[knob] == costs.SHARED_MEMORY and reads(run.strategy, knob):
        return "the model does not know how fast ranks copy and sum gradients in shared memory"
    if reads(run.strategy, "fractions"):
        return f"{run.strategy} divides the rows by the speed of the ranks"
    if variant["shard"] is not True:
        return f"the ranks do not divide the rows (shard: {variant['shard']})"
    if variant["slowdown"] or variant["busy_neighbours"]:
        return "ranks are slowed on purpose"
    return None


def why_unbounded(run: Run) -> str | None:
    """Return why the run of a program has no bounds, or None."""
    program, strategy = run.declared.workload.program(), run.declared.strategy
    if set(OF_PROGRAMS) & set(run.declared.variant):
        return f"the variant {run.variant} starts another program than the workload names"
    if not program.placeholders & {"rows", "rows_of_rank"}:
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


def usual_knobs() -> dict[str, Any]:
    """Return the defaults of the knobs that do not change the computation of one process."""
    knobs = all_knobs()
    return {name: knobs[name].default for name in (*APPLIED, *ON_PURPOSE)}


def variant_knobs(variant: Mapping[str, Any]) -> dict:
    """Return the knobs of a variant, without its further keys."""
    return {name: value for name, value in variant.items() if name not in _TRAINING}


def plan_works(works: Works) -> list[dict]:
    """Return a plan of each configuration of the experiment, in JSON's types.

    Returns
    -------
    The names of `CONFIGURATION`; `unavailable` (why the configuration is not predicted, or None),
    `rows` (rows in a step of all ranks), `cores` (cores of a process), `learning_rate`, and `knobs`
    (by which ranks may train another model than one process). If a program has bounds, `program` is
    the name of its work. If the cost model predicts the configuration, there are `work` (name of
    the work), `epoch_rows` (with weak scaling, or None), `library`, `bits_per_second` (the
    requested rate, or None), `exchange` (the knobs `APPLIED`), and `other_knobs` (knobs of
    collectives whose values differ from the calibrated ones).
    """
    base, configurations = works.base, []
    by_steps = [(run, why_unsupported(run)) for run in first_repeats(base)]
    programs = [(run, why_unbounded(run)) for run in first_of_programs(base)]
    for run, reason in (*by_steps, *programs):
        settings, plan = base.settings_of(run), {}
        if not reason and run.declared.workload.is_program:
            names = run.dataset, run.workload, run.strategy, run.variant
            plan = {"unavailable": "no layout of several ranks alongside it has bounds"}
            if work := works.program_works.get(names):
                plan = {"program": work.name}
        elif not reason:
            knobs, rate = complete(settings["knobs"], run.workload), settings["link"]["rate"]
            work = works.work_of(run)
            calibrated = variant_knobs(base.settings["variants"][work.variant])
            calibrated = complete(read_by_run(calibrated, run.strategy, run.workload), run.workload)
            weak = settings["training"].get("weak")
            plan = {
                "work": work.name,
                "epoch_rows": weak and weak["ranks"] * weak["rows_per_rank"],
                "library": run.declared.strategy.library,
                "bits_per_second": bits_per_second(rate) if rate else None,
                "exchange": {name: knobs[name] for name in APPLIED},
                "other_knobs": [
                    name for name in _OF_COLLECTIVES if knobs[name] != calibrated[name]
                ],
            }
        configurations.append(
            {name: getattr(run, name) for name in CONFIGURATION}
            | {
                "unavailable": reason,
                "rows": global_batch(settings["training"], run.layout.ranks),
                "cores": run.declared.variant["cores_per_process"],
                "learning_rate": settings["training"].get("learning_rate"),
                "knobs": {
                    name: value for name, value in settings["knobs"].items() if name in _OTHER_MODEL
                },
            }
            | plan
        )
    return configurations


def plans(works: Works) -> dict:
    """Return the plans of an experiment for advice, in JSON's types, without numbers of rows.

    In a study of weak scaling, `rules` are None if they require the same input for all sizes.
    """
    settings, configurations = works.base.settings, plan_works(works)
    scaling = settings.get("scaling")
    rules = scaling and scaling["rules"]
    if rules and scaling["kind"] == WEAK and rules["same_input"]:
        rules = None
    return {
        "experiment": works.base.name,
        "configurations": configurations,
        "workloads": {
            # A program has no setting `validate`.
            name: {
                "epochs": settings["workloads"][name]["epochs"],
                "validate": settings["workloads"][name].get("validate", False),
            }
            for name in dict.fromkeys(plan["workload"] for plan in configurations)
        },
        "memory_gib": settings["memory_gib"],
        "rules": rules,
        "power_model": settings["energy"].get("power_model"),
    }


def with_rows(described: Mapping, datasets: Iterable[Path]) -> dict:
    """Add the number of rows of each side of each dataset, from the dataset's last split.

    Parameters
    ----------
    described : the result of `plans`.
    datasets : files …/data/{dataset}/split{seed}/dataset.json
    """
    rows = {path.parent.parent.name: read_json(path)["rows"] for path in datasets}
    return {**described, "rows": rows}
