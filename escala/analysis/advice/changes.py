"""Find what would have to change for a configuration of several ranks to save much time.

Much is `SAVING` of the training time of the best one of one rank, by medians. One thing is changed
at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from escala.analysis.advice.candidates import Candidate
from escala.analysis.cost_model.calibration import Calibration, Network
from escala.analysis.cost_model.exchange import Exchange
from escala.analysis.cost_model.predict import Setup, predict
from escala.engines import costs

#: Fraction of the training time that a change is to save, and the ratio of the times with it.
SAVING = 0.3
RATIO = 1 - SAVING
#: Change -> the unit of its value.
UNITS = {"bandwidth": "bit/s", "batch": "rows", "cores": "cores"}
BANDWIDTH, BATCH, CORES = UNITS
COMPRESSION, FACTORS = "compression", "factors"

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
    change : one of the constants above.
    value : from which it saves `SAVING`, in the unit of `UNITS`; None if no value that was tried is
        enough, and for an exchange, which has no value.
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


#: A value, and with it the calibration, a candidate's setup and that of the baseline.
_Variant = tuple[float | None, Calibration, Setup, Setup]


def changes(several: Sequence[Candidate], baseline: Candidate, train_rows: int) -> Iterator[Change]:
    """Yield what would have to change for the fastest of some candidates to save time.

    Parameters
    ----------
    several : candidates of several ranks.
    train_rows : rows of an epoch; no step has more.
    """
    ordered = sorted(several, key=lambda candidate: float(np.median(candidate.seconds)))
    across = [candidate for candidate in ordered if candidate.setup.layout.nodes > 1]
    if across:
        yield _bandwidth(across[0], baseline)
    fastest, one = ordered[0], baseline.setup
    calibration, setup = fastest.calibration, fastest.setup
    most, draws = min(train_rows, _MOST_ROWS * one.rows), len(fastest.seconds)
    batches = [
        (rows, calibration, replace(setup, rows=rows), replace(one, rows=rows))
        for times in range(_MOST_ROWS.bit_length())
        if (rows := one.rows * 2**times) <= most
    ]
    yield _least(BATCH, fastest, baseline, batches)
    # One core for each rank, or one more.
    taken = setup.layout.processes * setup.cores
    larger = [
        (float(cores), replace(calibration, cores_per_node=cores), setup, one)
        for cores in (taken, taken + 1)
        if cores > calibration.cores_per_node
    ]
    if larger:
        yield _least(CORES, fastest, baseline, larger, draws)
    for name, exchange in _exchanges(fastest):
        other = (None, calibration, replace(setup, exchange=exchange), one)
        yield _least(name, fastest, baseline, [other], draws)


def _least(
    change: str,
    candidate: Candidate,
    baseline: Candidate,
    variants: Sequence[_Variant],
    draws: int = _DRAWS,
) -> Change:
    """Return the change to the first variant that saves enough; without such, the least ratio."""
    tried = []
    for value, calibration, setup, one in variants:
        prediction = predict(calibration, setup, draws)
        ratios = prediction.steps / predict(baseline.calibration, one, draws).steps
        ratio, notes = float(np.median(ratios)), prediction.extrapolated
        tried.append(Change(change, candidate, value, ratio, notes))
        if tried[-1].saves:
            return tried[-1]
    return replace(min(tried, key=lambda change: change.ratio), value=None)


def _bandwidth(candidate: Candidate, baseline: Candidate) -> Change:
    """Return the change to the least rate of the link that saves enough, to 2 %.

    The latency stays that of the candidate's network.
    """
    calibration, setup = candidate.calibration, candidate.setup
    known = calibration.networks.get(setup.network)
    latency = known.latency_seconds if known else None

    def with_rate(rate: float) -> Change:
        network = Network(f"{rate / 1e9:.3g} Gbit/s", rate, latency, "searched")
        of = replace(calibration, networks={**calibration.networks, network.name: network})
        variant = (rate, of, replace(setup, network=network.name), baseline.setup)
        return _least(BANDWIDTH, candidate, baseline, [variant])

    low, high = _RATES
    best = with_rate(high)
    # The time of a step never increases with the rate.
    while best.saves and high / low > 1.02:
        middle = float(np.sqrt(low * high))
        change = with_rate(middle)
        if change.saves:
            high, best = middle, change
        else:
            low = middle
    return best


def _exchanges(candidate: Candidate) -> Iterator[tuple[str, Exchange]]:
    """Yield the exchanges by which ranks exchange fewer bytes of gradients."""
    exchange = candidate.setup.exchange
    gradients = candidate.calibration.works[candidate.setup.work].gradients
    if not exchange.fp16:
        yield COMPRESSION, replace(exchange, fp16=True)
    has_factors = any(gradient.factor_rows is not None for gradient in gradients)
    if has_factors and exchange.dense == costs.ALLREDUCE and exchange.accumulation == 1:
        yield FACTORS, replace(exchange, dense=costs.FACTORS)
