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


def changes(several: Sequence[Candidate], baseline: Candidate, train_rows: int) -> Iterator[Change]:
    """Yield what would have to change for the fastest of some candidates to save time.

    Parameters
    ----------
    several : candidates of several ranks.
    train_rows : rows of an epoch; no step has more.
    """

    def median(each: Candidate) -> float:
        return float(np.median(each.seconds))

    fastest = min(several, key=median)
    across = [each for each in several if each.setup.layout.nodes > 1]
    if across:
        each = min(across, key=median)
        rate = rate_that_saves(each.calibration, each.setup, baseline.setup)
        of, setup = _with_rate(each.calibration, each.setup, rate or _RATES[1])
        ratio, notes = _ratio(of, setup, baseline.calibration, baseline.setup)
        yield Change(BANDWIDTH, each, rate, ratio, notes)
    rows, ratio, notes = rows_that_save(
        fastest.calibration, fastest.setup, baseline.setup, train_rows
    )
    yield Change(BATCH, fastest, rows if ratio <= RATIO else None, ratio, notes)
    yield from _cores(fastest, baseline)
    yield from _exchanges(fastest, baseline)


def _ratio(
    of: Calibration, setup: Setup, base: Calibration, baseline: Setup, draws: int = _DRAWS
) -> tuple[float, tuple[str, ...]]:
    """Return the ratio of the steps of two setups, and what is extrapolated in the first."""
    one = predict(of, setup, draws)
    ratio = one.steps / predict(base, baseline, draws).steps
    return float(np.median(ratio)), one.extrapolated


def rate_that_saves(
    calibration: Calibration, setup: Setup, baseline: Setup, ratio: float = RATIO
) -> float | None:
    """Return the least rate of the link at which a setup has a ratio to the baseline, to 2 %.

    The latency stays that of the setup's network.

    Returns
    -------
    Bits per second, or None if no rate is enough.
    """

    def enough(rate: float) -> bool:
        of, changed = _with_rate(calibration, setup, rate)
        return _ratio(of, changed, calibration, baseline)[0] <= ratio

    low, high = _RATES
    if not enough(high):
        return None
    # The time of a step never increases with the rate.
    while high / low > 1.02:
        middle = float(np.sqrt(low * high))
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


def _with_rate(calibration: Calibration, setup: Setup, rate: float) -> tuple[Calibration, Setup]:
    known = calibration.networks.get(setup.network)
    latency = known.latency_seconds if known else None
    network = Network(f"{rate / 1e9:.3g} Gbit/s", rate, latency, "searched")
    networks = {**calibration.networks, network.name: network}
    return replace(calibration, networks=networks), replace(setup, network=network.name)


def rows_that_save(
    calibration: Calibration, setup: Setup, baseline: Setup, most: int, ratio: float = RATIO
) -> tuple[int, float, tuple[str, ...]]:
    """Return the least number of rows in a step for which a setup has a ratio to the baseline.

    Only doubles of the present rows are tried, and no more than `most`.

    Returns
    -------
    These rows with their ratio, and what is extrapolated; without such, the rows of the least
    ratio.
    """
    tried = []
    rows = baseline.rows
    while rows <= min(most, _MOST_ROWS * baseline.rows):
        changed = replace(setup, rows=rows), replace(baseline, rows=rows)
        found, notes = _ratio(calibration, changed[0], calibration, changed[1])
        if found <= ratio:
            return rows, found, notes
        tried.append((rows, found, notes))
        rows *= 2
    return min(tried, key=lambda each: each[1])


def _cores(each: Candidate, baseline: Candidate) -> Iterator[Change]:
    """Yield the change of the cores of a node: one for each rank, or one more."""
    taken = each.setup.layout.processes * each.setup.cores
    tried = []
    for cores in (taken, taken + 1):
        if cores > each.calibration.cores_per_node:
            of = replace(each.calibration, cores_per_node=cores)
            ratio, notes = _changed_ratio(each, baseline, of, each.setup)
            tried.append(Change(CORES, each, float(cores), ratio, notes))
            if ratio <= RATIO:
                yield tried[-1]
                return
    if tried:
        yield replace(min(tried, key=lambda change: change.ratio), value=None)


def _exchanges(each: Candidate, baseline: Candidate) -> Iterator[Change]:
    """Yield the changes by which ranks exchange fewer bytes of gradients."""
    exchange = each.setup.exchange
    gradients = each.calibration.works[each.setup.work].gradients
    other = {}
    if not exchange.fp16:
        other[COMPRESSION] = replace(exchange, fp16=True)
    has_factors = any(gradient.factor_rows is not None for gradient in gradients)
    if has_factors and exchange.dense == costs.ALLREDUCE and exchange.accumulation == 1:
        other[FACTORS] = replace(exchange, dense=costs.FACTORS)
    for name, changed in other.items():
        setup = replace(each.setup, exchange=changed)
        yield Change(name, each, None, *_changed_ratio(each, baseline, each.calibration, setup))


def _changed_ratio(
    each: Candidate, baseline: Candidate, of: Calibration, setup: Setup
) -> tuple[float, tuple[str, ...]]:
    return _ratio(of, setup, baseline.calibration, baseline.setup, len(each.seconds))
