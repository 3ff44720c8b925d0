"""Select a candidate for a goal within limits.

The *amount* is what the goal minimises. Candidates are compared by its median. A candidate of
several ranks is selected only if it pays against the best candidate of one rank. If that ratio was
measured, its verdict decides, otherwise the interval of the predicted ratio. Both predictions of a
ratio use the same resamples of the calibration. A candidate that was measured to pay is preferred
to an extrapolated prediction.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from escala.analysis.advice.candidates import BOUNDS, EXTRAPOLATED, MEASURED, Candidate
from escala.analysis.cost_model.predict import interval
from escala.analysis.statistics import Interval
from escala.analysis.verdicts import FASTER, pays
from escala.core import readable
from escala.core.errors import InputError
from escala.record.estimate import span

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
    excluded : why it cannot be selected; None if it can.
    """

    candidate: Candidate
    amount: Interval
    ratio: Interval
    excluded: str | None


@dataclass(frozen=True)
class Choice:
    """The selected option among all.

    Attributes
    ----------
    options : all, by increasing amount; those that are excluded come last.
    baseline : the best option of one rank, whether it can be selected or not.
    best : the selected one; None if none can be.
    nearest : the best option of several ranks that is not excluded, whether it pays or not; None if
        there is none.
    passed_over : the extrapolated option that had the least amount, if `best` is a measured one
        instead; else None.
    """

    options: tuple[Option, ...]
    baseline: Option
    best: Option | None
    nearest: Option | None
    passed_over: Option | None

    @property
    def distribute(self) -> bool:
        return self.best is not None and self.best.candidate.ranks > 1


def choose(
    candidates: Sequence[Candidate],
    goal: str = TIME,
    limits: Limits | None = None,
    power: Power | None = None,
) -> Choice:
    """Select the candidate with the least amount of a goal.

    With the goal `DEADLINE` that is the one with the fewest core-hours among those whose job ends
    within `limits.seconds`, by the upper end of its interval.

    Raises
    ------
    InputError : no candidate has one rank, or the goal needs a power or a deadline that is not
        given.
    """
    limits = limits or Limits()
    _require(goal, limits, power)
    if all(each.ranks > 1 for each in candidates):
        raise InputError(
            "configurations",
            [str(each.configuration) for each in candidates],
            "no configuration of one rank is predicted, and the others are compared with it",
            "add `{strategy: single, layouts: [1x1]}`, of PyTorch `torch-single`, and calibrate "
            "again",
        )
    found = [
        (each, _amount(goal, each, power), "; ".join(_exceeded(each, limits)) or None)
        for each in candidates
    ]
    found.sort(key=lambda one: (one[2] is not None, np.median(one[1])))
    reference = next(amount for each, amount, _ in found if each.ranks == 1)
    options = tuple(
        Option(each, interval(amount), interval(amount / reference), excluded)
        for each, amount, excluded in found
    )
    baseline = next(each for each in options if each.candidate.ranks == 1)
    possible = [each for each in options if each.excluded is None]
    eligible = [
        each
        for each in possible
        if each.candidate.ranks == 1 or baseline.excluded or _pays(goal, each, baseline)
    ]
    best = passed_over = next(iter(eligible), None)
    if best is not None and best.candidate.basis in (EXTRAPOLATED, BOUNDS):
        measured = (
            each
            for each in eligible
            if (each.candidate.basis, each.candidate.ranks > 1) == (MEASURED, True)
            and _pays(goal, each, baseline)
        )
        best = next(measured, best)
    nearest = next((each for each in possible if each.candidate.ranks > 1), None)
    return Choice(options, baseline, best, nearest, None if best is passed_over else passed_over)


def _pays(goal: str, option: Option, baseline: Option) -> bool:
    """Return whether an option pays against the baseline: by the ratio's verdict if it has one."""
    compared = option.candidate.compared
    if (
        goal == TIME
        and compared
        and compared.measured.reference == baseline.candidate.configuration
    ):
        return compared.measured.verdict == FASTER
    return pays(option.ratio)


def _require(goal: str, limits: Limits, power: Power | None) -> None:
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


def _amount(goal: str, each: Candidate, power: Power | None) -> np.ndarray:
    """Return what the goal minimises, for a candidate, of shape (draws,)."""
    if goal == TIME:
        return each.seconds
    if goal == ENERGY:
        watts = each.setup.layout.nodes * power.node_watts + each.cores * power.core_watts
        return each.job * watts
    return each.job * each.cores / 3600


def _exceeded(each: Candidate, limits: Limits) -> Iterator[str]:
    """Yield the limits that a candidate exceeds."""
    layout = each.setup.layout
    for name, number, allowed in (
        ("node", layout.nodes, limits.nodes),
        ("core", each.cores, limits.cores),
    ):
        if allowed is not None and number > allowed:
            yield f"takes {readable.counted(number, name)}, and {allowed} are allowed"
    needed = each.memory and each.memory.bytes * layout.processes
    if needed and limits.memory_bytes is not None and needed > limits.memory_bytes:
        yield (
            f"takes {readable.size(needed)} of memory on a node, and "
            f"{readable.size(limits.memory_bytes)} are allowed"
        )
    end = interval(each.job).high
    if limits.seconds is not None and end > limits.seconds:
        yield f"may take {span(end)}, and {span(limits.seconds)} are allowed"
