"""Advise which configuration to use for a goal within limits, or not to distribute at all.

| module | what it does |
|---|---|
| `candidates` | finds the seconds of each configuration, predicted or measured |
| `measured` | reads the tables of an experiment; measured ratios replace predictions |
| `choice` | selects a candidate for a goal within limits |
| `changes` | finds what would have to change for several ranks to save much time |
| `text` | writes an advice in words, as lines of a job script, and as advice.json |

Configurations are compared for the same number of rows in a step, so they make the same updates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from escala.analysis.advice import changes
from escala.analysis.advice.candidates import (
    Candidate,
    Ratios,
    Training,
    configuration_of,
    find_candidates,
    select_base,
)
from escala.analysis.advice.choice import TIME, Choice, Limits, Power, choose
from escala.analysis.advice.measured import (
    Measured,
    machine_of,
    memory_of,
    read_measured,
    with_ratios,
)
from escala.analysis.best_use import BestUse
from escala.analysis.cost_model.calibration import Calibration, read
from escala.analysis.cost_model.predict import DRAWS
from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import read_json
from escala.experiment.runs import NATIVE, Configuration
from escala.runtime.layout import with_layout

#: Files in the folder of an experiment.
CALIBRATION, PLANS = "calibration.json", "plans.json"
#: Remedy for a file that is missing or damaged.
_MAKE = (
    f"make it: {call('run advice')}, with --experiment FILE; inside a job of several nodes "
    "their links are calibrated, too"
)
_PLAN_KEYS = ("experiment", "configurations", "workloads", "rows", "memory_gib", "power_model")
_JOULES_PER_WATT_HOUR = 3600


@dataclass(frozen=True)
class Question:
    """Goal and limits of the advice that a user wants.

    Attributes
    ----------
    partition : partition of SLURM, for the lines of a job script; None to let SLURM choose.
    joules_per_core_hour : as the user states it; None to use the power model of the experiment.
    """

    goal: str = TIME
    limits: Limits = field(default_factory=Limits)
    partition: str | None = None
    joules_per_core_hour: float | None = None


@dataclass(frozen=True)
class Answer:
    """Advice for a dataset, a workload and a network between nodes.

    Attributes
    ----------
    unpredicted : for each configuration that is no candidate, the reason.
    choice : None if no configuration can be chosen.
    changes : what would have to change for several ranks to save `changes.SAVING`.
    unavailable : why there is no choice; None if there is a choice.
    """

    dataset: str
    workload: str
    network: str
    training: Training
    unpredicted: Mapping[Configuration, str]
    choice: Choice | None = None
    changes: tuple[changes.Change, ...] = ()
    unavailable: str | None = None


@dataclass(frozen=True)
class Advice:
    """The answers to a question about an experiment.

    Attributes
    ----------
    power : the power from which energy was computed; None if no power is known.
    rules : the rules of the experiment's scaling study, if it has a study.
    machine : the calibrated machine, or else the machine of a run, with `cores_per_node`.
    """

    experiment: str
    question: Question
    power: Power | None
    rules: Mapping | None
    machine: Mapping
    answers: tuple[Answer, ...]


def advise(
    folder: Path, question: Question, draws: int = DRAWS, plans: Mapping | None = None
) -> Advice:
    """Return the advice for an experiment.

    Parameters
    ----------
    folder : the results of the experiment: its plans, and its calibration or its tables of runs.
        Without a calibration, the advice is among measured configurations.
    plans : the content of the file `PLANS`; None to read it from the folder.

    Raises
    ------
    InputError : a file is missing, or the goal cannot be answered.
    """
    if not folder.is_dir():
        raise InputError(
            folder, folder.name, "is not a folder", "name the folder of an experiment: results/NAME"
        )
    file = folder / CALIBRATION
    calibration = read(file) if file.is_file() else None
    machine = read_json(file)["machine"] if calibration else machine_of(folder)
    measured = read_measured(folder, machine)
    if calibration is None and not measured.configurations:
        if any(folder.glob("runs/**/run.json")):
            make = f"make them: {call('run report')}, with --experiment FILE"
            raise InputError(folder / "tables", None, "holds no tables of the measured runs", make)
        raise InputError(file, CALIBRATION, "is missing, and nothing was measured", _MAKE)
    file = folder / PLANS
    if plans is None:
        if not file.is_file():
            raise InputError(file, PLANS, "is missing", _MAKE)
        try:
            plans = read_json(file)
        except ValueError as error:
            raise InputError(file, str(error), "is not JSON", _MAKE) from error
    return advise_from(calibration, machine, _parse(plans, file), question, measured, draws)


def _parse(plans: Any, file: Path) -> Mapping:
    """Return the content of a file of plans, with parsed layouts.

    Raises
    ------
    InputError : a key is missing, or the rows of a dataset are missing.
    """
    missing = [key for key in _PLAN_KEYS if not isinstance(plans, dict) or key not in plans]
    if missing:
        raise InputError(file, missing, "keys are missing", _MAKE)
    configurations = plans["configurations"]
    without = {plan["dataset"] for plan in configurations} - plans["rows"].keys()
    if without:
        raise InputError(file, sorted(without), "the rows of these datasets are missing", _MAKE)
    return plans | {"configurations": [*map(with_layout, configurations)]}


def advise_from(
    calibration: Calibration | None,
    machine: Mapping,
    plans: Mapping,
    question: Question,
    measured: Measured | None = None,
    draws: int = DRAWS,
) -> Advice:
    """Return an answer for each dataset, workload and network.

    Parameters
    ----------
    calibration : None to advise among measured configurations.
    machine : `machine` of the calibration, or else of a run.
    plans : as `escala.analysis.cost_model.works.with_rows` returns them.

    Raises
    ------
    InputError : the goal cannot be answered.
    """
    stated, model = question.joules_per_core_hour, plans["power_model"]
    power = None
    if stated is not None:
        watts = stated / _JOULES_PER_WATT_HOUR
        power = Power(0.0, watts, "joules of a core-hour, as stated")
    elif model is not None:
        source = "power_model of the experiment"
        power = Power(model["node_watts"], model["core_watts"], source)
    tasks: dict[tuple[str, str], list[Mapping]] = {}
    for plan in plans["configurations"]:
        tasks.setdefault((plan["dataset"], plan["workload"]), []).append(plan)
    answers = tuple(
        answer
        for task, planned in tasks.items()
        for answer in _answer_task(
            task, planned, plans, calibration, measured or Measured(), question, power, draws
        )
    )
    cores = calibration.cores_per_node if calibration else machine.get("cores_available")
    machine = {**machine, "cores_per_node": cores}
    return Advice(plans["experiment"], question, power, plans.get("rules"), machine, answers)


def _answer_task(
    task: tuple[str, str],
    planned: Sequence[Mapping],
    plans: Mapping,
    calibration: Calibration | None,
    measured: Measured,
    question: Question,
    power: Power | None,
    draws: int,
) -> Iterator[Answer]:
    """Yield the answer for each network of a task: a dataset and a workload.

    `planned` are the configurations of `plans` that train this task.
    """
    rows, settings = plans["rows"][task[0]], plans["workloads"][task[1]]
    training = Training(None, settings["epochs"], 0)
    if rows["train"] is not None:
        validated = rows.get("validation", rows["test"]) if settings["validate"] else 0
        evaluated = settings["epochs"] * validated + rows["test"]
        training = Training(rows["train"], settings["epochs"], evaluated)
    networks = [plan["network"] for plan in planned if plan["layout"].nodes > 1]
    base = select_base(planned)
    best_uses = {
        network: base and measured.best_use(task, network, configuration_of(base))
        for network in dict.fromkeys(networks or [NATIVE])
    }
    # Measured configurations that train the same model, even with other rows in a step.
    same_model = {
        use.configuration
        for best_use in filter(None, best_uses.values())
        for use in (best_use, *best_use.alternatives)
    }
    offered, refused = find_candidates(
        calibration, planned, training, draws, measured.configurations, same_model
    )
    step_rows = {candidate.configuration: candidate.setup.rows for candidate in offered}
    ratios = measured.ratios(task, step_rows)
    candidates = []
    for candidate in with_ratios(offered, ratios):
        variant = candidate.configuration.variant
        memory = memory_of(measured.memory, *task, variant, plans["memory_gib"])
        candidates.append(replace(candidate, memory=memory))
    for network, best_use in best_uses.items():
        over_network = [
            candidate
            for candidate in candidates
            if candidate.setup.layout.nodes == 1 or candidate.configuration.network == network
        ]
        unpredicted = {
            configuration: reason
            for configuration, reason in refused.items()
            if configuration.network in (network, NATIVE)
        }
        answer = Answer(*task, network, training, unpredicted)
        yield _choose(answer, over_network, question, power, ratios, best_use)


def _choose(
    answer: Answer,
    offered: Sequence[Candidate],
    question: Question,
    power: Power | None,
    ratios: Ratios,
    best_use: BestUse | None,
) -> Answer:
    """Return an answer with its choice and its changes.

    An answer has no changes in three cases: a configuration already saves `changes.SAVING`, the
    workload is a program, or there is no calibration.
    """
    try:
        choice = choose(offered, question.goal, question.limits, power, ratios, best_use)
    except InputError as error:
        return replace(answer, unavailable=f"{error.reason}. Remedy: {error.remedy}")
    base = choice.baseline.candidate
    several = [
        option.candidate
        for option in choice.options
        if option.candidate.ranks > 1 and option.excluded is None
    ]
    predicted = [candidate for candidate in several if candidate.calibration]
    model = base.calibration
    if not predicted or model is None or base.setup.work in model.programs:
        return replace(answer, choice=choice)
    least = min(float(np.median(candidate.seconds / base.seconds)) for candidate in several)
    if least <= changes.RATIO:
        return replace(answer, choice=choice)
    needed = changes.find_changes(predicted, base, answer.training.train_rows)
    return replace(answer, choice=choice, changes=tuple(needed))
