"""Find the seconds of each configuration, for training and the whole job, predicted or measured."""

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
from escala.analysis.statistics import Interval, inverse
from escala.analysis.verdicts import FASTER, NO_VERDICT, SLOWER, pays
from escala.core.errors import InputError
from escala.experiment.runs import Configuration

NOT_MEASURED = "no run of it has a time, and nothing was calibrated (escala run advice)"
#: The source of the seconds of a candidate.
MEASURED, PREDICTED, EXTRAPOLATED, BOUNDS = "measured", "predicted", "extrapolated", "bounds"
#: Phrase of a prediction without the seconds outside the training steps.
ONLY_STEPS = "start-up and evaluation were not calibrated: a job is its training steps only"
#: Phrase of the bounds of a program.
ONLY_BOUNDS = "only bounds are known, from full overlap of computing and exchange to none"

_OPPOSITE = {FASTER: SLOWER, SLOWER: FASTER}


class Paired(NamedTuple):
    """The time of a configuration divided by that of a reference, in paired runs.

    Attributes
    ----------
    verdict : the verdict of the table `speedup`; `NO_VERDICT` if there are too few paired runs.
    matches : number of paired runs.
    sessions : number of sessions from which the ratio is computed; None for a ratio of the newest
        runs.
    """

    reference: Configuration
    ratio: Interval
    verdict: str
    matches: int
    sessions: int | None = None

    @property
    def overrides_prediction(self) -> bool:
        """Whether this ratio is used in place of a prediction."""
        return self.verdict != NO_VERDICT


#: The measured ratios, by a configuration and its reference.
Ratios = Mapping[tuple[Configuration, Configuration], Paired]


def find_pair(
    ratios: Ratios, configuration: Configuration, reference: Configuration
) -> Paired | None:
    """Return the measured ratio of a configuration to a reference.

    If the reference was measured against the configuration, return the inverse of their ratio.
    """
    if (configuration, reference) in ratios:
        return ratios[configuration, reference]
    reverse = ratios.get((reference, configuration))
    return reverse and reverse._replace(
        reference=reference,
        ratio=inverse(reverse.ratio),
        verdict=_OPPOSITE.get(reverse.verdict, reverse.verdict),
    )


class ProcessMemory(NamedTuple):
    """Memory of the largest process of a configuration.

    Attributes
    ----------
    source : the source of the number, as a phrase for the reader.
    measured : whether a run measured the memory.
    """

    bytes: int
    source: str
    measured: bool


@dataclass(frozen=True)
class Training:
    """Rows and epochs of the training that an advice is for.

    Attributes
    ----------
    train_rows : number of rows in an epoch; None for a program, because its calibration has this
        number.
    evaluated_rows : number of rows in all evaluations of a run together.
    """

    train_rows: int | None
    epochs: int
    evaluated_rows: int

    def step_rows(self, plan: Mapping) -> int:
        """Return the rows of a step of a planned configuration, at most those of an epoch."""
        return min(plan["rows"], self.train_rows or plan["rows"])


