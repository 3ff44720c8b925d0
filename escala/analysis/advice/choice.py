"""Select a candidate for a goal within limits.

If the goal is time, the best use that was measured decides: the page names it too. Otherwise
candidates are compared by the median of the *amount*, which is what the goal minimises. A
candidate of several ranks is selected only if it pays against the best candidate of one rank. If
that ratio was measured directly, its verdict decides, otherwise the interval of the ratio of both
amounts. Both predictions of a ratio use the same resamples of the calibration, and measured ratios
are drawn independently. A candidate that was measured to pay is preferred to an extrapolated
prediction.
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
    inverse,
)
from escala.analysis.best_use import UNAVAILABLE, BestUse
from escala.analysis.cost_model.predict import interval
from escala.analysis.statistics import Interval
from escala.analysis.verdicts import FASTER, NO_VERDICT, NOT_DISTINGUISHABLE, SLOWER, pays
from escala.core import readable
from escala.core.engines import ENGINES
from escala.core.errors import InputError
from escala.core.readable import span
from escala.experiment.runs import Configuration

#: Goal -> the unit of its amount.
GOALS = {"time": "s", "core-hours": "core-hours", "energy": "J", "deadline": "core-hours"}
TIME, CORE_HOURS, ENERGY, DEADLINE = GOALS


@dataclass(frozen=True)
class Limits:
    """Limits of a choice; None is no limit.

    Attributes
    ----------
    cores : of all nodes together.
    memory_bytes : per node.
    seconds : from the start of a job to its end.
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
    node_watts, core_watts : per node, and per core in use.
    source : where the figures come from, as a phrase for the reader.
    """

    node_watts: float
    core_watts: float
    source: str


@dataclass(frozen=True)
class Option:
    """A candidate, and what it costs.

    Attributes
    ----------
    amount : what the goal minimises, in the unit of `GOALS`.
    ratio : the amount divided by that of the baseline.
    verdict : whether it takes less than the baseline, as of `escala.analysis.verdicts`.
    paired : the measured ratio to the baseline, if `ratio` is that one; else None.
    excluded : why it cannot be selected; None if it can.
    speedup : training time of the baseline divided by its own, measured where that counts.
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
    options : all, by increasing amount; those that are excluded come last.
    baseline : the best option of one rank, whether it can be selected or not.
    best : the selected one; None if none can be, or if the best use is not decided.
    nearest : the best option of several ranks that is not excluded, whether it pays or not; None if
        there is none.
    passed_over : the option that is predicted to take less than `best`, but is extrapolated and
        `best` measured, or has no interval; None without such.
    best_use : that decides; None if the candidates do.
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

    With the goal `DEADLINE` that is the one with the fewest core-hours among those whose job ends
    within `limits.seconds`, by the upper end of its interval.

    Parameters
    ----------
    ratios : of candidates that were measured.
    best_use : of the task, if it was measured.

    Raises
    ------
    InputError : no candidate has one rank, or the goal needs a power or a deadline that is not
        given.
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
            "no configuration of one rank is predicted, and the others are compared with it",
            f"add `{{strategy: NAME, layouts: [1x1]}}` with one of {names}, and calibrate again",
        )
    costs = []
    for candidate in candidates:
        amount = candidate.seconds if goal == TIME else candidate.job * candidate.cores / 3600
        if goal == ENERGY:
            nodes = candidate.setup.layout.nodes
            watts = nodes * power.node_watts + candidate.cores * power.core_watts
            amount = candidate.job * watts
        costs.append((candidate, amount, "; ".join(_excess(candidate, limits)) or None))
    costs.sort(key=lambda cost: (cost[2] is not None, np.median(cost[1])))
    base, reference, _ = next(cost for cost in costs if cost[0].ranks == 1)
    amounts = {candidate.configuration: amount for candidate, amount, _ in costs}
    options = []
    for candidate, amount, excluded in costs:
        relative = amount / reference
        ratio, verdict, direct = _compare(candidate, base, relative, ratios if goal == TIME else {})
        if direct and direct.counts:
            speedup = inverse(direct.ratio)
        else:
            speedup = _interval(base.seconds / candidate.seconds, candidate, base)
        fraction = base.cores / candidate.cores
        efficiency = Interval(*(end and fraction * end for end in speedup))
        amount = interval(amount, candidate.predicted_ranks)
        options.append(
            Option(candidate, amount, ratio, verdict, direct, excluded, speedup, efficiency)
        )
    baseline = next(option for option in options if option.candidate is base)
    possible = {
        option.candidate.configuration: option for option in options if option.excluded is None
    }
    nearest = next((option for option in possible.values() if option.candidate.ranks > 1), None)
    # The best use decides if it is within the limits. Without a verdict, predictions decide.
    is_predicted = any(candidate.calibration for candidate in candidates)
    undecided = (UNAVAILABLE, NO_VERDICT) if is_predicted else (UNAVAILABLE,)
    use, best = None, _best(possible.values(), baseline)
    if (
        goal == TIME
        and best_use
        and Configuration(*best_use.names[2:]) in possible
        and best_use.verdict not in undecided
    ):
        use, advised = best_use, best_use.advised
        best = advised and possible.get(Configuration(*advised[2:]))
    passed_over = None
    for option in possible.values() if best else ():
        one, other = option.candidate, best.candidate
        draws = amounts[one.configuration] / amounts[other.configuration]
        ratio = _interval(draws, one, other)
        less = pays(ratio) if ratio.high is not None else ratio.estimate < 1
        if one.basis != MEASURED and less:
            passed_over = option
            break
    return Choice(tuple(options), baseline, best, nearest, passed_over, use)


