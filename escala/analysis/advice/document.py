"""Make the advice for an experiment: the content of advice.json.

`schemas/advice.schema.yaml` describes its form.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from escala.analysis import queue_waits
from escala.analysis.advice import changes, evidence, text
from escala.analysis.advice.candidates import Candidate, Training, candidates
from escala.analysis.advice.choice import Choice, Limits, Option, Power, choose
from escala.analysis.advice.goals import ENERGY, TIME, TIME_WITH_WAIT
from escala.analysis.advice.measured import with_measured
from escala.analysis.advice.queue import Queue
from escala.analysis.cost_model.calibration import Calibration, read
from escala.analysis.cost_model.predict import DRAWS, interval
from escala.analysis.queue_waits import Waits
from escala.analysis.statistics import Interval
from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import read_json
from escala.core.readable import counted
from escala.experiment.references import NATIVE

FORMAT = 1
CALIBRATION, PLANS = "calibration.json", "plans.json"
_MAKE = f"make it: {call('run advice')}, with the --experiment FILE"
_KEYS_OF_PLANS = (
    "experiment",
    "configurations",
    "workloads",
    "rows",
    "memory_gib",
    "power_model",
)
_JOULES_PER_WATT_HOUR = 3600
_UNITS = {changes.BANDWIDTH: "bit/s", changes.BATCH: "rows", changes.CORES: "cores"}


@dataclass(frozen=True)
class Question:
    """Goal and limits of the advice that a user wants.

    Attributes
    ----------
    partition : of the queue; None if the user's jobs name only one.
    joules_per_core_hour : that the user states; None for the power model of the experiment.
    """

    goal: str = TIME
    limits: Limits = field(default_factory=Limits)
    partition: str | None = None
    joules_per_core_hour: float | None = None


def advise(
    folder: Path, question: Question, queue: Queue | None = None, draws: int = DRAWS
) -> dict:
    """Return the advice for an experiment.

    Parameters
    ----------
    folder : of the experiment, with its calibration and its plans. Measured memory and speed-ups
        are read from it if they are there.
    queue : needed for the goal `TIME_WITH_WAIT`. Without it, a deadline counts from the start of
        the job.

    Raises
    ------
    InputError : a file is missing, or the goal cannot be answered.
    """
    if not folder.is_dir():
        raise InputError(folder, folder.name, "is no folder", "name an experiment's: results/NAME")
    for name in (CALIBRATION, PLANS):
        if not (folder / name).is_file():
            raise InputError(folder / name, name, "is missing", _MAKE)
    file = folder / CALIBRATION
    plans = _read_plans(folder / PLANS)
    machine, memory = read_json(file)["machine"], evidence.memories(folder)
    speedups = evidence.speedups(folder, machine.get("cpu"))
    return document(read(file), machine, plans, question, queue, memory, speedups, draws)


def _read_plans(file: Path) -> dict:
    """Return the content of a file that `escala.experiment.plans` made.

    Raises
    ------
    InputError : it is no JSON, lacks a key, or has no configuration.
    """
    try:
        found = read_json(file)
    except ValueError as error:
        raise InputError(file, str(error), "is no JSON", _MAKE) from error
    missing = [key for key in _KEYS_OF_PLANS if not isinstance(found, dict) or key not in found]
    if missing:
        raise InputError(file, missing, "keys are missing", _MAKE)
    if not found["configurations"]:
        raise InputError(file, "configurations", "there are none", "list them in the experiment")
    without = {each["dataset"] for each in found["configurations"]} - found["rows"].keys()
    if without:
        raise InputError(file, sorted(without), "the rows of these datasets are missing", _MAKE)
    return found


def document(
    calibration: Calibration,
    machine: Mapping,
    plans: Mapping,
    question: Question,
    queue: Queue | None = None,
    memory: Mapping | None = None,
    speedups: Sequence[Mapping] = (),
    draws: int = DRAWS,
) -> dict:
    """Return the content of advice.json: an answer for each dataset, workload and network.

    Parameters
    ----------
    machine : that was calibrated, as in a calibration.
    plans : as `escala.experiment.plans.plans` returns them.
    memory, speedups : what was measured, as `evidence` returns it; ratios count before predictions.

    Raises
    ------
    InputError : the goal cannot be answered.
    """
    partition = _partition(question, queue)
    found: dict[str, Any] = {
        "format": FORMAT,
        "experiment": plans["experiment"],
        "goal": question.goal,
        "limits": asdict(question.limits),
        "partition": partition,
        "own_jobs": queue.own if queue is not None and queue.named else None,
        "machine": {**machine, "cores_per_node": calibration.cores_per_node},
        "answers": [],
    }
    power = _power(question, plans)
    for dataset, workload, networks in _tasks(plans["configurations"]):
        planned = [
            each
            for each in plans["configurations"]
            if (each["dataset"], each["workload"]) == (dataset, workload)
        ]
        training = _training(plans, dataset, workload)
        predicted, refused = candidates(calibration, planned, training, draws)
        predicted = [
            replace(
                each,
                waits=_waits(each, queue, partition),
                memory=evidence.memory_of(
                    memory or {},
                    dataset,
                    workload,
                    each.configuration.variant,
                    plans["memory_gib"],
                ),
            )
            for each in with_measured(predicted, speedups, (dataset, workload))
        ]
        for network in networks:
            names = {"dataset": dataset, "workload": workload, "network": network}
            here = [each for each in predicted if _in_network(each, network)]
            answer = names | _answer(here, training, question, power)
            answer["unpredicted"] = [
                each._asdict() | {"reason": reason}
                for each, reason in refused.items()
                if each.network in (network, NATIVE)
            ]
            _add_words(answer, found, queue)
            found["answers"].append(answer)
    return found


def _tasks(planned: Sequence[Mapping]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield each dataset and workload, with the networks of its layouts of several nodes."""
    networks: dict[tuple[str, str], dict[str, None]] = {}
    for each in planned:
        of_task = networks.setdefault((each["dataset"], each["workload"]), {})
        if not each["layout"].startswith("1x"):
            of_task[each["network"]] = None
    for (dataset, workload), found in networks.items():
        yield dataset, workload, list(found) or [NATIVE]


