"""Make the advice for an experiment: the content of advice.json.

`schemas/advice.schema.yaml` describes its form.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from escala.analysis.advice import changes, text
from escala.analysis.advice.candidates import (
    Candidate,
    Paired,
    Ratios,
    Training,
    candidates,
    first_of,
    names_of,
)
from escala.analysis.advice.choice import ENERGY, TIME, Choice, Limits, Option, Power, choose
from escala.analysis.advice.measured import (
    Measured,
    machine_of,
    memory_of,
    read_measured,
    with_ratios,
)
from escala.analysis.best_use import BestUse
from escala.analysis.cost_model.calibration import Calibration
from escala.analysis.cost_model.predict import DRAWS, interval
from escala.analysis.cost_model.reading import read
from escala.analysis.statistics import Interval
from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import read_json
from escala.experiment.references import NATIVE, Configuration
from escala.runtime.layout import with_layout

FORMAT = 1
CALIBRATION, PLANS = "calibration.json", "plans.json"
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
    partition : of SLURM, for the lines of a job script; None to leave it to SLURM.
    joules_per_core_hour : stated by the user; None to use the power model of the experiment.
    """

    goal: str = TIME
    limits: Limits = field(default_factory=Limits)
    partition: str | None = None
    joules_per_core_hour: float | None = None


