"""Derive the experiment whose runs calibrate the cost model for another experiment.

Its name is that of the other one and `SUFFIX`. Its runs are like any others: stored, repeated
after a failure, and measured again when their code changes. None of them is a run of the other
experiment.

| run | gives |
|---|---|
| `single` `1x1` with three numbers of rows, `REPEATS` times in turns | times of steps |
| clocks of `single` `1x1` | when each gradient is known, and the time of the update |
| collectives on `1x2` | collectives and steps with exchange, rates of a core, contention |
| collectives on `2x1` of each network | collectives and steps with exchange between nodes |

Those of programs are in `escala.experiment.program_calibration`.

A *work* is what one process computes: dataset, workload, and the knobs that `single` reads. So
variants that differ only in the exchange of the ranks are one work.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, NamedTuple

from escala.core.rates import bits_per_second
from escala.data import size_of
from escala.data.size import Size
from escala.experiment import program_calibration as programs
from escala.experiment.matrix import Experiment
from escala.experiment.references import NATIVE, ONE_PROCESS
from escala.experiment.runs import Run, takes_steps
from escala.probes import PROBES
from escala.probes.collectives import Collectives, library
from escala.runtime.layout import Layout, global_batch
from escala.strategies import STRATEGIES
from escala.strategies.knobs import all_knobs, complete, read_by_run
from escala.workloads import WORKLOADS

SUFFIX = "-calibration"
REPEATS = 3
#: Steps that a calibrating run takes at least, those with clocks, and the most epochs of a small
#: dataset.
STEPS, CLOCK_STEPS, MOST_EPOCHS = 20, 40, 50
#: Rows that a run takes at least if they have up to so many numbers; longer rows are fewer.
ROWS, NUMBERS = 8000, 1000
#: The calibrated numbers of rows reach from this share of the fewest that are predicted to this
#: share of the most.
_LEAST, _MOST, _NUMBERS = 0.75, 1.5, 3
#: Share of the expected training rows that a split surely has.
_SURE = 0.9
#: Knobs that the cost model applies itself, or that slow ranks on purpose.
_APPLIED = ("accumulation", "compression", "dense_exchange", "sparse_as_dense")
_ON_PURPOSE = ("slowdown", "busy_neighbours", "shares", "shard", "timeline")
#: Knobs that change the time of a collective.
_OF_COLLECTIVES = ("yield_when_idle", "eager_limit_mib", "communication")
#: Keys of a variant that are no knobs.
_TRAINING = ("batch", "learning_rate", "checkpoint_epochs")
_NAME_LETTERS = 64
ONE_NODE, TWO_NODES = "1x2", "2x1"


class Work(NamedTuple):
    """Computation of one process, calibrated with some numbers of rows.

    Attributes
    ----------
    variant : the first of the experiment whose process computes it.
    rows : of a step of one process, in increasing order.
    """

    dataset: str
    workload: str
    variant: str
    rows: tuple[int, ...]

    @property
    def name(self) -> str:
        """The name in a calibration."""
        return f"{self.dataset} {self.workload} {self.variant}"

    @property
    def middle(self) -> int:
        return self.rows[len(self.rows) // 2]


class Calibration(Experiment):
    """The experiment whose runs calibrate the cost model for `base`.

    Raises
    ------
    InputError : the cost model predicts no configuration of `base`.
    """

    def __init__(self, base: Experiment):
        self.base = base
        super().__init__(self._derived(), base.origin)

    def data_folder(self, dataset):
        return self.base.data_folder(dataset)

    def references_of(self, run):
        """Return nothing: times of steps are used as they are."""
        return []

    def settings_of(self, run):
        """Return the settings of a run; a small dataset has as many epochs as its steps take.

        Short steps are many, because the speed of the machine changes from second to second.
        """
        settings = super().settings_of(run)
        if WORKLOADS[run.workload].kind == "command":
            return settings
        size = size_of(self.datasets[run.dataset])
        train_rows = size.train_rows
        rows = global_batch(settings["training"], Layout.parse(run.layout).ranks)
        steps = settings["max_steps"] or max(STEPS, math.ceil(_least_rows(size) / rows))
        epochs = min(math.ceil(steps * rows / train_rows), MOST_EPOCHS) if train_rows else 1
        training = settings["training"] | {"epochs": epochs}
        return settings | {"training": training, "max_steps": math.ceil(steps / epochs)}

    @cached_property
    def works(self) -> dict[tuple[str, str, str], Work]:
        """The work of each dataset, workload and variant that the cost model predicts."""
        rows: dict[tuple, set[int]] = {}
        first: dict[tuple, str] = {}
        of_variant: dict[tuple[str, str, str], tuple] = {}
        for run in predictable(self.base):
            key = (run.dataset, run.workload, repr(_of_one_process(self.base, run)))
            of_variant[run.dataset, run.workload, run.variant] = key
            first.setdefault(key, run.variant)
            rows.setdefault(key, set()).add(rows_of_part(self.base, run))
        return {
            names: Work(*names[:2], first[key], calibrated_rows(rows[key], self._most_rows(key[0])))
            for names, key in of_variant.items()
        }

    def _most_rows(self, dataset: str) -> float | None:
        """Return the most rows of a step that a split surely has, None if that is not known."""
        train_rows = size_of(self.base.datasets[dataset]).train_rows
        return None if train_rows is None else _SURE * train_rows

    def work_of(self, run: Run) -> Work:
        return self.works[run.dataset, run.workload, run.variant]

    def _derived(self) -> dict:
        settings, works = self.base.settings, self.different_works
        program_works = list(self.program_works.values())
        if not works and not program_works:
            self._refuse("none of them is predicted by the cost model")
        if works and not self._shared:
            self._refuse("none of them has several ranks that the cost model predicts")
        known = all_knobs()
        usual = {name: known[name].default for name in (*_APPLIED, *_ON_PURPOSE)}
        variants = {
            variant_name(work.variant, rows): {
                **settings["variants"][work.variant],
                **usual,
                "batch": {"rows": rows, "per": "rank"},
            }
            for work in (*works, *program_works)
            for rows in work.rows
        }
        for variant in variants.values():
            for name in ("learning_rate", "checkpoint_epochs"):
                variant.pop(name, None)
        middles = sorted({variant_name(work.variant, work.middle) for work in works})
        strategy, layout = ONE_PROCESS
        one = {"strategy": strategy, "layouts": [layout], "variants": sorted(variants)}
        configurations = [one] if works else []
        configurations += [self._of_ranks(name, middles) for name in self._shared]
        configurations = _merged([*configurations, *self._program_configurations(program_works)])
        datasets = {work.dataset for work in (*works, *program_works)}
        workloads = {
            **{work.workload: _untested(settings["workloads"][work.workload]) for work in works},
            **{
                work.workload: programs.one_process(
                    work.workload, settings["workloads"][work.workload]
                )
                for work in program_works
            },
            **{
                programs.sums_name(work): programs.sums_program(work)
                for work in program_works
                if STRATEGIES[work.strategy].library_of_programs
            },
        }
        off = {"enabled": False}
        return settings | {
            "experiment": f"{self.base.name}{SUFFIX}",
            "title": f"Calibration for {self.base.name}",
            "repeats": REPEATS,
            "datasets": {
                name: each for name, each in settings["datasets"].items() if name in datasets
            },
            "workloads": workloads,
            "variants": variants,
            "networks": {
                name: each | {"steps": None} for name, each in settings["networks"].items()
            },
            "configurations": configurations,
            "references": [
                {
                    "strategy": configurations[0]["strategy"],
                    "layout": configurations[0]["layouts"][0],
                }
            ],
            "ladders": {},
            **dict.fromkeys(PROBES, off),
            "clocks": {"enabled": True, "steps": CLOCK_STEPS},
            "collectives": off | shared_settings(max(1, len(works))),
        }

    def _refuse(self, reason: str) -> None:
        raise self.base.error(
            "configurations",
            sorted({run.strategy for run in self.base.runs}),
            reason,
            "add one of horovod-mpi, horovod-gloo or multiworker-mirrored with several ranks and "
            "a workload that is trained by steps, or a program that names {rows}",
        )

    @property
    def _shared(self) -> list[str]:
        """The strategies of several ranks that are predicted."""
        runs = predictable(self.base)
        return list(
            dict.fromkeys(run.strategy for run in runs if library(STRATEGIES[run.strategy]))
        )

    def _of_ranks(self, strategy: str, variants: list[str]) -> dict:
        """Return the configurations of a strategy in which collectives may be timed."""
        runs = [run for run in predictable(self.base) if run.strategy == strategy]
        several = any(Layout.parse(run.layout).nodes > 1 for run in runs)
        layouts = [ONE_NODE, *[TWO_NODES] * several]
        return {"strategy": strategy, "layouts": layouts, "variants": variants}

    @cached_property
    def program_works(self) -> dict[tuple, programs.ProgramWork]:
        """The work of each dataset, program, strategy and variant that has bounds."""
        return programs.works(self.base, calibrated_rows)

    def _program_configurations(self, works: list[programs.ProgramWork]) -> list[dict]:
        """Return the configurations of one process, and of the layouts on which sums are timed."""
        return [
            {
                "strategy": work.strategy,
                "layouts": list(
                    dict.fromkeys(
                        [ONE_PROCESS[1], *(of[0] for of in self._sums_layouts(work, True))]
                    )
                ),
                "variants": [variant_name(work.variant, rows) for rows in work.rows],
            }
            for work in works
        ]

    def _sums_layouts(self, work: programs.ProgramWork, links: bool) -> list[tuple[str, str]]:
        return programs.sums_layouts(self.base, work, links)

    def program_runs(self, links: bool) -> dict[str, dict[str, list[list[Run]]]]:
        """Return the runs that calibrate each program: of its steps, and of the sums by layout."""
        return {
            work.name: {
                "steps": [programs.steps_runs(self.name, work, REPEATS, variant_name)],
                "sums": programs.sums_runs(
                    self.name,
                    work,
                    self._sums_layouts(work, links),
                    variant_name(work.variant, work.rows[len(work.rows) // 2]),
                    REPEATS,
                ),
            }
            for work in self.program_works.values()
        }

    def steps_of(self, work: Work) -> list[Run]:
        """Return the timing runs of one process, of all numbers of rows and repeats."""
        return [
            self._one(work, rows, repeat=repeat)
            for repeat in range(1, REPEATS + 1)
            for rows in work.rows
        ]

    def clocks_of(self, work: Work) -> Run:
        return self._one(work, work.middle, instrument="clocks")

    def _one(self, work: Work, rows: int, **last: Any) -> Run:
        names = (work.dataset, work.workload, *ONE_PROCESS, variant_name(work.variant, rows))
        return Run(self.name, *names, NATIVE, **({"repeat": None} | last))

    def collectives(self, links: bool) -> list[Run]:
        """Return the runs that time collectives.

        Parameters
        ----------
        links : whether there are several nodes; without them, only collectives of one node.
        """
        found = {}
        for run in predictable(self.base):
            layout, work = Layout.parse(run.layout), self.work_of(run)
            variant = variant_name(work.variant, work.middle)
            names = (self.name, run.dataset, run.workload, run.strategy)
            last = {"repeat": None, "instrument": "collectives"}
            if layout.ranks > 1 and (layout.processes > 1 or not links):
                found[Run(*names, ONE_NODE, variant, NATIVE, **last)] = None
            if layout.nodes > 1 and links:
                found[Run(*names, TWO_NODES, variant, run.network, **last)] = None
        return list(found)

    def runs_needed(self, links: bool) -> list[Run]:
        """Return all runs of the calibration; `links` as in `collectives`."""
        works = self.different_works
        return [
            *(run for work in works for run in self.steps_of(work)),
            *map(self.clocks_of, works),
            *self.collectives(links),
            *(
                run
                for parts in self.program_runs(links).values()
                for groups in parts.values()
                for group in groups
                for run in group
            ),
        ]

    @property
    def different_works(self) -> list[Work]:
        return list(dict.fromkeys(self.works.values()))

    def gradients_file(self, work: Work) -> str:
        """Return the file that describes the gradients of a work."""
        names = "/".join((work.dataset, work.workload, variant_name(work.variant, work.middle)))
        return f"results/{self.name}/gradients/{names}.json"

    def sources(self, links: bool) -> dict:
        """Return the files of a calibration by what they give, in JSON's types.

        Parameters
        ----------
        links : as in `collectives`.
        """
        works = {
            work.name: {
                "gradients": self.gradients_file(work),
                "steps": [run.file for run in self.steps_of(work)],
                "clocks": self.clocks_of(work).file,
            }
            for work in self.different_works
        }
        return {
            "works": works,
            "collectives": [run.file for run in self.collectives(links)],
            "programs": self._program_sources(links),
        }

    def _program_sources(self, links: bool) -> dict:
        bytes_of = {
            work.name: WORKLOADS[work.workload].program().gradient_bytes
            for work in self.program_works.values()
        }
        return {
            name: {
                "gradient_bytes": bytes_of[name],
                **{
                    part: [[run.file for run in group] for group in groups]
                    for part, groups in parts.items()
                },
            }
            for name, parts in self.program_runs(links).items()
        }


def _merged(configurations: Iterable[Mapping]) -> list[dict]:
    """Return configurations with one entry for each strategy, of all its layouts and variants."""
    found: dict[str, dict[str, dict]] = {}
    for entry in configurations:
        of_strategy = found.setdefault(entry["strategy"], {"layouts": {}, "variants": {}})
        for key, names in of_strategy.items():
            names |= dict.fromkeys(entry[key])
    return [
        {"strategy": strategy, **{key: list(names) for key, names in parts.items()}}
        for strategy, parts in found.items()
    ]


def shared_settings(works: int) -> dict[str, float]:
    """Return the settings of the probe's runs, one for each work, which share its usual time.

    A calibration joins what these runs repeat: rounds of collectives, and collectives after steps.
    Contention is of each work by itself, so a work has fewer rounds of blocks: 4 of 30 steps, if
    there are three works or more.
    """
    of_probe = Collectives.settings["properties"]
    usual = {name: of_probe[name]["default"] for name in ("rounds", "seconds", "steps")}
    rounds = max(of_probe["rounds"]["minimum"], math.ceil(usual["rounds"] / works))
    share = rounds / usual["rounds"]
    return {
        "rounds": rounds,
        "seconds": usual["seconds"] * share,
        "steps": math.ceil(usual["steps"] * share),
    }


def variant_name(variant: str, rows: int) -> str:
    """Return the name of a variant with another number of rows of a rank.

    A long one is cut, and ends with a digest of the whole.
    """
    name = f"rows{rows}-{variant}"
    if len(name) <= _NAME_LETTERS:
        return name
    digest = hashlib.sha256(variant.encode()).hexdigest()[:8]
    return f"{name[: _NAME_LETTERS - len(digest) - 1]}-{digest}"


def _least_rows(size: Size) -> float:
    """Return the rows that a run takes at least; fewer if a row has many numbers."""
    numbers = sum(math.prod(each["shape"]) for each in size.inputs or ())
    return ROWS * NUMBERS / max(numbers, NUMBERS)


def _untested(workload: Mapping[str, Any]) -> dict:
    """Return the settings of a workload without what happens outside its steps."""
    off = {"validate": False, "tensorboard": False, "save_model": False, "checkpoint_epochs": None}
    left_out = ("early_stopping", "target_accuracy")
    return {name: value for name, value in workload.items() if name not in left_out} | off


def calibrated_rows(predicted: Iterable[int], most: float | None = None) -> tuple[int, ...]:
    """Return numbers of rows around those that are predicted, and none of them.

    They are in a geometric series, and increase.

    Parameters
    ----------
    most : limit of the largest; a few rows more are possible. None is no limit.
    """
    predicted = set(predicted)
    low, high = max(1.0, _LEAST * min(predicted)), _MOST * max(predicted)
    if most is not None:
        high = min(high, most)
        low = max(1.0, min(low, _LEAST * high))
    found: set[int] = set()
    for number in range(_NUMBERS):
        rows = round(low * (high / low) ** (number / (_NUMBERS - 1)))
        while rows in predicted or rows in found:
            rows += 1
        found.add(rows)
    return tuple(sorted(found))


def predictable(experiment: Experiment) -> list[Run]:
    """Return the first repeat of each configuration that the cost model predicts."""
    return [run for run in first_repeats(experiment) if unsupported(experiment, run) is None]


def first_repeats(experiment: Experiment) -> list[Run]:
    """Return the first repeat of each configuration of a workload that is trained by steps."""
    return [run for run in experiment.runs if run.repeat == 1 and takes_steps(run)]


def unsupported(experiment: Experiment, run: Run) -> str | None:
    """Return why the cost model does not predict a run, or None."""
    strategy = STRATEGIES[run.strategy]
    variant = experiment.settings["variants"][run.variant]
    if run.strategy != ONE_PROCESS[0] and library(strategy) is None:
        return f"the model does not know how {run.strategy} exchanges gradients"
    if strategy.by_speed:
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


def _of_one_process(experiment: Experiment, run: Run) -> dict:
    """Return the knobs that determine what one process computes in a step."""
    known = all_knobs()
    usual = {name: known[name].default for name in (*_APPLIED, *_ON_PURPOSE)}
    return read_by_run(_knobs(experiment, run.variant) | usual, ONE_PROCESS[0], run.workload)


def _knobs(experiment: Experiment, variant: str) -> dict:
    settings = experiment.settings["variants"][variant]
    return {name: value for name, value in settings.items() if name not in _TRAINING}


def planned(calibration: Calibration) -> list[dict]:
    """Return each configuration of the experiment as the cost model needs it, in JSON's types.

    `unavailable` is the reason why a configuration is not predicted, and None otherwise.
    """
    base = calibration.base
    return [
        *(_planned(calibration, run, unsupported(base, run)) for run in first_repeats(base)),
        *(_planned_program(calibration, run) for run in programs.first_of_programs(base)),
    ]


def _planned_program(calibration: Calibration, run: Run) -> dict:
    names = ("dataset", "workload", "strategy", "layout", "variant", "network")
    found: dict[str, Any] = {name: getattr(run, name) for name in names}
    found["unavailable"] = programs.unsupported(run)
    if found["unavailable"]:
        return found
    settings = calibration.base.settings_of(run)
    key = (run.dataset, run.workload, run.strategy, run.variant)
    work = calibration.program_works.get(key)
    if work is None:
        return found | {"unavailable": "no layout of several ranks beside it has bounds"}
    ranks = Layout.parse(run.layout).ranks
    return found | {
        "program": work.name,
        "rows": global_batch(settings["training"], ranks),
        "cores": calibration.base.settings["variants"][run.variant]["cores_per_process"],
    }


def _planned(calibration: Calibration, run: Run, unavailable: str | None) -> dict:
    base, strategy = calibration.base, STRATEGIES[run.strategy]
    settings = base.settings_of(run)
    names = ("dataset", "workload", "strategy", "layout", "variant", "network")
    found: dict[str, Any] = {name: getattr(run, name) for name in names}
    found["unavailable"] = unavailable
    if unavailable:
        return found
    knobs = complete(settings["knobs"], run.workload)
    rate = settings["link"]["rate"]
    work = calibration.work_of(run)
    first = complete(
        read_by_run(_knobs(base, work.variant), run.strategy, run.workload), run.workload
    )
    return found | {
        "work": work.name,
        "rows": global_batch(settings["training"], Layout.parse(run.layout).ranks),
        "library": library(strategy),
        "cores": knobs["cores_per_process"],
        "bits_per_second": bits_per_second(rate) if rate else None,
        "exchange": {name: knobs[name] for name in _APPLIED},
        "other_knobs": [name for name in _OF_COLLECTIVES if knobs[name] != first[name]],
    }


def adopted(name: str) -> str | None:
    """Return the name of the experiment that a calibration of this name belongs to, or None."""
    base = name.removesuffix(SUFFIX)
    return base if base and base != name else None