def _in_network(each: Candidate, network: str) -> bool:
    return each.plan.layout.nodes == 1 or each.configuration.network == network


def _training(plans: Mapping, dataset: str, workload: str) -> Training:
    rows, settings = plans["rows"][dataset], plans["workloads"][workload]
    if rows["train"] is None:
        return Training(None, settings["epochs"], 0)
    validated = rows.get("validation", rows["test"]) if settings["validate"] else 0
    evaluated = settings["epochs"] * validated + rows["test"]
    return Training(rows["train"], settings["epochs"], evaluated)


def _partition(question: Question, queue: Queue | None) -> str | None:
    """Return the partition whose queue counts; None if no queue does."""
    if question.goal == TIME_WITH_WAIT and queue is None:
        raise InputError(
            "goal",
            question.goal,
            "the queue is not known",
            "call it where sacct answers, or give its output: --jobs FILE",
        )
    if queue is None:
        return question.partition
    names = queue_waits.partitions(queue.jobs)
    if not names:
        raise InputError(
            "queue",
            counted(len(queue.jobs), "job"),
            f"none of your jobs names a partition, besides {queue.own} of Escala's own runs, so no "
            "wait is known",
            "look further back (--days), or choose another goal",
        )
    if question.partition is None and len(names) > 1:
        raise InputError(
            "partition", None, f"your jobs name {', '.join(names)}", "name one: --partition"
        )
    if question.partition not in (None, *names):
        raise InputError(
            "partition",
            question.partition,
            "none of your jobs was in it, so its waits are not known",
            f"name one of {', '.join(names)}, look further back (--days), or choose another goal",
        )
    return question.partition or names[0]


def _waits(each: Candidate, queue: Queue | None, partition: str | None) -> Waits | None:
    if queue is None or partition is None:
        return None
    nodes = each.plan.layout.nodes
    return queue_waits.waits(queue.jobs, partition, nodes, each.cores, queue.now)


def _power(question: Question, plans: Mapping) -> Power | None:
    stated = question.joules_per_core_hour
    if stated is not None:
        return Power(0.0, stated / _JOULES_PER_WATT_HOUR, "joules of a core-hour, as stated")
    model = plans["power_model"]
    if model is None:
        return None
    return Power(model["node_watts"], model["core_watts"], "power_model of the experiment")