@dataclass(frozen=True)
class Candidate:
    """A configuration that may be selected.

    Attributes
    ----------
    setup : what is predicted. All candidates have the same rows of a step.
    configured_rows : rows of a step that the experiment sets.
    calibration : what predicted the seconds, with the network of the setup; None for measured
        seconds.
    seconds : seconds of the training steps of all epochs, of shape (draws,).
    job : seconds from the start to the end of the job, of shape (draws,).
    memory : memory of the largest process; None if unknown.
    extrapolated, extrapolated_start : phrases on the steps and on the start-up, as in a
        `Prediction`.
    paired : the measured ratio from which the seconds were computed; None without such a ratio.
    predicted : the predicted ratio to the reference of `paired`; None without a prediction.
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
        """The source of the seconds: `MEASURED`, `PREDICTED`, `EXTRAPOLATED` or `BOUNDS`."""
        if self.paired is not None or self.calibration is None:
            return MEASURED
        if ONLY_BOUNDS in self.extrapolated:
            return BOUNDS
        return EXTRAPOLATED if self.extrapolated else PREDICTED

    def is_unpaired(self, other: Candidate) -> bool:
        """Return whether this time was measured by itself, and `other` was not computed from it."""
        if self is other or self.calibration is not None or self.paired is not None:
            return False
        return other.paired is None or other.paired.reference != self.configuration

    @property
    def ranks(self) -> int:
        return self.setup.layout.ranks

    @property
    def cores(self) -> int:
        """The cores of all processes together."""
        return self.ranks * self.setup.cores

    @property
    def repeats(self) -> int | None:
        """The fewest repeats of the calibrated steps; None if nothing was calibrated."""
        if self.calibration is None:
            return None
        if work := self.calibration.works.get(self.setup.work):
            return min(len(steps.means) for steps in work.steps)
        program = self.calibration.programs[self.setup.work]
        return min(len(steps["seconds"]) for steps in program["steps"])

    @property
    def predicted_ranks(self) -> int:
        """The `ranks` for `interval`: 1 for measured seconds and bounds, which always have one."""
        return self.ranks if self.basis in (PREDICTED, EXTRAPOLATED) else 1

    @property
    def contradicts(self) -> bool:
        """Whether measured and predicted ratio are disjoint, or only one of the two pays."""
        if self.paired is None or self.predicted is None or self.predicted.high is None:
            return False
        measured, predicted = self.paired.ratio, self.predicted
        are_disjoint = measured.low > predicted.high or measured.high < predicted.low
        return are_disjoint or (self.paired.verdict == FASTER) != pays(predicted)


def configuration_of(row: Mapping, prefix: str = "") -> Configuration:
    """Return the configuration that a row names, in keys that begin with a prefix."""
    return Configuration(*(row[f"{prefix}{name}"] for name in Configuration._fields))


def _predict_candidate(
    calibration: Calibration, plan: Mapping, training: Training, rows: int, draws: int
) -> Candidate:
    """Predict a configuration.

    Raises
    ------
    InputError : why the cost model does not predict the configuration.
    """
    predicted = predict_plan(calibration, plan, training.train_rows, rows, draws)
    prediction, notes = predicted.prediction, predicted.notes
    job = seconds = training.epochs * predicted.epoch_seconds
    if prediction.overheads is None:
        notes.append(ONLY_STEPS)
    else:
        job = prediction.run(seconds, training.evaluated_rows)
    return Candidate(
        configuration_of(plan),
        prediction.setup,
        training.step_rows(plan),
        predicted.calibration,
        seconds,
        job,
        extrapolated=tuple(notes),
        extrapolated_start=prediction.extrapolated_start,
    )


def _bound_candidate(
    calibration: Calibration, plan: Mapping, training: Training, rows: int, draws: int
) -> Candidate:
    """Return a candidate between bounds: half of its draws are the lower bound, half the upper.

    The interval of a ratio of two candidates then has the least and the greatest ratio that their
    bounds allow. So a program pays only if it pays with any overlap of computing and exchange.

    Raises
    ------
    InputError : why the configuration has no bounds.
    """
    configuration, layout = configuration_of(plan), plan["layout"]
    row = bounds(calibration, {**plan, "rows": rows})
    ends = [row[f"predicted_{end}_seconds_per_epoch"] for end in ("low", "high")]
    # Two candidates have draws in different orders, so their ends are combined in all four ways.
    seconds = training.epochs * _generator_of(configuration).permutation(np.resize(ends, draws))
    network = configuration.network
    return Candidate(
        configuration,
        Setup(plan["program"], layout, rows, cores=plan["cores"], network=network),
        plan["rows"],
        calibration,
        seconds,
        seconds,
        extrapolated=(*([ONLY_BOUNDS] if layout.ranks > 1 else []), ONLY_STEPS),
    )


def _read_candidate(plan: Mapping, row: Mapping, training: Training, draws: int) -> Candidate:
    """Return a candidate with the times of a row of the table `configurations`."""
    configuration, rows = configuration_of(plan), training.step_rows(plan)
    estimate, low, high = (row[f"train{end}_seconds_per_epoch"] for end in ("", "_low", "_high"))
    if low is None or high is None:
        low = high = estimate
    # With weak scaling, an epoch has more rows if there are more ranks.
    epoch_rows = plan.get("epoch_rows")
    share = training.train_rows / epoch_rows if epoch_rows and training.train_rows else 1.0
    epoch_seconds = share * draw(Interval(estimate, low, high), draws, configuration)
    seconds = job = training.epochs * epoch_seconds
    has_job_time = row["wall_seconds"] is not None and row["total_train_seconds"] is not None
    if has_job_time:
        job = seconds + row["wall_seconds"] - row["total_train_seconds"]
    work, network = plan.get("work") or plan.get("program") or "", configuration.network
    return Candidate(
        configuration,
        Setup(work, plan["layout"], rows, cores=plan["cores"], network=network),
        rows,
        None,
        seconds,
        job,
        extrapolated=() if has_job_time else (ONLY_STEPS,),
    )


def draw(interval: Interval, number: int, configuration: Configuration) -> np.ndarray:
    """Return draws of a distribution with a median and an interval of `LEVEL`, (number,).

    The logarithms of the draws are normal on either side of the median. Draws of two configurations
    are independent, because each configuration has its own order of draws.
    """
    ranks = _generator_of(configuration).permutation(np.linspace(0, 1, number))
    normal = stats.norm.ppf(np.clip(ranks, 0.5 / number, 1 - 0.5 / number))
    normal /= stats.norm.ppf((1 + LEVEL) / 2)
    median = interval.estimate
    down, up = np.log(median / interval.low), np.log(interval.high / median)
    return median * np.exp(np.where(normal < 0, down, up) * normal)


def _generator_of(configuration: Configuration) -> np.random.Generator:
    """Return a generator for the order of draws, always the same one for a configuration."""
    return np.random.default_rng(zlib.crc32(str(configuration).encode()))


def find_candidates(
    calibration: Calibration | None,
    planned: Sequence[Mapping],
    training: Training,
    draws: int = DRAWS,
    times: Sequence[Mapping] = (),
    same_model: Collection[Configuration] = (),
) -> tuple[list[Candidate], dict[Configuration, str]]:
    """Return the candidates among configurations of one dataset and workload, with their seconds.

    Seconds are predicted where that is possible, for the rows in a step of `select_base`.
    Otherwise, measured seconds with these rows are used.

    Parameters
    ----------
    calibration : None to predict nothing.
    planned : configurations, as `escala.analysis.cost_model.works.plan_works` returns them.
    times : rows of the table `configurations`.
    same_model : measured configurations that train the same model, even if they have other rows in
        a step.

    Returns
    -------
    The candidates, and for each configuration that is no candidate the reason.
    """
    base = select_base(planned)
    rows = training.step_rows(base) if base else 0
    # Rows by the values of `CONFIGURATION`. Times of processes that share cores do not count.
    measured = {
        tuple(row[key] for key in CONFIGURATION): row
        for row in times
        if row["train_seconds_per_epoch"] is not None and not row["oversubscribed"]
    }
    offered, refused = [], {}
    for plan in planned:
        configuration = configuration_of(plan)
        row = measured.get(tuple(plan[key] for key in CONFIGURATION))
        reason = plan["unavailable"] or NOT_MEASURED
        if configuration not in same_model and (difference := other_model(plan, base or plan)):
            refused[configuration] = f"it trains another model: {difference}"
            continue
        if calibration and not plan["unavailable"]:
            predict = _bound_candidate if "program" in plan else _predict_candidate
            try:
                offered.append(predict(calibration, plan, training, rows, draws))
                continue
            except InputError as error:
                reason = str(error)
        if row is None:
            refused[configuration] = reason
        elif configuration in same_model or training.step_rows(plan) == rows:
            offered.append(_read_candidate(plan, row, training, draws))
        else:
            refused[configuration] = (
                f"it was measured with {plan['rows']} rows in a step, and "
                f"{configuration_of(base)} with {base['rows']}: it makes other updates"
            )
    return offered, refused


def select_base(planned: Sequence[Mapping]) -> Mapping | None:
    """Return the plan whose rows in a step count: the first plan of one rank, or else the first.

    Plans whose ranks train another model than one process do not count.
    """
    same = [plan for plan in planned if not other_model(plan, plan)]
    return next((plan for plan in same if plan["layout"] == "1x1"), next(iter(same), None))


def other_model(plan: Mapping, base: Mapping) -> str | None:
    """Return why a plan trains another model than `base`, even with equal rows; or None."""
    rate, base_rate = plan.get("learning_rate"), base.get("learning_rate")
    if rate != base_rate:
        return f"another learning rate: {rate} and not {base_rate}"
    # The keys of a measured run that `other_exchange` reads.
    return other_exchange(
        {
            "strategy": plan["strategy"],
            "ranks": {"asked": plan["layout"].ranks},
            "knobs": plan.get("knobs", {}),
            "program": plan.get("program"),
        }
    )
