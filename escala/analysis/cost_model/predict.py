"""Predict steps, epochs and runs of a setup, each term with its interval.

The terms of a step:

- `fixed`: of the compute time of one process, what does not depend on its rows: the line through
  the two smallest calibrated numbers of rows, at 0 rows.
- `compute`: the rest of it, interpolated between the calibrated numbers of rows.
- `contention`: what ranks lose by computing at the same time, as calibrated for the library and the
  processes of a node, what threads of the library take of the cores, and by sharing cores if there
  are more ranks than cores.
- `skew`: the mean of the slowest of all ranks minus the mean of one: the expected largest of n
  independent draws from the calibrated steps.
- `exchange`: what the exchange adds (`overlap.exposed_seconds`), the conversion to 16 bits, and
  copies through shared memory, scaled by the measured slow-down of steps that exchange.
- `update`: what is calibrated after the last gradient, in proportion to the weights that a rank
  updates, and the product of the factors of the other ranks' rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache

import numpy as np

from escala.analysis.cost_model.calibration import (
    LEVEL,
    VALIDATED_RANKS,
    Calibration,
    ExchangeTimes,
    Overheads,
    StartTimes,
    Work,
)
from escala.analysis.cost_model.computing import (
    contention,
    expected_largest,
    interpolated,
    steps_of_cores,
)
from escala.analysis.cost_model.messages import Exchange, exchanged, in_buckets
from escala.analysis.cost_model.overlap import CYCLE_SECONDS, FUSION_BYTES, exposed_seconds
from escala.analysis.cost_model.resample import resampled, undisturbed
from escala.analysis.cost_model.transfers import Transfers, known_network
from escala.analysis.statistics import Interval
from escala.core.engines import COLLECTIVES
from escala.core.errors import InputError
from escala.runtime.layout import Layout

DRAWS = 400
#: Phrase of a prediction without an interval.
NOT_VALIDATED = (
    f"predictions of more than {VALIDATED_RANKS} ranks were never held against measured times that "
    "count: an estimate without an interval"
)
#: Sets of resamples that are kept.
_KEPT = 8
TERMS = ("fixed", "compute", "contention", "skew", "exchange", "update")


@dataclass(frozen=True)
class Setup:
    """Ranks with their work, rows and network, of which a step is predicted.

    Attributes
    ----------
    work : its name in the calibration.
    rows : of a step of all ranks together.
    library : of the collectives; without effect on one rank.
    cores : of a process.
    network : between nodes, calibrated or preset; without effect on one node.
    """

    work: str
    layout: Layout
    rows: int
    library: str = "mpi"
    cores: int = 1
    network: str = "native"
    exchange: Exchange = field(default_factory=Exchange)


@dataclass(frozen=True)
class Prediction:
    """Draws of the predicted seconds of a step, and what they rest on.

    Attributes
    ----------
    terms : seconds of each of `TERMS`, of shape (draws,).
    overheads : those of the work, by their names, of shape (draws,); None if not calibrated.
    extrapolated : what was not calibrated of the steps, as phrases; empty if everything was.
    extrapolated_start : the same of the start.
    """

    setup: Setup
    terms: Mapping[str, np.ndarray]
    overheads: Mapping[str, np.ndarray] | None
    extrapolated: tuple[str, ...]
    extrapolated_start: tuple[str, ...] = ()

    @property
    def steps(self) -> np.ndarray:
        """The seconds of a step, of shape (draws,)."""
        return sum(self.terms.values())

    def run(self, train_seconds: np.ndarray, evaluated_rows: int) -> np.ndarray:
        """Return the seconds of a whole run, of shape (draws,), if its overheads are known.

        Parameters
        ----------
        train_seconds : of all training steps, of shape (draws,).
        evaluated_rows : rows of all evaluations of the run together; the ranks divide them.
        """
        per_row = self.overheads["evaluation_per_row"]
        evaluation = evaluated_rows / self.setup.layout.ranks * per_row
        return self.overheads["start"] + train_seconds + evaluation + self.overheads["end"]


def interval(draws: np.ndarray, ranks: int = 1) -> Interval:
    """Return the median of draws and their interval of level `LEVEL`.

    Parameters
    ----------
    ranks : that are predicted. With more than `VALIDATED_RANKS` there is no interval.
    """
    low, median, high = np.quantile(draws, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
    if ranks > VALIDATED_RANKS:
        return Interval(float(median), None, None)
    return Interval(float(median), float(low), float(high))


def predict(
    calibration: Calibration, setup: Setup, draws: int = DRAWS, seed: int = 0
) -> Prediction:
    """Predict the step of a setup.

    The draws hold the uncertainty of the calibration and, for several ranks, an error of the model.
    With one seed, the draws of two setups of one work use the same resamples of its steps, so a
    ratio of them is of matching draws.

    Raises
    ------
    InputError : the calibration has no such work, cores, network or library.
    """
    work = calibration.works.get(setup.work)
    if work is None:
        raise InputError(
            "work",
            setup.work,
            "was not calibrated",
            f"choose one of {', '.join(calibration.works)}",
        )
    samples = _samples(calibration, setup.work, setup.library, draws, seed)
    notes: list[str] = []
    about_start: list[str] = []
    if setup.layout.ranks > VALIDATED_RANKS:
        notes.append(NOT_VALIDATED)
    nearest = _nearest_exchange(work, setup, notes)
    rows = []
    for sample, _ in samples:
        terms = _terms(sample, setup, notes)
        if nearest is not None:
            terms["exchange"] = _as_measured(terms["exchange"], sample, setup, nearest)
        rows.append(terms)
    overheads = None
    if work.overheads:
        work_overheads = [sample.works[setup.work].overheads for sample, _ in samples]
        overheads = {
            each.name: np.array([getattr(one, each.name).mean() for one in work_overheads])
            for each in fields(Overheads)
        }
        overheads["start"] += [_later_start(each.starts, setup, about_start) for each, _ in samples]
    deviation = calibration.model_deviation if setup.layout.ranks > 1 else 0.0
    errors = np.exp([deviation * error for _, error in samples])
    return Prediction(
        setup,
        {name: errors * np.array([row[name] for row in rows]) for name in TERMS},
        overheads,
        tuple(dict.fromkeys(notes)),
        tuple(dict.fromkeys(about_start)),
    )


@lru_cache(_KEPT)
def _samples(
    calibration: Calibration, work: str, library: str, draws: int, seed: int
) -> tuple[tuple[Calibration, float], ...]:
    """Return resamples of what a work and a library need, each with an error of the model.

    The error is that of a standard normal distribution. Setups of one work share their resamples,
    if they are predicted from one calibration object.
    """
    used = replace(
        calibration,
        works={work: calibration.works[work]},
        collectives=tuple(each for each in calibration.collectives if each.library == library),
    )
    randoms = np.random.default_rng(seed).spawn(draws)
    return tuple((resampled(used, random), random.standard_normal()) for random in randoms)


def _nearest_exchange(work: Work, setup: Setup, notes: list[str]) -> int | None:
    """Return the number of the measured exchange that is nearest to a setup.

    None if none was measured with its library and cores, or if it has one rank.
    """
    measured = [
        number
        for number, each in enumerate(work.exchanges)
        if (each.library, each.cores) == (setup.library, setup.cores)
    ]
    if setup.layout.ranks == 1 or not measured:
        return None
    number = min(measured, key=lambda number: _distance(work.exchanges[number], setup))
    each = work.exchanges[number]
    if any(_distance(each, setup)[:2]):
        notes.append(
            f"what a step loses by its exchange was not measured {_where(setup)}: that "
            f"{_where(each)} stands for it"
        )
    return number


def _as_measured(exchange: float, sample: Calibration, setup: Setup, number: int) -> float:
    """Return the predicted seconds of an exchange with the residual of a measured one.

    The residual is what the measured step lost beyond its predicted exchange and skew. A longer
    exchange loses as much, because computing takes longer after a wait, which hardly depends on how
    long the wait was (`docs/decisions/037-calibration.md`). A shorter one, for example through
    shared memory, loses less in proportion. Both steps are predicted from one resample, so its
    error cancels where they are alike.

    Parameters
    ----------
    sample : a resampled calibration.
    number : of the measured exchange.
    """
    work = sample.works[setup.work]
    each = work.exchanges[number]
    measured = replace(
        setup,
        layout=each.layout,
        rows=each.rows * each.layout.ranks,
        network=each.network,
        exchange=Exchange(),
    )
    explained = _terms(undisturbed(sample), measured, [])
    residual = float(each.seconds.mean()) - explained["skew"] - explained["exchange"]
    fraction = min(1.0, exchange / explained["exchange"]) if explained["exchange"] else 1.0
    return max(0.0, exchange + residual * fraction * work.deviation)


def _distance(each: StartTimes | ExchangeTimes, setup: Setup) -> tuple[bool, bool, int]:
    """Return how far the layout of a measurement is from that of a setup, to be compared."""
    across = setup.layout.nodes > 1
    other_network = across and each.network != setup.network
    ranks = abs(each.layout.ranks - setup.layout.ranks)
    return (each.layout.nodes > 1) != across, other_network, ranks


def _where(each: ExchangeTimes | Setup) -> str:
    return "on one node" if each.layout.nodes == 1 else f"between nodes over {each.network}"


def _later_start(starts: Sequence[StartTimes], setup: Setup, notes: list[str]) -> float:
    """Return the seconds by which ranks start and end later than one process.

    For a layout that was not calibrated, those of the nearest layout are used.
    """
    layout = setup.layout
    if layout.ranks == 1:
        return 0.0
    library_starts = [each for each in starts if each.library == setup.library]
    if not library_starts:
        notes.append("the start of several ranks was not calibrated: it is taken for that of one")
        return 0.0
    nearest = min(library_starts, key=lambda each: _distance(each, setup))
    if nearest.layout != layout:
        notes.append(
            f"the start of {layout} was not calibrated: that of {nearest.layout} stands for it"
        )
    elif layout.nodes > 1 and nearest.network != setup.network:
        notes.append(
            f"the start of {layout} over {setup.network} was not calibrated: that over "
            f"{nearest.network} stands for it"
        )
    return float(nearest.seconds.mean())


def _terms(calibration: Calibration, setup: Setup, notes: list[str]) -> dict[str, float]:
    work, ranks, exchange = calibration.works[setup.work], setup.layout.ranks, setup.exchange
    rows, parts = -(-setup.rows // ranks), exchange.accumulation
    part_rows = -(-rows // parts)
    steps = steps_of_cores(work, setup.cores)
    update = 0.0 if work.update is None else float(work.update.mean())
    without_rows, whole = interpolated(steps, part_rows, notes)
    # The update happens once a step, also if it is computed in parts.
    computing = max(parts * (whole - update), 0.0) * work.deviation
    fixed = min(max(parts * (without_rows - update), 0.0) * work.deviation, computing)
    slower = contention(
        work.contention, setup.library, setup.layout, setup.cores, calibration.cores_per_node, notes
    )
    shape = min(steps, key=lambda each: abs(each.rows - part_rows)).shape
    slowest = computing * slower * expected_largest(shape, ranks)
    found = exchanged(work.gradients, rows, ranks, exchange.between(setup.layout.nodes))
    network = known_network(calibration, setup.network) if setup.layout.nodes > 1 else None
    transfers = Transfers(calibration, setup.library, setup.layout, network)
    sums = COLLECTIVES[setup.library]
    exposed = exposed_seconds(
        slowest,
        in_buckets(found.messages, exchange.buckets) if sums.in_buckets else found.messages,
        transfers.seconds,
        spare_core=setup.layout.processes * setup.cores < calibration.cores_per_node,
        cycle=CYCLE_SECONDS if sums.in_cycles else 0.0,
        fusion_bytes=0.0 if sums.in_buckets else FUSION_BYTES,
    )
    notes += transfers.extrapolated
    product = 0.0
    if found.operations:
        product = found.operations / float(calibration.operations_per_second.mean()) / setup.cores
    return {
        "fixed": fixed,
        "compute": computing - fixed,
        "contention": computing * slower - computing,
        "skew": slowest - computing * slower,
        "exchange": exposed + found.moved_bytes / calibration.bytes_per_second.mean(),
        "update": update * found.updated * work.deviation * slower + product,
    }
