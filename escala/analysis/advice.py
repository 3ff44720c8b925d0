"""Choose a layout for a goal within limits, from predictions, and name what else would pay.

Layouts are compared with the baseline for the same number of rows in a step, so they make the same
updates. The ratio of two predictions uses the same resamples of the calibration.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from escala.analysis.cost_model.calibration import Calibration
from escala.analysis.cost_model.networks import Network
from escala.analysis.cost_model.predict import DRAWS, Plan, interval, predict
from escala.analysis.statistics import Interval
from escala.core.errors import InputError

TIME, TIME_WITH_WAIT, CORE_HOURS = GOALS = ("time", "time-with-wait", "core-hours")
#: Ratio to the baseline at which a layout pays: 30 % less time.
PAYS = 0.7

#: Least and largest rate of a link that is searched, in bits per second.
_RATES = (1e5, 1e13)
#: Draws of the searches, which need medians only.
_SEARCH_DRAWS = 25


@dataclass(frozen=True)
class Limits:
    """Limits of a plan; None is no limit.

    Attributes
    ----------
    cores : of all nodes together.
    seconds : that the training may take.
    """

    nodes: int | None = None
    cores: int | None = None
    seconds: float | None = None

    def allow(self, plan: Plan, seconds: float) -> bool:
        """Return whether a plan that takes so long stays within the limits."""
        used = (plan.layout.nodes, plan.layout.ranks * plan.cores, seconds)
        most = (self.nodes, self.cores, self.seconds)
        return all(limit is None or value <= limit for value, limit in zip(used, most, strict=True))


@dataclass(frozen=True)
class Option:
    """A plan and what it costs.

    Attributes
    ----------
    seconds : of the training steps.
    amount : of the goal, in seconds or core-hours.
    ratio : of the amount to that of the baseline.
    extrapolated : as of a prediction.
    """

    plan: Plan
    seconds: Interval
    amount: Interval
    ratio: Interval
    extrapolated: tuple[str, ...]


@dataclass(frozen=True)
class Advice:
    """The best option, and all others within the limits, the best first.

    Attributes
    ----------
    distribute : whether the best option has several ranks and less than the baseline needs, with
        its whole interval.
    rate : if not, bits per second of the link at which the fastest option of several nodes would
        pay; None if there is none, or no rate is enough.
    rows : if not, of a step of all ranks, from which an option of several ranks would pay; None if
        no calibrated number is enough.
    """

    goal: str
    baseline: Option
    options: tuple[Option, ...]
    distribute: bool
    rate: float | None
    rows: int | None

    @property
    def best(self) -> Option:
        return self.options[0]


def advise(
    calibration: Calibration,
    plans: Sequence[Plan],
    baseline: Plan,
    train_rows: int,
    epochs: int,
    goal: str = TIME,
    limits: Limits | None = None,
    waits: Callable[[Plan], float] = lambda plan: 0.0,
    draws: int = DRAWS,
) -> Advice:
    """Choose the plan with the least median of the goal.

    Parameters
    ----------
    plans : to choose from, with the rows of `baseline` in a step.
    goal : one of `GOALS`.
    waits : returns the seconds that a plan waits in the queue, for the goal `TIME_WITH_WAIT`.

    Raises
    ------
    InputError : no plan is within the limits.
    """
    limits = limits or Limits()
    plans = [baseline, *(plan for plan in plans if plan != baseline)]
    predictions = {plan: predict(calibration, plan, draws) for plan in plans}
    seconds = {plan: epochs * each.epoch(train_rows) for plan, each in predictions.items()}
    amounts = {plan: _amount(goal, plan, seconds[plan], waits) for plan in plans}
    options = [
        Option(
            plan,
            interval(seconds[plan]),
            interval(amounts[plan]),
            interval(amounts[plan] / amounts[baseline]),
            predictions[plan].extrapolated,
        )
        for plan in plans
    ]
    allowed = sorted(
        (each for each in options if limits.allow(each.plan, each.seconds.estimate)),
        key=lambda each: each.amount.estimate,
    )
    if not allowed:
        raise InputError("limits", limits, "exclude every layout", "allow more")
    best = allowed[0]
    distribute = best.plan.layout.ranks > 1 and best.ratio.high < 1
    several = [plan for plan in plans if plan.layout.ranks > 1 and not distribute]
    across = [plan for plan in several if plan.layout.nodes > 1]
    fastest = min(across, key=lambda plan: float(np.median(seconds[plan])), default=None)
    return Advice(
        goal,
        options[0],
        tuple(allowed),
        distribute,
        fastest and rate_that_pays(calibration, fastest, baseline),
        rows_that_pay(calibration, several, baseline),
    )


def _amount(
    goal: str, plan: Plan, seconds: np.ndarray, waits: Callable[[Plan], float]
) -> np.ndarray:
    if goal == CORE_HOURS:
        return seconds * plan.layout.ranks * plan.cores / 3600
    return seconds + (waits(plan) if goal == TIME_WITH_WAIT else 0.0)


def _steps(calibration: Calibration, plan: Plan) -> np.ndarray:
    return predict(calibration, plan, _SEARCH_DRAWS).steps


def rate_that_pays(
    calibration: Calibration, plan: Plan, baseline: Plan, ratio: float = PAYS
) -> float | None:
    """Return the least rate of the link at which a plan has a ratio to the baseline, to 2 %.

    The latency stays that of the plan's network.

    Returns
    -------
    Bits per second, or None if no rate is enough.
    """

    def at(rate: float) -> float:
        network = Network("searched", rate, latency, "searched")
        networks: Mapping[str, Network] = {**calibration.networks, network.name: network}
        changed = replace(calibration, networks=networks)
        return float(np.median(_steps(changed, replace(plan, network=network.name)) / reference))

    reference = _steps(calibration, baseline)
    known = calibration.networks.get(plan.network)
    latency = known.latency_seconds if known else None
    low, high = _RATES
    if at(high) > ratio:
        return None
    # The time of a step never increases with the rate.
    while high / low > 1.02:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if at(middle) <= ratio else (middle, high)
    return high


def rows_that_pay(
    calibration: Calibration, plans: Sequence[Plan], baseline: Plan, ratio: float = PAYS
) -> int | None:
    """Return the least number of rows in a step for which one of some plans pays.

    Only doubles of the baseline's rows are tried, as far as one process was calibrated.
    """
    most = max(each.rows for each in calibration.works[baseline.work].steps if each.processes == 1)
    rows = baseline.rows
    while rows <= most:
        reference = _steps(calibration, replace(baseline, rows=rows))
        changed = (replace(plan, rows=rows) for plan in plans)
        if any(np.median(_steps(calibration, each) / reference) <= ratio for each in changed):
            return rows
        rows *= 2
    return None


def lines(advice: Advice) -> Iterator[str]:
    """Yield the sentences of an advice, and the lines of the job script."""
    best, unit = advice.best, "core-hours" if advice.goal == CORE_HOURS else "s"
    ratio = f"{best.ratio.estimate:.2f} ({best.ratio.low:.2f}–{best.ratio.high:.2f})"
    amount = f"{best.amount.estimate:.3g} {unit} ({best.amount.low:.3g}–{best.amount.high:.3g})"
    if advice.distribute:
        yield (
            f"Use {best.plan.layout} with {best.plan.rows} rows in a step: {amount}, {ratio} of "
            f"{advice.baseline.plan.layout}."
        )
    else:
        yield (
            f"Do not distribute this: no layout within the limits is surely better than "
            f"{advice.baseline.plan.layout}."
        )
        yield from _what_would_pay(advice)
    if best.extrapolated:
        yield f"Extrapolated: {'; '.join(best.extrapolated)}."
    yield from job_script(best if advice.distribute else advice.baseline)


def _what_would_pay(advice: Advice) -> Iterator[str]:
    saved = f"{1 - PAYS:.0%} less time"
    if advice.rate is not None:
        yield f"With a link of {advice.rate / 1e9:.3g} Gbit/s or more, several nodes take {saved}."
    if advice.rows is not None:
        yield f"With {advice.rows} rows in a step or more, several ranks take {saved}."
    if advice.rate is None and advice.rows is None:
        yield f"Neither a faster link nor more rows of those calibrated give {saved}."


def job_script(option: Option) -> Iterator[str]:
    """Yield the lines of a job script that request what an option needs.

    The time is the upper end of the interval of the training steps, in whole minutes.
    """
    plan = option.plan
    yield f"#SBATCH --nodes={plan.layout.nodes}"
    yield f"#SBATCH --ntasks-per-node={plan.layout.processes}"
    yield f"#SBATCH --cpus-per-task={plan.cores}"
    yield f"#SBATCH --time={max(1, int(np.ceil(option.seconds.high / 60)))}"
