"""Find what would have to change for a configuration of several ranks to save much time.

The goal is to save `SAVING` of the median training time of the best configuration of one rank. A
trial makes a single change.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from escala.analysis.advice.candidates import Candidate
from escala.analysis.cost_model.calibration import Calibration, Network
from escala.analysis.cost_model.predict import Setup, predict
from escala.engines import costs

#: Fraction of the training time that a change should save, and the largest ratio of times with this
#: saving.
SAVING = 0.3
RATIO = 1 - SAVING
#: The unit of the value of each change; changes of the exchange have no value.
UNITS = {"bandwidth": "bit/s", "batch": "rows", "cores": "cores"}
BANDWIDTH, BATCH, CORES = UNITS
COMPRESSION, FACTORS = "compression", "factors"

#: Least and largest rate of a link that is searched, in bits per second.
_RATES = (1e5, 1e13)
#: The most rows of a step that are searched, as a multiple of the present rows.
_MOST_ROWS = 64
#: Number of draws in a search. More draws give slightly different medians.
_DRAWS = 25


@dataclass(frozen=True)
class Change:
    """One change of a configuration.

    Attributes
    ----------
    change : one of the constants above.
    value : the least tried value that saves `SAVING`, in the unit of `UNITS`; None if no value
        saves so much, or if the change has no value.
    ratio : training time with `value`, divided by that of one rank. If no value saves enough, the
        least ratio of all values.
    extrapolated : phrases, as in a `Prediction`.
    """

    change: str
    candidate: Candidate
    value: float | None
    ratio: float
    extrapolated: tuple[str, ...]

    @property
    def saves(self) -> bool:
        return self.ratio <= RATIO


class _Trial(NamedTuple):
    """A value of a change, with the predicted candidate and baseline."""

    value: float | None
    calibration: Calibration
    setup: Setup
    baseline: Setup


def find_changes(
    several: Sequence[Candidate], baseline: Candidate, train_rows: int
) -> Iterator[Change]:
    """Yield each change with which the fastest candidate could save `SAVING`.

    Parameters
    ----------
    several : candidates of several ranks.
    train_rows : rows of an epoch. A step has at most these.
    """
    ordered = sorted(several, key=lambda candidate: float(np.median(candidate.seconds)))
    across = [candidate for candidate in ordered if candidate.setup.layout.nodes > 1]
    if across:
        yield _bandwidth(across[0], baseline)
    fastest, one_rank = ordered[0], baseline.setup
    calibration, setup = fastest.calibration, fastest.setup
    most_rows, draws = min(train_rows, _MOST_ROWS * one_rank.rows), len(fastest.seconds)
    batches = [
        _Trial(rows, calibration, replace(setup, rows=rows), replace(one_rank, rows=rows))
        for doublings in range(_MOST_ROWS.bit_length())
        if (rows := one_rank.rows * 2**doublings) <= most_rows
    ]
    yield _try(BATCH, fastest, baseline, batches)
    # A core of a node for each core of a rank, or one more.
    cores_of_ranks = setup.layout.processes * setup.cores
    larger_nodes = [
        _Trial(float(cores), replace(calibration, cores_per_node=cores), setup, one_rank)
        for cores in (cores_of_ranks, cores_of_ranks + 1)
        if cores > calibration.cores_per_node
    ]
    if larger_nodes:
        yield _try(CORES, fastest, baseline, larger_nodes, draws)
    # Exchanges of fewer bytes of gradients.
    exchange, smaller = setup.exchange, {}
    if not exchange.fp16:
        smaller[COMPRESSION] = replace(exchange, fp16=True)
    gradients = calibration.works[setup.work].gradients
    has_factors = any(gradient.factor_rows is not None for gradient in gradients)
    if has_factors and exchange.dense == costs.ALLREDUCE and exchange.accumulation == 1:
        smaller[FACTORS] = replace(exchange, dense=costs.FACTORS)
    for change, exchange in smaller.items():
        trial = _Trial(None, calibration, replace(setup, exchange=exchange), one_rank)
        yield _try(change, fastest, baseline, [trial], draws)


def _try(
    change: str,
    candidate: Candidate,
    baseline: Candidate,
    trials: Sequence[_Trial],
    draws: int = _DRAWS,
) -> Change:
    """Return the change of the first trial that saves enough, or else of the least ratio."""
    tried = []
    for trial in trials:
        prediction = predict(trial.calibration, trial.setup, draws)
        ratios = prediction.steps / predict(baseline.calibration, trial.baseline, draws).steps
        ratio, notes = float(np.median(ratios)), prediction.extrapolated
        tried.append(Change(change, candidate, trial.value, ratio, notes))
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
        networks = {**calibration.networks, network.name: network}
        trial = _Trial(
            rate,
            replace(calibration, networks=networks),
            replace(setup, network=network.name),
            baseline.setup,
        )
        return _try(BANDWIDTH, candidate, baseline, [trial])

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