def _answer(
    here: Sequence[Candidate],
    training: Training,
    question: Question,
    power: Power | None,
) -> dict:
    """Return the parts of an answer that are numbers."""
    of_training = {"epochs": training.epochs, "train_rows": training.train_rows}
    empty = of_training | {
        "rows": None,
        "unavailable": None,
        "energy_source": None,
        "distribute": None,
        "chosen": None,
        "baseline": None,
        "nearest": None,
        "passed_over": None,
        "repeats": None,
        "options": [],
        "changes": [],
    }
    try:
        found = choose(here, question.goal, question.limits, power)
    except InputError as error:
        return empty | {"unavailable": f"{error.reason}. Remedy: {error.remedy}"}
    base = found.baseline.candidate
    work = base.calibration.works.get(base.plan.work)
    program = base.calibration.programs.get(base.plan.work)
    repeats = (
        [len(each.means) for each in work.steps]
        if work
        else [len(each["seconds"]) for each in program["steps"]]
    )
    return empty | {
        "rows": base.plan.rows,
        "energy_source": power.source if question.goal == ENERGY and power else None,
        "distribute": None if found.best is None else found.distribute,
        "chosen": _named(found.best),
        "baseline": _named(found.baseline),
        "nearest": _named(found.nearest),
        "passed_over": _named(found.passed_over),
        "repeats": min(repeats),
        "options": [_option(each, base) for each in found.options],
        "changes": [*map(_change, _changes(found, training))],
    }


def _named(option: Option | None) -> dict | None:
    return None if option is None else option.candidate.configuration._asdict()


def _interval(found: Interval | None) -> dict | None:
    return None if found is None else found._asdict()


def _option(option: Option, base: Candidate) -> dict:
    each = option.candidate
    faster = base.predicted / each.predicted
    measured = each.compared and each.compared.measured
    return each.configuration._asdict() | {
        "nodes": each.plan.layout.nodes,
        "processes": each.plan.layout.processes,
        "cores_per_process": each.plan.cores,
        "configured_rows": each.configured_rows,
        "seconds": _interval(interval(each.seconds)),
        "job_seconds": _interval(interval(each.job)),
        "amount": _interval(option.amount),
        "ratio": _interval(option.ratio),
        "speedup": _interval(interval(faster)),
        "efficiency": _interval(interval(faster * base.cores / each.cores)),
        "measured_speedup": evidence.measured_speedup(measured, base.configuration),
        "basis": each.basis,
        "measured_ratio": measured
        and measured.interval._asdict()
        | {
            "pairs": measured.ratio.pairs,
            "best_of": measured.ratio.best_of,
            "sessions": measured.sessions,
            "verdict": measured.verdict,
            "reference": str(measured.reference),
        },
        "predicted_ratio": each.compared and _interval(each.compared.predicted),
        "contradiction": each.compared is not None and each.compared.contradict,
        "wait": _wait(each.waits),
        "at_most_seconds": option.at_most,
        "memory": each.memory and each.memory._asdict(),
        "excluded": option.excluded,
        "extrapolated": list(each.extrapolated),
        "extrapolated_start": list(each.extrapolated_start),
    }


def _wait(waits: Waits | None) -> dict | None:
    if waits is None:
        return None
    has = waits.jobs > 0
    return {
        "jobs": waits.jobs,
        "pending": waits.pending,
        "median_seconds": float(np.median(waits.seconds)) if has else None,
        "longest_seconds": float(waits.seconds[-1]) if has else None,
        "bound_seconds": waits.bound,
    }


def _changes(found: Choice, training: Training) -> Iterator[changes.Change]:
    """Yield what would have to change, unless a configuration saves `changes.SAVING`."""
    several = [
        each.candidate
        for each in found.options
        if each.candidate.ranks > 1 and each.excluded is None
    ]
    base = found.baseline.candidate
    if base.plan.work in base.calibration.programs:
        return
    ratios = [float(np.median(each.seconds / base.seconds)) for each in several]
    if not ratios or min(ratios) <= changes.RATIO:
        return
    yield from changes.changes(several, base, training.train_rows)


def _change(found: changes.Change) -> dict:
    return found.candidate.configuration._asdict() | {
        "change": found.change,
        "value": found.value,
        "unit": _UNITS.get(found.change),
        "ratio": found.ratio,
        "saves": found.saves,
        "extrapolated": list(found.extrapolated),
    }


def _add_words(answer: dict, found: Mapping, queue: Queue | None) -> None:
    """Add the answer in words, and what SLURM itself expects of the job."""
    answer["answer"] = text.headline(answer, found)
    answer["job_script"] = list(text.job_script(answer, found))
    answer["test_only_seconds"] = None
    if queue is not None and answer["chosen"]:
        printed = queue.test_only(text.options(answer["job_script"]))
        answer["test_only_seconds"] = printed and queue_waits.test_only_wait(printed, queue.now)
    answer["statement"] = "\n".join(text.statement(answer, found))