def advise(
    folder: Path, question: Question, draws: int = DRAWS, plans: Mapping | None = None
) -> dict:
    """Return the advice for an experiment.

    Parameters
    ----------
    folder : the results of the experiment, with its plans, and its calibration or tables of runs.
        Without a calibration, the advice is among what was measured.
    plans : in place of those of the folder.

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
    if plans is None and not (folder / PLANS).is_file():
        raise InputError(folder / PLANS, PLANS, "is missing", _MAKE)
    plans = _checked(plans or _read_plans(folder / PLANS), folder / PLANS)
    return document(calibration, machine, plans, question, measured, draws)


def _read_plans(file: Path) -> Any:
    """Return the content of plans.json: as `cost_model.planned.with_rows` returns it.

    Raises
    ------
    InputError : the file is not JSON.
    """
    try:
        return read_json(file)
    except ValueError as error:
        raise InputError(file, str(error), "is not JSON", _MAKE) from error


def _checked(found: Any, file: Path) -> Mapping:
    """Return plans with their layouts parsed, unless they lack a key, a configuration or rows.

    Raises
    ------
    InputError : with the file that they belong to.
    """
    missing = [key for key in _PLAN_KEYS if not isinstance(found, dict) or key not in found]
    if missing:
        raise InputError(file, missing, "keys are missing", _MAKE)
    if not found["configurations"]:
        raise InputError(file, "configurations", "there are none", "list them in the experiment")
    if not all({"rows", "cores"} <= each.keys() for each in found["configurations"]):
        raise InputError(file, "configurations", "rows and cores of some are missing", _MAKE)
    without = {each["dataset"] for each in found["configurations"]} - found["rows"].keys()
    if without:
        raise InputError(file, sorted(without), "the rows of these datasets are missing", _MAKE)
    return found | {"configurations": [*map(with_layout, found["configurations"])]}


def document(
    calibration: Calibration | None,
    machine: Mapping,
    plans: Mapping,
    question: Question,
    measured: Measured | None = None,
    draws: int = DRAWS,
) -> dict:
    """Return the content of advice.json: an answer for each dataset, workload and network.

    Parameters
    ----------
    calibration : None to advise among what was measured.
    machine : the calibrated one, as `machine` of a calibration, or else that of a run.
    plans : as `escala.analysis.cost_model.planned.with_rows` returns them.

    Raises
    ------
    InputError : the goal cannot be answered.
    """
    measured = measured or Measured()
    cores = calibration.cores_per_node if calibration else machine.get("cores_available")
    found = {
        "format": FORMAT,
        "experiment": plans["experiment"],
        "goal": question.goal,
        "limits": asdict(question.limits),
        "partition": question.partition,
        "rules": plans.get("rules"),
        "machine": {**machine, "cores_per_node": cores},
        "answers": [],
    }
    power = _power(question, plans)
    for task, planned in _by_task(plans).items():
        training = _training(plans, *task)
        networks = [each["network"] for each in planned if not each["layout"].startswith("1x")]
        first = first_of(planned)
        uses = {
            network: first and measured.best_use(task, network, names_of(first))
            for network in dict.fromkeys(networks or [NATIVE])
        }
        same_model = {
            Configuration(*each.names[2:])
            for use in filter(None, uses.values())
            for each in (use, *use.alternatives)
        }
        offered, refused = candidates(
            calibration, planned, training, draws, measured.configurations, same_model
        )
        rows = {each.configuration: each.setup.rows for each in offered}
        ratios = measured.ratios(task, rows)
        known = [
            replace(each, memory=memory_of(measured.memory, *task, each.configuration.variant,
                                           plans["memory_gib"]))
            for each in with_ratios(offered, ratios)
        ]  # fmt: skip
        for network, use in uses.items():
            names = {"dataset": task[0], "workload": task[1], "network": network}
            here = [*filter(lambda each, network=network: _is_over(each, network), known)]
            answer = names | _answer(here, training, question, power, ratios, use)
            answer["unpredicted"] = [
                each._asdict() | {"reason": reason}
                for each, reason in refused.items()
                if each.network in (network, NATIVE)
            ]
            found["answers"].append(_with_texts(answer, found))
    return found


def _by_task(plans: Mapping) -> dict[tuple[str, str], list[Mapping]]:
    """Return the configurations of each dataset and workload."""
    tasks: dict[tuple[str, str], list[Mapping]] = {}
    for each in plans["configurations"]:
        tasks.setdefault((each["dataset"], each["workload"]), []).append(each)
    return tasks


def _is_over(candidate: Candidate, network: str) -> bool:
    return candidate.setup.layout.nodes == 1 or candidate.configuration.network == network


def _with_texts(answer: dict, document: Mapping) -> dict:
    """Add what the document says of an answer in words."""
    answer["answer"] = text.headline(answer, document)
    answer["job_script"] = list(text.job_script(answer, document))
    return answer


def _training(plans: Mapping, dataset: str, workload: str) -> Training:
    rows, settings = plans["rows"][dataset], plans["workloads"][workload]
    if rows["train"] is None:
        return Training(None, settings["epochs"], 0)
    validated = rows.get("validation", rows["test"]) if settings["validate"] else 0
    evaluated = settings["epochs"] * validated + rows["test"]
    return Training(rows["train"], settings["epochs"], evaluated)


def _power(question: Question, plans: Mapping) -> Power | None:
    stated, model = question.joules_per_core_hour, plans["power_model"]
    if stated is not None:
        return Power(0.0, stated / _JOULES_PER_WATT_HOUR, "joules of a core-hour, as stated")
    if model is None:
        return None
    return Power(model["node_watts"], model["core_watts"], "power_model of the experiment")


def _answer(
    here: Sequence[Candidate],
    training: Training,
    question: Question,
    power: Power | None,
    ratios: Ratios,
    best_use: BestUse | None,
) -> dict:
    """Return an answer without its names and texts."""
    names = ("rows", "unavailable", "energy_source", "distribute", "repeats", "best_use")
    selections = ("selected", "baseline", "nearest", "passed_over")
    empty = {
        "epochs": training.epochs,
        "train_rows": training.train_rows,
        **dict.fromkeys((*names, *selections)),
        **{"options": [], "changes": []},
    }
    try:
        found = choose(here, question.goal, question.limits, power, ratios, best_use)
    except InputError as error:
        return empty | {"unavailable": f"{error.reason}. Remedy: {error.remedy}"}
    base = found.baseline.candidate
    selected = (found.best, found.baseline, found.nearest, found.passed_over)
    return empty | {
        "rows": base.setup.rows,
        "energy_source": power.source if question.goal == ENERGY and power else None,
        "distribute": found.distribute,
        "repeats": _repeats(base),
        "best_use": found.best_use and _best_use(found.best_use),
        **{
            name: option and option.candidate.configuration._asdict()
            for name, option in zip(selections, selected, strict=True)
        },
        "options": [_option(each, base) for each in found.options],
        "changes": [*map(_change, _changes(found, training))],
    }


def _best_use(use: BestUse) -> dict:
    """Return the best use that decides, with its ratio to each alternative."""
    return dict(zip(Configuration._fields, use.names[2:], strict=True)) | {
        "verdict": use.verdict,
        "closest": use.closest.label,
        "alternatives": [
            dict(zip(Configuration._fields, each.names[2:], strict=True))
            | {
                "uses": each.uses,
                "verdict": each.verdict,
                **{
                    end: None if math.isnan(value) else value
                    for end, value in zip(Interval._fields, each.ratio[:3], strict=True)
                },
                "matches": each.ratio.matches,
                "needed": int(each.row["needed"]),
                "stays_disturbed": bool(each.row["stays_disturbed"]),
                "sessions": int(each.row["sessions"])
                if each.row["over_sessions"] is True
                else None,
            }
            for each in use.alternatives
        ],
    }


def _repeats(base: Candidate) -> int | None:
    """Return the fewest repeats of a calibrated step, None if nothing was calibrated."""
    if base.calibration is None:
        return None
    work = base.calibration.works.get(base.setup.work)
    if work:
        return min(len(each.means) for each in work.steps)
    steps = base.calibration.programs[base.setup.work]["steps"]
    return min(len(each["seconds"]) for each in steps)


def _option(option: Option, base: Candidate) -> dict:
    each, direct = option.candidate, option.paired
    speedup, counted = base.seconds / each.seconds, direct if direct and direct.counts else None
    ranks = max(each.predicted_ranks, base.predicted_ranks)
    faster = _inverse(counted.ratio) if counted else interval(speedup, ranks)
    times = base.cores / each.cores
    return each.configuration._asdict() | {
        "nodes": each.setup.layout.nodes,
        "processes": each.setup.layout.processes,
        "cores_per_process": each.setup.cores,
        "configured_rows": each.configured_rows,
        "seconds": interval(each.seconds, each.predicted_ranks)._asdict(),
        "job_seconds": interval(each.job, each.predicted_ranks)._asdict(),
        "amount": option.amount._asdict(),
        "ratio": option.ratio._asdict(),
        "verdict": option.verdict,
        "speedup": faster._asdict(),
        "efficiency": Interval(*(each and times * each for each in faster))._asdict(),
        "basis": each.basis,
        "matches": direct and direct.matches,
        "sessions": direct and direct.sessions,
        "measured_ratio": _ratio(each.paired or direct),
        "predicted_ratio": each.predicted and each.predicted._asdict(),
        "contradiction": each.contradicts,
        "memory": each.memory and each.memory._asdict(),
        "excluded": option.excluded,
        "extrapolated": list(each.extrapolated),
        "extrapolated_start": list(each.extrapolated_start),
    }


def _ratio(measured: Paired | None) -> dict | None:
    return measured and {
        **measured.ratio._asdict(),
        "matches": measured.matches,
        "verdict": measured.verdict,
        "reference": str(measured.reference),
    }


def _inverse(ratio: Interval) -> Interval:
    return Interval(1 / ratio.estimate, 1 / ratio.high, 1 / ratio.low)


def _changes(found: Choice, training: Training) -> Iterator[changes.Change]:
    """Yield what would have to change for several ranks to save `changes.SAVING`.

    Nothing is yielded if a configuration already saves it, for a program, or without a calibration.
    """
    base = found.baseline.candidate
    several = [
        each.candidate
        for each in found.options
        if each.candidate.ranks > 1 and each.excluded is None
    ]
    ratios = [float(np.median(each.seconds / base.seconds)) for each in several]
    model, predicted = base.calibration, [each for each in several if each.calibration]
    program = model is None or base.setup.work in model.programs
    if predicted and min(ratios) > changes.RATIO and not program:
        yield from changes.changes(predicted, base, training.train_rows)


def _change(found: changes.Change) -> dict:
    return found.candidate.configuration._asdict() | {
        "change": found.change,
        "value": found.value,
        "unit": changes.UNITS.get(found.change),
        "ratio": found.ratio,
        "saves": found.saves,
        "extrapolated": list(found.extrapolated),
    }
