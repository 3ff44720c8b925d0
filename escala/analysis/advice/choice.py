"""Select a candidate for a goal within limits.

If the goal is time, the measured *best use* decides: the quickest configuration, as the page names
it (`escala.analysis.best_use`). Otherwise candidates are compared by the median of the *amount*,
which is what the goal minimises. The *baseline* is the best candidate of one rank. A candidate of
several ranks is selected only if it pays against the baseline. If both ran in paired runs, the
verdict of these runs decides. Otherwise the interval of the ratio of both amounts decides. Two
predictions use the same resamples of the calibration, and measured ratios are drawn independently.
A candidate that was measured to pay is preferred to an extrapolated prediction.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from escala.analysis.advice.candidates import (
    BOUNDS,
    EXTRAPOLATED,
    MEASURED,
    Candidate,
    Paired,
    Ratios,
    find_pair,
)
from escala.analysis.best_use import UNAVAILABLE, BestUse
from escala.analysis.cost_model.predict import interval
from escala.analysis.statistics import Interval, inverse
from escala.analysis.verdicts import FASTER, NO_VERDICT, NOT_DISTINGUISHABLE, SLOWER, pays
from escala.core import readable
from escala.core.engines import ENGINES
from escala.core.errors import InputError
from escala.core.readable import span
from escala.experiment.runs import Configuration

#: The unit of the amount of each goal.
GOALS = {"time": "s", "core-hours": "core-hours", "energy": "J", "deadline": "core-hours"}
TIME, CORE_HOURS, ENERGY, DEADLINE = GOALS


@dataclass(frozen=True)
class Limits:
    """Limits of a choice; None is no limit.

    Attributes
    ----------
    cores : cores of all nodes together.
    memory_bytes : memory of a node.
    seconds : time from the start of a job to its end.
    """

    nodes: int | None = None
    cores: int | None = None
    memory_bytes: float | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class Power:
    """Power that nodes and cores take while they train.

    Attributes
    ----------
    node_watts, core_watts : power of a node, and additional power of each core in use.
    source : the source of the figures, as a phrase for the reader.
    """

    node_watts: float
    core_watts: float
    source: str


@dataclass(frozen=True)
class Option:
    """A candidate, compared with the baseline.

    Attributes
    ----------
    amount : what the goal minimises, in the unit of `GOALS`.
    ratio : the amount divided by that of the baseline.
    verdict : verdict on the ratio, as in `escala.analysis.verdicts`.
    paired : the paired runs of `ratio`; None if `ratio` is from no paired runs.
    excluded : why the candidate cannot be selected; None if it can.
    speedup : training time of the baseline divided by that of the candidate.
    efficiency : the speed-up divided by the ratio of the cores.
    """

    candidate: Candidate
    amount: Interval
    ratio: Interval
    verdict: str
    paired: Paired | None
    excluded: str | None
    speedup: Interval
    efficiency: Interval

    @property
    def label(self) -> str:
        return str(self.candidate.configuration)

    @property
    def seconds(self) -> Interval:
        """Seconds of the training steps of all epochs."""
        return interval(self.candidate.seconds, self.candidate.predicted_ranks)

    @property
    def job_seconds(self) -> Interval:
        """Seconds of the whole job."""
        return interval(self.candidate.job, self.candidate.predicted_ranks)


@dataclass(frozen=True)
class Choice:
    """The selected option among all.

    Attributes
    ----------
    options : all options: by increasing amount, then the excluded options.
    baseline : the best option of one rank, even if it is excluded.
    best : the selected option; None if all are excluded, or if the best use is not decided.
    nearest : the best option of several ranks that is not excluded, even if it does not pay; None
        without such an option.
    passed_over : an option that was not selected because it rests on a prediction, although its
        predicted amount is smaller than that of `best`; None without such an option.
    best_use : the measured best use if it decides; None if the amounts decide.
    """

    options: tuple[Option, ...]
    baseline: Option
    best: Option | None
    nearest: Option | None
    passed_over: Option | None
    best_use: BestUse | None = None

    @property
    def distribute(self) -> bool | None:
        """Whether to use several ranks; None if nothing is selected."""
        return self.best and self.best.candidate.ranks > 1


def choose(
    candidates: Sequence[Candidate],
    goal: str = TIME,
    limits: Limits | None = None,
    power: Power | None = None,
    ratios: Ratios | None = None,
    best_use: BestUse | None = None,
) -> Choice:
    """Select the candidate with the least amount of a goal.

    With the goal `DEADLINE`, the amount is core-hours. Only jobs that end within `limits.seconds`
    count, by the upper ends of their intervals.

    Parameters
    ----------
    ratios : ratios of measured candidates.
    best_use : the best use of the task, if it was measured.

    Raises
    ------
    InputError : no candidate has one rank, or the goal needs a power or a deadline and the user
        gave none.
    """
    limits, ratios = limits or Limits(), ratios or {}
    if goal == DEADLINE and limits.seconds is None:
        raise InputError(
            "goal", goal, "no deadline is given", "give the minutes within which the job must end"
        )
    if goal == ENERGY and power is None:
        raise InputError(
            "goal",
            goal,
            "no power is known",
            "state the joules of a core-hour, or `energy.power_model` in the experiment",
        )
    if all(candidate.ranks > 1 for candidate in candidates):
        names = ", ".join(engine.one_process for engine in ENGINES.values())
        raise InputError(
            "configurations",
            [str(candidate.configuration) for candidate in candidates],
            "no configuration of one rank is predicted, and the comparison needs one",
            f"add `{{strategy: NAME, layouts: [1x1]}}` with one of {names}, and calibrate again",
        )
    # For each configuration, the draws of its amount and why it is excluded.
    amounts: dict[Configuration, np.ndarray] = {}
    excluded: dict[Configuration, str | None] = {}
    for candidate in candidates:
        amount = candidate.seconds if goal == TIME else candidate.job * candidate.cores / 3600
        if goal == ENERGY:
            nodes = candidate.setup.layout.nodes
            watts = nodes * power.node_watts + candidate.cores * power.core_watts
            amount = candidate.job * watts
        amounts[candidate.configuration] = amount
        excluded[candidate.configuration] = "; ".join(_excess(candidate, limits)) or None
    ordered = sorted(
        candidates,
        key=lambda candidate: (
            excluded[candidate.configuration] is not None,
            np.median(amounts[candidate.configuration]),
        ),
    )
    base = next(candidate for candidate in ordered if candidate.ranks == 1)
    options = []
    for candidate in ordered:
        amount = amounts[candidate.configuration]
        relative = amount / amounts[base.configuration]
        ratio, verdict, paired = _compare(candidate, base, relative, ratios if goal == TIME else {})
        if paired and paired.overrides_prediction:
            speedup = inverse(paired.ratio)
        else:
            speedup = _interval(base.seconds / candidate.seconds, candidate, base)
        fraction = base.cores / candidate.cores
        options.append(
            Option(
                candidate,
                interval(amount, candidate.predicted_ranks),
                ratio,
                verdict,
                paired,
                excluded[candidate.configuration],
                speedup,
                efficiency=Interval(*(end and fraction * end for end in speedup)),
            )
        )
    baseline = next(option for option in options if option.candidate is base)
    possible = {
        option.candidate.configuration: option for option in options if option.excluded is None
    }
    nearest = next((option for option in possible.values() if option.candidate.ranks > 1), None)
    # The best use decides if it is within the limits. Without a verdict, predictions decide.
    is_predicted = any(candidate.calibration for candidate in candidates)
    undecided = (UNAVAILABLE, NO_VERDICT) if is_predicted else (UNAVAILABLE,)
    decides = (
        goal == TIME
        and best_use is not None
        and best_use.configuration in possible
        and best_use.verdict not in undecided
    )
    best = _best(possible.values(), baseline)
    if decides:
        advised = best_use.advised
        best = advised and possible.get(Configuration(*advised[2:]))
    passed_over = None
    for option in possible.values() if best else ():
        candidate, selected = option.candidate, best.candidate
        draws = amounts[candidate.configuration] / amounts[selected.configuration]
        ratio = _interval(draws, candidate, selected)
        takes_less = pays(ratio) if ratio.high is not None else ratio.estimate < 1
        if candidate.basis != MEASURED and takes_less:
            passed_over = option
            break
    return Choice(
        tuple(options), baseline, best, nearest, passed_over, best_use if decides else None
    )


def _interval(draws: np.ndarray, one: Candidate, other: Candidate) -> Interval:
    """Return the interval of draws of a ratio of two candidates."""
    return interval(draws, max(one.predicted_ranks, other.predicted_ranks))


def _best(possible: Collection[Option], baseline: Option) -> Option | None:
    """Return the first option that pays or has one rank; None without such an option.

    If the seconds of this option are extrapolated or bounds, return the first option that was
    measured to pay instead.
    """
    eligible = [
        option
        for option in possible
        if option.candidate.ranks == 1 or baseline.excluded or option.verdict == FASTER
    ]
    best = next(iter(eligible), None)
    if best is None or best.candidate.basis not in (EXTRAPOLATED, BOUNDS):
        return best
    for option in eligible:
        is_measured = option.candidate.basis == MEASURED
        if is_measured and option.candidate.ranks > 1 and option.verdict == FASTER:
            return option
    return best


def _compare(
    candidate: Candidate, base: Candidate, relative: np.ndarray, ratios: Ratios
) -> tuple[Interval, str, Paired | None]:
    """Return the ratio of an amount to that of the baseline, its verdict, and its paired runs.

    The paired runs are None if the ratio is predicted. Too few paired runs give no verdict, and
    their ratio is used only if nothing is predicted.

    Parameters
    ----------
    relative : draws of the ratio.
    """
    ratio = _interval(relative, candidate, base)
    paired = find_pair(ratios, candidate.configuration, base.configuration)
    if paired and paired.overrides_prediction:
        return paired.ratio, paired.verdict, paired
    if candidate.is_unpaired(base) or base.is_unpaired(candidate):
        return (paired.ratio if paired else ratio), NO_VERDICT, paired
    if ratio.high is None:
        return ratio, NO_VERDICT, None
    verdict = FASTER if pays(ratio) else SLOWER if ratio.low > 1 else NOT_DISTINGUISHABLE
    return ratio, verdict, None


def _excess(candidate: Candidate, limits: Limits) -> Iterator[str]:
    """Yield a phrase on each limit that a candidate exceeds."""
    layout = candidate.setup.layout
    if limits.nodes is not None and layout.nodes > limits.nodes:
        yield f"takes {readable.with_noun(layout.nodes, 'node')}, and {limits.nodes} are allowed"
    if limits.cores is not None and candidate.cores > limits.cores:
        yield f"takes {readable.with_noun(candidate.cores, 'core')}, and {limits.cores} are allowed"
    needed = candidate.memory and candidate.memory.bytes * layout.processes
    if needed and limits.memory_bytes is not None and needed > limits.memory_bytes:
        yield (
            f"takes {readable.size(needed)} of memory on a node, and "
            f"{readable.size(limits.memory_bytes)} are allowed"
        )
    job = interval(candidate.job, candidate.predicted_ranks)
    if limits.seconds is not None and (job.high is None or job.high > limits.seconds):
        takes = (
            f"is estimated, without an upper end, to take {span(job.estimate)}"
            if job.high is None
            else f"may take {span(job.high)}"
        )
        yield f"{takes}, and {span(limits.seconds)} are allowed"
