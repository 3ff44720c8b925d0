"""Predict what each configuration takes: training, the whole job, its wait and its memory."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from escala.analysis.cost_model.calibration import Calibration
from escala.analysis.cost_model.predict import DRAWS, Plan, predict
from escala.analysis.cost_model.predictions import (
    bounds,
    epoch_seconds,
    other_knobs,
    plan_of,
    with_network,
)
from escala.analysis.queue_waits import Waits
from escala.core.errors import InputError
from escala.experiment.references import Configuration
from escala.runtime.layout import Layout

if TYPE_CHECKING:
    from escala.analysis.advice.measured import Comparison

#: What the seconds of a candidate rest on.
MEASURED, PREDICTED, EXTRAPOLATED, BOUNDS = "measured", "predicted", "extrapolated", "bounds"
#: Phrase of a prediction without the seconds outside the training steps.
ONLY_STEPS = "start-up and evaluation were not calibrated: a job is its training steps only"
#: Phrase of the bounds of a program.
ONLY_BOUNDS = "only bounds are known, from full overlap of computing and exchange to none"


class Memory(NamedTuple):
    """Memory of the largest process of a configuration.

    Attributes
    ----------
    source : where the number is from; `measured` tells whether a run measured it.
    """

    bytes: int
    source: str
    measured: bool


@dataclass(frozen=True)
class Training:
    """Rows and epochs of the training that an advice is for.

    Attributes
    ----------
    train_rows : of an epoch; None of a program, whose calibration has them.
    evaluated_rows : of all evaluations of a run together.
    """

    train_rows: int | None
    epochs: int
    evaluated_rows: int


@dataclass(frozen=True)
class Candidate:
    """A configuration that may be chosen.

    Attributes
    ----------
    plan : with the rows of a step that all candidates have.
    configured_rows : of a step, in the experiment.
    calibration : with the network of the plan.
    seconds : of the training steps of all epochs, of shape (draws,).
    job : seconds from the start to the end of the job, of shape (draws,).
    memory : of its largest process; None if nothing is known.
    waits : of the user's jobs of its size; None if no jobs are known, of any size.
    extrapolated, extrapolated_start : phrases, as of a prediction.
    predicted : the seconds as predicted, which those of a measured ratio replace.
    compared : the measured ratio that counts, with the predicted one; None without one.
    """

    configuration: Configuration
    plan: Plan
    configured_rows: int
    calibration: Calibration
    seconds: np.ndarray
    job: np.ndarray
    memory: Memory | None = None
    waits: Waits | None = None
    extrapolated: tuple[str, ...] = ()
    extrapolated_start: tuple[str, ...] = ()
    predicted: np.ndarray | None = None
    compared: Comparison | None = None

    @property
    def basis(self) -> str:
        """What the seconds rest on."""
        if self.compared is not None:
            return MEASURED
        if ONLY_BOUNDS in self.extrapolated:
            return BOUNDS
        return EXTRAPOLATED if self.extrapolated else PREDICTED

    @property
    def ranks(self) -> int:
        return self.plan.layout.ranks

    @property
    def cores(self) -> int:
        """The cores of all processes together."""
        return self.ranks * self.plan.cores

    @property
    def node_bytes(self) -> int | None:
        """The memory of the processes of a node; None if it is not known."""
        return self.memory and self.memory.bytes * self.plan.layout.processes


def candidate(
    calibration: Calibration,
    planned: Mapping,
    training: Training,
    rows: int | None = None,
    draws: int = DRAWS,
) -> Candidate:
    """Predict a configuration.

    Parameters
    ----------
    planned : a configuration, as `escala.experiment.calibration.planned` returns it.
    rows : of a step of all ranks together; default: those of the configuration.

    Raises
    ------
    InputError : the cost model does not predict it, and why.
    """
    if planned["unavailable"]:
        raise InputError(
            planned["strategy"],
            planned["variant"],
            planned["unavailable"],
            "leave it out, or measure it",
        )
    if "program" in planned:
        return _of_program(calibration, planned, training, rows or planned["rows"], draws)
    calibration = with_network(calibration, planned)
    plan = plan_of(calibration, planned | {"rows": rows or planned["rows"]}, training.train_rows)
    found = predict(calibration, plan, draws)
    epoch = epoch_seconds(calibration, plan, found, training.train_rows, draws)
    seconds = training.epochs * epoch
    notes = [*found.extrapolated, *other_knobs(planned)]
    job = seconds
    if found.overheads is None:
        notes.append(ONLY_STEPS)
    else:
        job = found.run(seconds, training.evaluated_rows)
    names = (planned[name] for name in Configuration._fields)
    return Candidate(
        Configuration(*names),
        plan,
        min(planned["rows"], training.train_rows),
        calibration,
        seconds,
        job,
        extrapolated=tuple(notes),
        extrapolated_start=found.extrapolated_start,
        predicted=seconds,
    )


def _of_program(
    calibration: Calibration, planned: Mapping, training: Training, rows: int, draws: int
) -> Candidate:
    """Return a candidate between bounds: half of its draws have the lower one, half the upper one.

    So the interval of a ratio of two candidates reaches from the least to the greatest that both
    bounds allow, and a program pays only if it does whatever the overlap.

    Raises
    ------
    InputError : it has no bounds, and why.
    """
    layout = Layout.parse(planned["layout"])
    names = Configuration(*(planned[name] for name in Configuration._fields))
    found = bounds(calibration, {**planned, "rows": rows})
    ends = [found.get(f"predicted_{end}_seconds_per_epoch") for end in ("low", "high")]
    if None in ends:
        raise InputError(planned["program"], str(names), found["reason"], "or measure it")
    # Of its own order, so that the ends of two candidates meet in all four ways.
    random = np.random.default_rng(zlib.crc32(str(names).encode()))
    seconds = training.epochs * random.permutation(np.resize(ends, draws))
    return Candidate(
        names,
        Plan(planned["program"], layout, rows, cores=planned["cores"], network=planned["network"]),
        planned["rows"],
        calibration,
        seconds,
        seconds,
        extrapolated=(*([ONLY_BOUNDS] if layout.ranks > 1 else []), ONLY_STEPS),
        predicted=seconds,
    )


def candidates(
    calibration: Calibration,
    planned: Sequence[Mapping],
    training: Training,
    draws: int = DRAWS,
) -> tuple[list[Candidate], dict[Configuration, str]]:
    """Predict configurations of one dataset and workload with the same rows in a step.

    These rows are those of the first configuration of one rank, or of the first one without such.

    Returns
    -------
    The candidates, and for each other configuration the reason why it is not a candidate.
    """
    known = [each for each in planned if not each["unavailable"]]
    one = [each for each in known if each["layout"] == "1x1"]
    rows = (one or known)[0]["rows"] if known else None
    if rows is not None and training.train_rows is not None:
        rows = min(rows, training.train_rows)
    found, refused = [], {}
    for each in planned:
        try:
            found.append(candidate(calibration, each, training, rows, draws))
        except InputError as error:
            names = Configuration(*(each[name] for name in Configuration._fields))
            refused[names] = each["unavailable"] or str(error)
    return found, refused
