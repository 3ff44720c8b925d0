"""Find what each configuration takes, its training and the whole job: predicted, or measured."""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import stats

from escala.analysis.comparable import CONFIGURATION, other_exchange
from escala.analysis.cost_model.calibration import LEVEL, Calibration
from escala.analysis.cost_model.predict import DRAWS, Setup
from escala.analysis.cost_model.predictions import (
    bounds,
    predict_plan,
)
from escala.analysis.statistics import Interval
from escala.analysis.verdicts import FASTER, NO_VERDICT, SLOWER, pays
from escala.core.errors import InputError
from escala.experiment.runs import Configuration

NOT_MEASURED = "no run of it has a time, and nothing was calibrated (escala run advice)"
#: What the seconds of a candidate rest on.
MEASURED, PREDICTED, EXTRAPOLATED, BOUNDS = "measured", "predicted", "extrapolated", "bounds"
#: Phrase of a prediction without the seconds outside the training steps.
ONLY_STEPS = "start-up and evaluation were not calibrated: a job is its training steps only"
#: Phrase of the bounds of a program.
ONLY_BOUNDS = "only bounds are known, from full overlap of computing and exchange to none"

_OPPOSITE = {FASTER: SLOWER, SLOWER: FASTER}


def inverse(ratio: Interval) -> Interval:
    return Interval(1 / ratio.estimate, 1 / ratio.high, 1 / ratio.low)


class Paired(NamedTuple):
    """The ratio of the times of a configuration and a reference, in paired runs.

    Attributes
    ----------
    verdict : that of the table, `NO_VERDICT` if there are too few paired runs.
    sessions : over which the ratio is; None for that of the newest runs.
    """

    reference: Configuration
    ratio: Interval
    verdict: str
    matches: int
    sessions: int | None = None

    @property
    def counts(self) -> bool:
        """Whether it counts before a prediction."""
        return self.verdict != NO_VERDICT


#: By the configuration and its reference.
Ratios = Mapping[tuple[Configuration, Configuration], Paired]


def find_pair(ratios: Ratios, names: Configuration, reference: Configuration) -> Paired | None:
    """Return the measured ratio of two configurations, whichever is the reference of the other."""
    if (names, reference) in ratios:
        return ratios[names, reference]
    other = ratios.get((reference, names))
    return other and other._replace(
        reference=reference,
        ratio=inverse(other.ratio),
        verdict=_OPPOSITE.get(other.verdict, other.verdict),
    )


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

    def rows_of(self, planned: Mapping) -> int:
        """Return the rows of a step of a configuration, at most those of an epoch."""
        return min(planned["rows"], self.train_rows or planned["rows"])


