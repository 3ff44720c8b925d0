"""Find what would have to change for a configuration of several ranks to save much time.

Much is `SAVING` of the training time of the best one of one rank, by medians. One thing is changed
at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from escala.analysis.advice.candidates import Candidate
from escala.analysis.cost_model.calibration import Calibration
from escala.analysis.cost_model.networks import Network
from escala.analysis.cost_model.predict import Plan, predict
from escala.strategies import costs

#: Fraction of the training time that a change is to save, and the ratio of the times with it.
SAVING = 0.3
RATIO = 1 - SAVING
BANDWIDTH, BATCH, CORES, COMPRESSION, FACTORS = CHANGES = (
    "bandwidth",
    "batch",
    "cores",
    "compression",
    "factors",
)

#: Least and largest rate of a link that is searched, in bits per second.
_RATES = (1e5, 1e13)
#: The most rows of a step that are searched, as a multiple of the present ones.
_MOST_ROWS = 64
#: Draws of a search. Its medians differ a little from those of more draws.
_DRAWS = 25


@dataclass(frozen=True)
class Change:
    """One change of a configuration.

    Attributes
    ----------
    change : one of `CHANGES`.
    value : from which it saves `SAVING`: bits per second of a link, rows in a step, or cores of a
        node; None if no value that was tried is enough, and for an exchange, which has no value.
    ratio : of the training time to that of one rank, with that value; else the least that was
        found.
    extrapolated : phrases, as of a prediction.
    """

    change: str
    candidate: Candidate
    value: float | None
    ratio: float
    extrapolated: tuple[str, ...]

    @property
    def saves(self) -> bool:
        return self.ratio <= RATIO


def changes(several: Sequence[Candidate], baseline: Candidate, train_rows: int) -> Iterator[Change]:
    """Yield what would have to change for the fastest of some candidates to save time.

    Parameters
    ----------
    several : candidates of several ranks.
    train_rows : of an epoch; no step has more.
    """
    if not several:
        return
    fastest = min(several, key=_median)
    across = [each for each in several if each.plan.layout.nodes > 1]
    if across:
        yield _bandwidth(min(across, key=_median), baseline)
    yield _batch(fastest, baseline, train_rows)
    yield from _cores(fastest, baseline)
    yield from _exchanges(fastest, baseline)


def _median(each: Candidate) -> float:
    return float(np.median(each.seconds))


def _ratio(
    of: Calibration, plan: Plan, base: Calibration, baseline: Plan, draws: int = _DRAWS
) -> tuple[float, tuple[str, ...]]:
    """Return the ratio of the steps of two plans, and what is extrapolated in the first."""
    one = predict(of, plan, draws)
    ratio = one.steps / predict(base, baseline, draws).steps
    return float(np.median(ratio)), one.extrapolated


def _bandwidth(each: Candidate, baseline: Candidate) -> Change:
    rate = rate_that_saves(each.calibration, each.plan, baseline.plan)
    of, plan = _with_rate(each.calibration, each.plan, rate or _RATES[1])
    ratio, notes = _ratio(of, plan, baseline.calibration, baseline.plan)
    return Change(BANDWIDTH, each, rate, ratio, notes)


def rate_that_saves(
    calibration: Calibration, plan: Plan, baseline: Plan, ratio: float = RATIO
) -> float | None:
    """Return the least rate of the link at which a plan has a ratio to the baseline, to 2 %.

    The latency stays that of the plan's network.

    Returns
    -------
    Bits per second, or None if no rate is enough.
    """

    def at(rate: float) -> float:
        of, changed = _with_rate(calibration, plan, rate)
        return _ratio(of, changed, calibration, baseline)[0]

    low, high = _RATES
    if at(high) > ratio:
        return None
    # The time of a step never increases with the rate.
    while high / low > 1.02:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if at(middle) <= ratio else (middle, high)
    return high


def _with_rate(calibration: Calibration, plan: Plan, rate: float) -> tuple[Calibration, Plan]:
    known = calibration.networks.get(plan.network)
    latency = known.latency_seconds if known else None
    network = Network(f"{rate / 1e9:.3g} Gbit/s", rate, latency, "searched")
    networks: Mapping[str, Network] = {**calibration.networks, network.name: network}
    return replace(calibration, networks=networks), replace(plan, network=network.name)


def _batch(each: Candidate, baseline: Candidate, train_rows: int) -> Change:
    found = rows_that_save(each.calibration, each.plan, baseline.plan, train_rows)
    rows, ratio, notes = found
    return Change(BATCH, each, rows if ratio <= RATIO else None, ratio, notes)


def rows_that_save(
    calibration: Calibration, plan: Plan, baseline: Plan, most: int, ratio: float = RATIO
) -> tuple[int, float, tuple[str, ...]]:
    """Return the least number of rows in a step for which a plan has a ratio to the baseline.

    Only doubles of the present rows are tried, and no more than `most`.

    Returns
    -------
    These rows with their ratio, and what is extrapolated; without such, the rows of the least
    ratio.
    """
    tried = []
    rows = baseline.rows
    while rows <= min(most, _MOST_ROWS * baseline.rows):
        changed = replace(plan, rows=rows), replace(baseline, rows=rows)
        found, notes = _ratio(calibration, changed[0], calibration, changed[1])
        if found <= ratio:
            return rows, found, notes
        tried.append((rows, found, notes))
        rows *= 2
    return min(tried, key=lambda each: each[1])


def _cores(each: Candidate, baseline: Candidate) -> Iterator[Change]:
    """Yield the changes of the cores of a node: one for each rank, and one more."""
    taken = each.plan.layout.processes * each.plan.cores
    more = [cores for cores in (taken, taken + 1) if cores > each.calibration.cores_per_node]
    tried = []
    for cores in more:
        of = replace(each.calibration, cores_per_node=cores)
        ratio, notes = _ratio(of, each.plan, baseline.calibration, baseline.plan, len(each.seconds))
        tried.append(Change(CORES, each, float(cores), ratio, notes))
        if ratio <= RATIO:
            break
    if tried:
        best = tried[-1] if tried[-1].saves else min(tried, key=lambda change: change.ratio)
        yield best if best.saves else replace(best, value=None)


def _exchanges(each: Candidate, baseline: Candidate) -> Iterator[Change]:
    """Yield the changes by which ranks exchange fewer bytes of gradients."""
    exchange = each.plan.exchange
    gradients = each.calibration.works[each.plan.work].gradients
    other = {}
    if not exchange.fp16:
        other[COMPRESSION] = replace(exchange, fp16=True)
    has_factors = any(gradient.factor_rows is not None for gradient in gradients)
    known = each.calibration.operations_per_second is not None
    summed = exchange.dense == costs.ALLREDUCE and exchange.accumulation == 1
    if has_factors and known and summed:
        other[FACTORS] = replace(exchange, dense=costs.FACTORS)
    for name, changed in other.items():
        plan = replace(each.plan, exchange=changed)
        ratio, notes = _ratio(
            each.calibration, plan, baseline.calibration, baseline.plan, len(each.seconds)
        )
        yield Change(name, each, None, ratio, notes)
