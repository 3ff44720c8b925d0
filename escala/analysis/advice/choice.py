"""Choose a candidate for a goal within limits.

Amounts are compared by their medians. A candidate of several ranks is chosen only if it pays
against the best one of one rank: by the verdict where the ratio was measured, else by its interval.
The ratio of two predictions uses the same resamples of the calibration. An extrapolated prediction
is not chosen before a candidate that was measured to pay.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from escala.analysis import queue_waits
from escala.analysis.advice.candidates import BOUNDS, EXTRAPOLATED, MEASURED, Candidate
from escala.analysis.advice.goals import DEADLINE, ENERGY, GOALS, TIME, TIME_WITH_WAIT
from escala.analysis.cost_model.predict import interval
from escala.analysis.statistics import Interval
from escala.analysis.verdicts import FASTER, pays
from escala.core import readable
from escala.core.errors import InputError
from escala.record.estimate import duration


def span(seconds: float) -> str:
    """Return a duration in readable form; a short one with two digits: `2.4 s`."""
    return f"{seconds:.2g} s" if seconds < 10 else duration(seconds)


@dataclass(frozen=True)
class Limits:
    """Limits of a choice; None is no limit.

    Attributes
    ----------
    cores : of all nodes together.
    memory_bytes : of a node.
    seconds : in which a job ends, from its start, or with the goal of a deadline from now.
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
    node_watts, core_watts : of each node, and of each of its cores that is used.
    source : who states it.
    """

    node_watts: float
    core_watts: float
    source: str


@dataclass(frozen=True)
class Option:
    """A candidate, and what it costs.

    Attributes
    ----------
    amount : of the goal, in its unit; None if it is not known.
    ratio : of the amount to that of the baseline; None if either is not known.
    at_most : seconds from now to the end of the job: the upper bound of the wait and the upper end
        of the job; None without a bound.
    excluded : why it cannot be chosen; None if it can.
    """

    candidate: Candidate
    amount: Interval | None
    ratio: Interval | None
    at_most: float | None
    excluded: str | None


@dataclass(frozen=True)
class Choice:
    """The chosen option among all.

    Attributes
    ----------
    options : those that can be chosen first, the best of them first.
    baseline : the best option of one rank, whether it can be chosen or not.
    best : the chosen one; None if none can be chosen.
    nearest : the best option of several ranks that can be chosen; None if there is none.
    passed_over : the extrapolated option that would be the best without what was measured.
    """

    goal: str
    options: tuple[Option, ...]
    baseline: Option
    best: Option | None
    nearest: Option | None
    passed_over: Option | None = None

    @property
    def distribute(self) -> bool:
        return self.best is not None and self.best.candidate.ranks > 1


def choose(
    candidates: Sequence[Candidate],
    goal: str = TIME,
    limits: Limits | None = None,
    power: Power | None = None,
) -> Choice:
    """Choose the candidate with the least amount of a goal.

    With the goal `DEADLINE` that is the one with the fewest core-hours among those that surely end
    within `limits.seconds`.

    Raises
    ------
    InputError : no candidate has one rank, or the goal lacks what it needs: the power, the time of
        the deadline, or waits of the baseline.
    """
    limits = limits or Limits()
    _require(goal, limits, power)
    single = [each for each in candidates if each.ranks == 1]
    if not single:
        raise InputError(
            "configurations",
            [str(each.configuration) for each in candidates],
            "no configuration of one rank is predicted, and the others are compared with it",
            "add `{strategy: single, layouts: [1x1]}`, and calibrate again",
        )
    amounts = [_amount(goal, each, power) for each in candidates]
    excluded = [_excluded(goal, each, limits, amounts[i]) for i, each in enumerate(candidates)]

    def order(number: int) -> tuple[bool, float]:
        amount = amounts[number]
        median = float("inf") if amount is None else float(np.median(amount))
        return excluded[number] is not None, median

    ordered = sorted(range(len(candidates)), key=order)
    first = next(number for number in ordered if candidates[number].ranks == 1)
    reference = amounts[first]
    options = {
        number: Option(
            candidates[number],
            None if amounts[number] is None else interval(amounts[number]),
            None
            if amounts[number] is None or reference is None
            else interval(amounts[number] / reference),
            _at_most(candidates[number]),
            excluded[number],
        )
        for number in ordered
    }
    possible = [each for each in options.values() if each.excluded is None]
    several = [each for each in possible if each.candidate.ranks > 1]
    baseline = options[first]
    sure = [
        each
        for each in possible
        if each.candidate.ranks == 1 or baseline.excluded or _pays(goal, each, baseline)
    ]
    best = passed_over = next(iter(sure), None)
    if best is not None and best.candidate.basis in (EXTRAPOLATED, BOUNDS):
        best = next((each for each in sure if _is_measured_to_pay(goal, each, baseline)), best)
    return Choice(
        goal,
        tuple(options.values()),
        baseline,
        best,
        several[0] if several else None,
        None if best is passed_over else passed_over,
    )


def _pays(goal: str, option: Option, baseline: Option) -> bool:
    """Return whether an option pays against the baseline, by the verdict if it is of this ratio."""
    compared = option.candidate.compared
    if (
        goal == TIME
        and compared
        and compared.measured.reference == baseline.candidate.configuration
    ):
        return compared.measured.verdict == FASTER
    return pays(option.ratio)


def _is_measured_to_pay(goal: str, option: Option, baseline: Option) -> bool:
    measured = option.candidate.basis == MEASURED and option.candidate.ranks > 1
    return measured and _pays(goal, option, baseline)


def _require(goal: str, limits: Limits, power: Power | None) -> None:
    if goal not in GOALS:
        raise InputError("goal", goal, "is not known", f"choose one of {', '.join(GOALS)}")
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


def _amount(goal: str, each: Candidate, power: Power | None) -> np.ndarray | None:
    """Return the amount of a goal, of shape (draws,); None if it is not known."""
    if goal == TIME:
        return each.seconds
    if goal == TIME_WITH_WAIT:
        if each.waits is None or not each.waits.jobs:
            return None
        return each.job + queue_waits.medians(each.waits, len(each.job))
    if goal == ENERGY:
        watts = each.plan.layout.nodes * power.node_watts + each.cores * power.core_watts
        return each.job * watts
    return each.job * each.cores / 3600


def _at_most(each: Candidate) -> float | None:
    if each.waits is None or each.waits.bound is None:
        return None
    return each.waits.bound + interval(each.job).high


def _excluded(goal: str, each: Candidate, limits: Limits, amount: np.ndarray | None) -> str | None:
    reasons = [*_over(each, limits), *_late(goal, each, limits)]
    if amount is None:
        reasons.append("has no known wait, since no job of this size is known in the partition")
    return "; ".join(reasons) or None


def _over(each: Candidate, limits: Limits) -> Iterator[str]:
    """Yield the limits that a candidate exceeds."""
    nodes, needed = each.plan.layout.nodes, each.node_bytes
    if limits.nodes is not None and nodes > limits.nodes:
        yield f"takes {readable.counted(nodes, 'node')}, and {limits.nodes} are allowed"
    if limits.cores is not None and each.cores > limits.cores:
        yield f"takes {readable.counted(each.cores, 'core')}, and {limits.cores} are allowed"
    if limits.memory_bytes is not None and needed is not None and needed > limits.memory_bytes:
        yield (
            f"takes {readable.size(needed)} of memory on a node, and "
            f"{readable.size(limits.memory_bytes)} are allowed"
        )


def _late(goal: str, each: Candidate, limits: Limits) -> Iterator[str]:
    if limits.seconds is None:
        return
    end = interval(each.job).high
    if goal == DEADLINE and each.waits is not None:
        if each.waits.bound is None:
            yield "has too few jobs of its size for a bound of the wait"
            return
        end += each.waits.bound
    if end > limits.seconds:
        yield f"may take {span(end)}, and {span(limits.seconds)} are allowed"