@dataclass(frozen=True)
class Candidate:
    """A configuration that may be selected.

    Attributes
    ----------
    setup : with the rows of a step that all candidates have.
    configured_rows : rows of a step that the experiment sets.
    calibration : with the network of the setup; None of a time that was measured.
    seconds : of the training steps of all epochs, of shape (draws,).
    job : seconds from the start to the end of the job, of shape (draws,).
    memory : of its largest process; None if nothing is known.
    extrapolated, extrapolated_start : phrases, as of a prediction.
    paired : the measured ratio that the seconds follow; None if they follow none.
    predicted : the predicted ratio to the same reference; None without one.
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
    paired: Paired | None = None
    predicted: Interval | None = None

    @property
    def basis(self) -> str:
        """What the seconds rest on."""
        if self.paired is not None or self.calibration is None:
            return MEASURED
        if ONLY_BOUNDS in self.extrapolated:
            return BOUNDS
        return EXTRAPOLATED if self.extrapolated else PREDICTED

    def is_apart_from(self, other: Candidate) -> bool:
        """Return whether its time is measured, but in no paired runs that relate it to another."""
        is_reference = other.paired is not None and other.paired.reference == self.configuration
        is_related = self is other or is_reference or self.paired is not None
        return self.calibration is None and not is_related

    @property
    def ranks(self) -> int:
        return self.setup.layout.ranks

    @property
    def cores(self) -> int:
        """The cores of all processes together."""
        return self.ranks * self.setup.cores

    @property
    def repeats(self) -> int | None:
        """The fewest repeats of its calibrated steps; None if nothing was calibrated."""
        if self.calibration is None:
            return None
        if work := self.calibration.works.get(self.setup.work):
            return min(len(steps.means) for steps in work.steps)
        program = self.calibration.programs[self.setup.work]
        return min(len(steps["seconds"]) for steps in program["steps"])

    @property
    def predicted_ranks(self) -> int:
        """The ranks that its seconds predict, 1 if they are measured or bounds."""
        return self.ranks if self.basis in (PREDICTED, EXTRAPOLATED) else 1

    @property
    def contradicts(self) -> bool:
        """Whether measured and predicted ratio are disjoint, or only one of the two pays."""
        if self.paired is None or self.predicted is None or self.predicted.high is None:
            return False
        ratio, predicted = self.paired.ratio, self.predicted
        apart = ratio.low > predicted.high or ratio.high < predicted.low
        return apart or (self.paired.verdict == FASTER) != pays(predicted)


def names_of(row: Mapping, prefix: str = "") -> Configuration:
    """Return the configuration that the keys of a row with a prefix name."""
    return Configuration(*(row[f"{prefix}{name}"] for name in Configuration._fields))


def _predict_candidate(
    calibration: Calibration, planned: Mapping, training: Training, rows: int, draws: int
) -> Candidate:
    """Predict a configuration.

    Raises
    ------
    InputError : the cost model does not predict it, and why.
    """
    predicted = predict_plan(calibration, planned, training.train_rows, rows, draws)
    prediction, notes = predicted.prediction, predicted.notes
    job = seconds = training.epochs * predicted.epoch_seconds
    if prediction.overheads is None:
        notes.append(ONLY_STEPS)
    else:
        job = prediction.run(seconds, training.evaluated_rows)
    return Candidate(
        names_of(planned),
        prediction.setup,
        training.rows_of(planned),
        predicted.calibration,
        seconds,
        job,
        extrapolated=tuple(notes),
        extrapolated_start=prediction.extrapolated_start,
    )


def _bound_candidate(
    calibration: Calibration, planned: Mapping, training: Training, rows: int, draws: int
) -> Candidate:
    """Return a candidate between bounds: half of its draws have the lower one, half the upper one.

    So the interval of a ratio of two candidates reaches from the least to the greatest that both
    bounds allow, and a program pays only if it does whatever the overlap.

    Raises
    ------
    InputError : it has no bounds, and why.
    """
    names, layout = names_of(planned), planned["layout"]
    row = bounds(calibration, {**planned, "rows": rows})
    ends = [row[f"predicted_{end}_seconds_per_epoch"] for end in ("low", "high")]
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


def _read_candidate(planned: Mapping, row: Mapping, training: Training, draws: int) -> Candidate:
    """Return a candidate with the times of a row of the table `configurations`."""
    names, rows = names_of(planned), training.rows_of(planned)
    ends = [row[f"train{end}_seconds_per_epoch"] for end in ("", "_low", "_high")]
    if None in ends:
        ends = ends[:1] * 3
    # With weak scaling an epoch of more ranks has more rows.
    epoch_rows = planned.get("epoch_rows")
    share = training.train_rows / epoch_rows if epoch_rows and training.train_rows else 1.0
    seconds = training.epochs * share * draw(Interval(*ends), draws, names)
    known = row["wall_seconds"] is not None and row["total_train_seconds"] is not None
    work = planned.get("work") or planned.get("program") or ""
    return Candidate(
        names,
        Setup(work, planned["layout"], rows, cores=planned["cores"], network=names.network),
        rows,
        None,
        seconds,
        seconds + row["wall_seconds"] - row["total_train_seconds"] if known else seconds,
        extrapolated=() if known else (ONLY_STEPS,),
    )


def draw(of: Interval, number: int, names: Configuration) -> np.ndarray:
    """Return draws with the median of an interval, and its ends as those of one of `LEVEL`.

    Logarithms are taken to be normal on either side of the median. Each configuration has another
    order, so draws of two are independent.
    """
    random = np.random.default_rng(zlib.crc32(str(names).encode()))
    ranks = random.permutation(np.linspace(0, 1, number))
    normal = stats.norm.ppf(np.clip(ranks, 0.5 / number, 1 - 0.5 / number))
    normal /= stats.norm.ppf((1 + LEVEL) / 2)
    down, up = np.log(of.estimate / of.low), np.log(of.high / of.estimate)
    return of.estimate * np.exp(np.where(normal < 0, down, up) * normal)


def candidates(
    calibration: Calibration | None,
    planned: Sequence[Mapping],
    training: Training,
    draws: int = DRAWS,
    times: Sequence[Mapping] = (),
    same_model: Collection[Configuration] = (),
) -> tuple[list[Candidate], dict[Configuration, str]]:
    """Return configurations of one dataset and workload with what they take.

    It is predicted where that is possible, with the rows in a step of the first configuration of
    one rank, or of the first one without such. Otherwise it is measured with these rows.

    Parameters
    ----------
    calibration : None to predict nothing.
    planned : configurations, as `escala.analysis.cost_model.works.plan_works` returns them.
    times : rows of the table `configurations`.
    same_model : measured configurations that train the same model, also with other rows in a step.

    Returns
    -------
    The candidates, and for each other configuration the reason why it is not a candidate.
    """
    first = first_of(planned)
    rows = training.rows_of(first) if first else 0
    # Processes that share cores have no time that counts.
    measured = {
        tuple(row[key] for key in CONFIGURATION): row
        for row in times
        if row["train_seconds_per_epoch"] is not None and not row["oversubscribed"]
    }
    offered, refused = [], {}
    for plan in planned:
        names, row = names_of(plan), measured.get(tuple(plan[key] for key in CONFIGURATION))
        reason = plan["unavailable"] or NOT_MEASURED
        if names not in same_model and (other := other_model(plan, first)):
            refused[names] = f"it trains another model: {other}"
            continue
        if calibration and not plan["unavailable"]:
            predicted = _bound_candidate if "program" in plan else _predict_candidate
            try:
                offered.append(predicted(calibration, plan, training, rows, draws))
                continue
            except InputError as error:
                reason = str(error)
        if row is None:
            refused[names] = reason
        elif names in same_model or training.rows_of(plan) == rows:
            offered.append(_read_candidate(plan, row, training, draws))
        else:
            refused[names] = (
                f"it was measured with {plan['rows']} rows in a step, and {names_of(first)} with "
                f"{first['rows']}: it makes other updates"
            )
    return offered, refused


def first_of(planned: Sequence[Mapping]) -> Mapping | None:
    """Return the configuration whose rows in a step count: the first of one rank, else the first.

    One that trains another model does not count.
    """
    same = [plan for plan in planned if not other_model(plan, plan)]
    return next((plan for plan in same if plan["layout"] == "1x1"), next(iter(same), None))


def other_model(planned: Mapping, first: Mapping) -> str | None:
    """Return why a configuration trains another model than the first, with its rows in a step."""
    rates = [plan.get("learning_rate") for plan in (planned, first)]
    if rates[0] != rates[1]:
        return f"another learning rate: {rates[0]} and not {rates[1]}"
    return other_exchange(
        {
            "strategy": planned["strategy"],
            "ranks": {"asked": planned["layout"].ranks},
            "knobs": planned.get("knobs", {}),
            "program": planned.get("program"),
        }
    )
