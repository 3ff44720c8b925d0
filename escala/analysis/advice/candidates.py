"""Predict what each configuration takes: its training, and the whole job."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from escala.analysis.advice.comparison import Comparison
from escala.analysis.cost_model.calibration import Calibration
from escala.analysis.cost_model.predict import DRAWS, Setup, predict
from escala.analysis.cost_model.predictions import (
    bounds,
    epoch_seconds,
    other_knobs,
    setup_of,
    with_network,
)
from escala.core.errors import InputError
from escala.experiment.references import Configuration
from escala.runtime.layout import Layout

#: What the seconds of a candidate rest on.
MEASURED, PREDICTED, EXTRAPOLATED, BOUNDS = "measured", "predicted", "extrapolated", "bounds"
#: Phrase of a prediction without the seconds outside the training steps.
ONLY_STEPS = "start-up and evaluation were not calibrated: a job is its training steps only"
#: Phrase of the bounds of a program.
ONLY_BOUNDS = "only bounds are known, from full overlap of computing and exchange to none"


class ProcessMemory(NamedTuple):
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
    train_rows : number of rows in an epoch; None for a program, whose calibration has it.
    evaluated_rows : number of rows in all evaluations of a run together.
    """

    train_rows: int | None
    epochs: int
    evaluated_rows: int


@dataclass(frozen=True)
class Candidate:
    """A configuration that may be selected.

    Attributes
    ----------
    setup : with the rows of a step that all candidates have.
    configured_rows : rows of a step that the experiment sets.
    calibration : with the network of the setup; None if only what was measured counts.
    seconds : of the training steps of all epochs, of shape (draws,).
    job : seconds from the start to the end of the job, of shape (draws,).
    memory : of its largest process; None if nothing is known.
    extrapolated, extrapolated_start : phrases, as of a prediction.
    compared : the measured ratio that counts, with the predicted one; None without one.
    """

    configuration: Configuration
    setup: Setup
    configured_rows: int
    calibration: Calibration | None
    seconds: np.ndarray
    job: np.ndarray
    memory: ProcessMemory | None = None
    extrapolated: tuple[str, ...] = ()
    extrapolated_start: tuple[str, ...] = ()
    compared: Comparison | None = None

    @property
    def basis(self) -> str:
        """What the seconds rest on."""
        if self.compared is not None or self.calibration is None:
            return MEASURED
        if ONLY_BOUNDS in self.extrapolated:
            return BOUNDS
        return EXTRAPOLATED if self.extrapolated else PREDICTED

    @property
    def ranks(self) -> int:
        return self.setup.layout.ranks

    @property
    def cores(self) -> int:
        """The cores of all processes together."""
        return self.ranks * self.setup.cores


def _candidate(
    calibration: Calibration, planned: Mapping, training: Training, rows: int, draws: int
) -> Candidate:
    """Predict a configuration.

    Raises
    ------
    InputError : the cost model does not predict it, and why.
    """
    names = names_of(planned)
    if planned["unavailable"]:
        raise InputError(
            names.strategy, names.variant, planned["unavailable"], "leave it out, or measure it"
        )
    if "program" in planned:
        return _program_candidate(calibration, planned, training, rows, draws)
    calibration = with_network(calibration, planned)
    setup = setup_of(planned, training.train_rows, rows)
    found = predict(calibration, setup, draws)
    seconds = training.epochs * epoch_seconds(calibration, found, training.train_rows, draws)
    notes, job = [*found.extrapolated, *other_knobs(planned)], seconds
    if found.overheads is None:
        notes.append(ONLY_STEPS)
    else:
        job = found.run(seconds, training.evaluated_rows)
    return Candidate(
        names,
        setup,
        min(planned["rows"], training.train_rows),
        calibration,
        seconds,
        job,
        extrapolated=tuple(notes),
        extrapolated_start=found.extrapolated_start,
    )


def _program_candidate(
    calibration: Calibration, planned: Mapping, training: Training, rows: int, draws: int
) -> Candidate:
    """Return a candidate between bounds: half of its draws have the lower one, half the upper one.

    So the interval of a ratio of two candidates reaches from the least to the greatest that both
    bounds allow, and a program pays only if it does whatever the overlap.

    Raises
    ------
    InputError : it has no bounds, and why.
    """
    names, layout = names_of(planned), Layout.parse(planned["layout"])
    found = bounds(calibration, {**planned, "rows": rows})
    ends = [found.get(f"predicted_{end}_seconds_per_epoch") for end in ("low", "high")]
    if None in ends:
        raise InputError(planned["program"], str(names), found["reason"], "or measure it")
    # Each candidate has another order, so the ends of two candidates meet in all four ways.
    random = np.random.default_rng(zlib.crc32(str(names).encode()))
    seconds = training.epochs * random.permutation(np.resize(ends, draws))
    return Candidate(
        names,
        Setup(planned["program"], layout, rows, cores=planned["cores"], network=names.network),
        planned["rows"],
        calibration,
        seconds,
        seconds,
        extrapolated=(*([ONLY_BOUNDS] if layout.ranks > 1 else []), ONLY_STEPS),
    )


def names_of(planned: Mapping) -> Configuration:
    return Configuration(*(planned[name] for name in Configuration._fields))


def candidates(
    calibration: Calibration, planned: Sequence[Mapping], training: Training, draws: int = DRAWS
) -> tuple[list[Candidate], dict[Configuration, str]]:
    """Predict configurations of one dataset and workload with the same rows in a step.

    These rows are those of the first configuration of one rank, or of the first one without such.

    Parameters
    ----------
    planned : configurations, as `escala.experiment.planned.planned` returns them.

    Returns
    -------
    The candidates, and for each other configuration the reason why it is not a candidate.
    """
    known = [each for each in planned if not each["unavailable"]]
    first = [each for each in known if each["layout"] == "1x1"] or known
    rows = first[0]["rows"] if first else 0
    if training.train_rows is not None:
        rows = min(rows, training.train_rows)
    found, refused = [], {}
    for each in planned:
        try:
            found.append(_candidate(calibration, each, training, rows, draws))
        except InputError as error:
            refused[names_of(each)] = each["unavailable"] or str(error)
    return found, refused