def _interval(draws: np.ndarray, one: Candidate, other: Candidate) -> Interval:
    """Return the interval of a ratio of two candidates."""
    return interval(draws, max(one.predicted_ranks, other.predicted_ranks))


def _best(possible: Collection[Option], baseline: Option) -> Option | None:
    """Return the first option that pays, or of one rank; a measured one before an extrapolated."""
    eligible = [
        option
        for option in possible
        if option.candidate.ranks == 1 or baseline.excluded or option.verdict == FASTER
    ]
    best = next(iter(eligible), None)
    if best is None or best.candidate.basis not in (EXTRAPOLATED, BOUNDS):
        return best
    measured = (
        option
        for option in eligible
        if (option.candidate.basis, option.candidate.ranks > 1) == (MEASURED, True)
        and option.verdict == FASTER
    )
    return next(measured, best)


def _compare(
    candidate: Candidate, base: Candidate, relative: np.ndarray, ratios: Ratios
) -> tuple[Interval, str, Paired | None]:
    """Return the ratio of an amount to that of the baseline, its verdict, and paired runs of both.

    There are paired runs if the ratio is theirs. Too few of them do not count, but where nothing
    is predicted they are all that is known. Times without a ratio of paired runs have no verdict.

    Parameters
    ----------
    relative : draws of this ratio.
    """
    ratio = _interval(relative, candidate, base)
    direct = find_pair(ratios, candidate.configuration, base.configuration)
    if direct and direct.counts:
        return direct.ratio, direct.verdict, direct
    if candidate.is_apart_from(base) or base.is_apart_from(candidate):
        return (direct.ratio if direct else ratio), NO_VERDICT, direct
    if ratio.high is None:
        return ratio, NO_VERDICT, None
    kind = FASTER if pays(ratio) else SLOWER if ratio.low > 1 else NOT_DISTINGUISHABLE
    return ratio, kind, None


def _excess(candidate: Candidate, limits: Limits) -> Iterator[str]:
    """Yield the limits that a candidate exceeds."""
    layout = candidate.setup.layout
    for name, number, allowed in (
        ("node", layout.nodes, limits.nodes),
        ("core", candidate.cores, limits.cores),
    ):
        if allowed is not None and number > allowed:
            yield f"takes {readable.with_noun(number, name)}, and {allowed} are allowed"
    needed = candidate.memory and candidate.memory.bytes * layout.processes
    if needed and limits.memory_bytes is not None and needed > limits.memory_bytes:
        yield (
            f"takes {readable.size(needed)} of memory on a node, and "
            f"{readable.size(limits.memory_bytes)} are allowed"
        )
    job = interval(candidate.job, candidate.predicted_ranks)
    if limits.seconds is not None and (job.high is None or job.high > limits.seconds):
        time = f"is estimated, without an upper end, to take {span(job.estimate)}"
        may = time if job.high is None else f"may take {span(job.high)}"
        yield f"{may}, and {span(limits.seconds)} are allowed"
