"""Predict steps, epochs and runs of a setup, each term with its interval.

The terms of a step:

- `fixed`: the part of the compute time of one process that does not depend on its rows. It is the
  value at 0 rows of the line through the two smallest calibrated numbers of rows.
- `compute`: the rest of the compute time, interpolated between the calibrated numbers of rows.
- `contention`: the time that ranks lose by computing at the same time, as calibrated for the
  library and the processes of a node. With more ranks than cores, it contains the loss by sharing
  cores.
- `skew`: the mean time of the slowest of n ranks minus the mean time of a rank. The slowest rank is
  the largest of n independent draws from the calibrated steps.
- `exchange`: the time that the exchange adds (`exchange.compute_exposure`), the conversion to 16
  bits, and copies through shared memory, plus the residual of a measured exchange.
- `update`: the calibrated time after the last gradient, in proportion to the weights that a rank
  updates. If ranks exchange factors of gradients, it contains the products of the factors of other
  ranks.
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
    Contention,
    ExchangeTimes,
    Overheads,
    StartTimes,
    StepTimes,
    WorkTimes,
)
from escala.analysis.cost_model.exchange import (
    CYCLE_SECONDS,
    FUSION_BYTES,
    Exchange,
    compute_exposure,
    in_buckets,
    plan_exchange,
)
from escala.analysis.cost_model.resample import resample_calibration, without_deviations
from escala.analysis.cost_model.transfers import Transfers
from escala.analysis.statistics import Interval
from escala.core.engines import COLLECTIVES
from escala.core.errors import InputError
from escala.runtime.layout import Layout

#: Number of resamples of the calibration.
DRAWS = 400
#: Phrase of a prediction without an interval.
NOT_VALIDATED = (
    f"no prediction of more than {VALIDATED_RANKS} ranks was compared with valid measurements: an "
    "estimate without an interval"
)
#: Number of sets of resamples in the cache.
_CACHED_SETS = 8
#: Terms of a step.
TERMS = ("fixed", "compute", "contention", "skew", "exchange", "update")


@dataclass(frozen=True)
class Setup:
    """What a step is predicted for: ranks with their work, rows and network.

    Attributes
    ----------
    work : name of the work in the calibration.
    rows : rows of a step of all ranks together.
    library : library of the collectives; without effect on one rank.
    cores : cores of a process.
    network : network between nodes, calibrated or preset; without effect on one node.
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
    """Draws of the predicted seconds of a step, and of a run outside its steps.

    Attributes
    ----------
    terms : seconds of each of `TERMS`, of shape (draws,).
    overheads : seconds of each field of `Overheads`, of shape (draws,); None if not calibrated.
    extrapolated : phrases on parts of the steps that were not calibrated.
    extrapolated_start : phrases on parts of the start that were not calibrated.
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
        train_seconds : seconds of all training steps, of shape (draws,).
        evaluated_rows : rows of all evaluations of the run together; the ranks divide them.
        """
        per_row = self.overheads["evaluation_per_row"]
        evaluation = evaluated_rows / self.setup.layout.ranks * per_row
        return self.overheads["start"] + train_seconds + evaluation + self.overheads["end"]


def interval(draws: np.ndarray, ranks: int = 1) -> Interval:
    """Return the median of draws and their interval of level `LEVEL`.

    Parameters
    ----------
    ranks : number of predicted ranks. With more than `VALIDATED_RANKS` there is no interval.
    """
    low, median, high = np.quantile(draws, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
    if ranks > VALIDATED_RANKS:
        return Interval(float(median), None, None)
    return Interval(float(median), float(low), float(high))


def predict(
    calibration: Calibration, setup: Setup, draws: int = DRAWS, seed: int = 0
) -> Prediction:
    """Predict the step of a setup.

    The draws include the uncertainty of the calibration and, for several ranks, an error of the
    model. With equal seeds, the draws of two setups of one work use the same resamples of its
    steps. So the draws of the ratio of two predictions are the ratios of their draws, one by one.

    Raises
    ------
    InputError : the calibration lacks the work, the cores, the network or the library of the setup.
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
    start_notes: list[str] = []
    if setup.layout.ranks > VALIDATED_RANKS:
        notes.append(NOT_VALIDATED)
    nearest = _nearest_exchange(work, setup, notes)
    predicted = []
    for sample, _ in samples:
        terms = _terms(sample, setup, notes)
        if nearest is not None:
            terms["exchange"] = _with_residual(terms["exchange"], sample, setup, nearest)
        predicted.append(terms)
    overheads = None
    if work.overheads:
        work_overheads = [sample.works[setup.work].overheads for sample, _ in samples]
        overheads = {
            field.name: np.array(
                [getattr(seconds, field.name).mean() for seconds in work_overheads]
            )
            for field in fields(Overheads)
        }
        overheads["start"] += [
            _later_start(sample.starts, setup, start_notes) for sample, _ in samples
        ]
    deviation = calibration.model_deviation if setup.layout.ranks > 1 else 0.0
    errors = np.exp([deviation * error for _, error in samples])
    return Prediction(
        setup,
        {name: errors * np.array([terms[name] for terms in predicted]) for name in TERMS},
        overheads,
        tuple(dict.fromkeys(notes)),
        tuple(dict.fromkeys(start_notes)),
    )


@lru_cache(_CACHED_SETS)
def _samples(
    calibration: Calibration, work: str, library: str, draws: int, seed: int
) -> tuple[tuple[Calibration, float], ...]:
    """Return resamples of a calibration for a work and a library, each with a normal number.

    The standard normal number is the error of the model. Setups of one work share their resamples,
    if they are predicted from the same calibration object.
    """
    needed = replace(
        calibration,
        works={work: calibration.works[work]},
        collectives=tuple(times for times in calibration.collectives if times.library == library),
    )
    randoms = np.random.default_rng(seed).spawn(draws)
    return tuple(
        (resample_calibration(needed, random), random.standard_normal()) for random in randoms
    )


def _nearest_exchange(work: WorkTimes, setup: Setup, notes: list[str]) -> int | None:
    """Return the place in `work.exchanges` of the measured exchange nearest to a setup.

    None if no exchange was measured with its library and cores, or if the setup has one rank.
    """
    measured = [
        number
        for number, exchange in enumerate(work.exchanges)
        if (exchange.library, exchange.cores) == (setup.library, setup.cores)
    ]
    if setup.layout.ranks == 1 or not measured:
        return None
    number = min(measured, key=lambda number: _distance(work.exchanges[number], setup))
    nearest = work.exchanges[number]
    if any(_distance(nearest, setup)[:2]):
        notes.append(
            f"what a step loses by its exchange was not measured {_where(setup)}: the loss "
            f"{_where(nearest)} stands for it"
        )
    return number


def _with_residual(exchange: float, sample: Calibration, setup: Setup, number: int) -> float:
    """Return the predicted seconds of an exchange plus the residual of a measured one.

    The residual is the loss of the measured step beyond its predicted exchange and skew. The cause
    is that computing takes longer after a wait; this hardly depends on the length of the wait
    (`docs/decisions/predictions.md`). So a longer exchange has the same residual. The residual of a
    shorter exchange, for example through shared memory, is smaller in proportion. Both exchanges
    are predicted from one resample, so its error cancels in their common part.

    Parameters
    ----------
    sample : a resampled calibration.
    number : the place of the measured exchange in `exchanges` of the work.
    """
    work = sample.works[setup.work]
    nearest = work.exchanges[number]
    measured = replace(
        setup,
        layout=nearest.layout,
        rows=nearest.rows * nearest.layout.ranks,
        network=nearest.network,
        exchange=Exchange(),
    )
    explained = _terms(without_deviations(sample), measured, [])
    residual = float(nearest.seconds.mean()) - explained["skew"] - explained["exchange"]
    fraction = min(1.0, exchange / explained["exchange"]) if explained["exchange"] else 1.0
    return max(0.0, exchange + residual * fraction * work.deviation)


def _distance(measured: StartTimes | ExchangeTimes, setup: Setup) -> tuple[bool, bool, int]:
    """Return how far a measurement is from a setup, as a key to sort by.

    The parts of the key: whether only one of the two is on several nodes, whether their networks
    differ, and the difference of their numbers of ranks.
    """
    on_several = setup.layout.nodes > 1
    other_network = on_several and measured.network != setup.network
    ranks = abs(measured.layout.ranks - setup.layout.ranks)
    return (measured.layout.nodes > 1) != on_several, other_network, ranks


def _where(place: ExchangeTimes | Setup) -> str:
    return "on one node" if place.layout.nodes == 1 else f"between nodes over {place.network}"


def _later_start(starts: Sequence[StartTimes], setup: Setup, notes: list[str]) -> float:
    """Return by how many seconds ranks take longer to start and to end than one process.

    For a layout that was not calibrated, return the value of the nearest layout.
    """
    layout = setup.layout
    if layout.ranks == 1:
        return 0.0
    library_starts = [start for start in starts if start.library == setup.library]
    if not library_starts:
        notes.append(
            "the start of several ranks was not calibrated: the start of one rank stands for it"
        )
        return 0.0
    nearest = min(library_starts, key=lambda start: _distance(start, setup))
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
    """Return the seconds of each of `TERMS`; add phrases on what was not calibrated to `notes`."""
    work, ranks, exchange = calibration.works[setup.work], setup.layout.ranks, setup.exchange
    rows, parts = -(-setup.rows // ranks), exchange.accumulation
    part_rows = -(-rows // parts)
    steps = steps_of_cores(work, setup.cores)
    update = 0.0 if work.update is None else float(work.update.mean())
    without_rows, whole = interpolate(steps, part_rows, notes)
    # The gradients of a step may be computed in several parts, but a step has one update.
    computing = max(parts * (whole - update), 0.0) * work.deviation
    fixed = min(max(parts * (without_rows - update), 0.0) * work.deviation, computing)
    slowdown = contention_factor(
        work.contention, setup.library, setup.layout, setup.cores, calibration.cores_per_node, notes
    )
    nearest = min(steps, key=lambda times: abs(times.rows - part_rows))
    slowest = computing * slowdown * mean_of_largest(nearest.relative_seconds, ranks)
    sent = plan_exchange(work.gradients, rows, ranks, exchange.across(setup.layout.nodes))
    network = calibration.network(setup.network) if setup.layout.nodes > 1 else None
    transfers = Transfers(calibration, setup.library, setup.layout, network)
    library = COLLECTIVES[setup.library]
    exposed = compute_exposure(
        slowest,
        in_buckets(sent.messages, exchange.buckets) if library.in_buckets else sent.messages,
        transfers.seconds,
        spare_core=setup.layout.processes * setup.cores < calibration.cores_per_node,
        cycle=CYCLE_SECONDS if library.in_cycles else 0.0,
        fusion_bytes=0.0 if library.in_buckets else FUSION_BYTES,
    )
    notes += transfers.extrapolated
    products = 0.0
    if sent.operations:
        products = sent.operations / float(calibration.operations_per_second.mean()) / setup.cores
    return {
        "fixed": fixed,
        "compute": computing - fixed,
        "contention": computing * slowdown - computing,
        "skew": slowest - computing * slowdown,
        "exchange": exposed + sent.moved_bytes / calibration.bytes_per_second.mean(),
        "update": update * sent.updated * work.deviation * slowdown + products,
    }


def steps_of_cores(work: WorkTimes, cores: int) -> list[StepTimes]:
    """Return the times of steps of processes with a number of cores, by increasing rows.

    Raises
    ------
    InputError : no steps were calibrated with this number of cores.
    """
    steps = [times for times in work.steps if times.cores == cores]
    if not steps:
        calibrated = sorted({times.cores for times in work.steps})
        raise InputError(
            "cores",
            cores,
            f"the steps of this work were calibrated with {', '.join(map(str, calibrated))}",
            "choose one of these, or calibrate this number",
        )
    return sorted(steps, key=lambda times: times.rows)


def interpolate(steps: Sequence[StepTimes], rows: int, notes: list[str]) -> tuple[float, float]:
    """Return the seconds of a step with 0 rows, and of one with `rows`.

    Both are interpolated between calibrated numbers of rows. Outside the calibrated numbers, the
    line through the two nearest numbers continues.
    """
    calibrated = [times.rows for times in steps]
    seconds = [float(times.means.mean()) for times in steps]
    if not calibrated[0] <= rows <= calibrated[-1]:
        notes.append(f"{rows} rows of a rank are outside the calibrated rows")
    if len(calibrated) == 1:
        return 0.0, seconds[0] * rows / calibrated[0]
    return _on_line(calibrated[:2], seconds[:2], 0), _on_line(calibrated, seconds, rows)


def _on_line(calibrated: Sequence[float], seconds: Sequence[float], rows: float) -> float:
    """Return the seconds on the line through the two nearest numbers of rows, not below 0."""
    left = int(np.clip(np.searchsorted(calibrated, rows) - 1, 0, len(calibrated) - 2))
    right = left + 1
    slope = (seconds[right] - seconds[left]) / (calibrated[right] - calibrated[left])
    return max(float(seconds[left] + slope * (rows - calibrated[left])), 0.0)


def contention_factor(
    calibrated: Sequence[Contention],
    library: str,
    layout: Layout,
    cores: int,
    cores_per_node: int,
    notes: list[str],
) -> float:
    """Return the factor by which a step takes longer while the other ranks compute their steps.

    Without ratios of the library, ratios of other libraries are used. The ratio of one process on a
    node is from runs on several nodes, or 1 without such runs.
    """
    if layout.ranks == 1:
        return 1.0
    with_cores = [contention for contention in calibrated if contention.cores == cores]
    of_library = [contention for contention in with_cores if contention.library == library]
    # Ratios by the number of processes on a node.
    ratios: dict[int, list[float]] = {}
    for contention in of_library or with_cores:
        ratios.setdefault(contention.processes, []).append(float(contention.ratios.mean()))
    if layout.nodes == 1 or 1 not in ratios:
        ratios[1] = [1.0]
    at_a_time = min(layout.processes, max(cores_per_node // cores, 1))
    processes = sorted(ratios)
    if at_a_time > processes[-1]:
        notes.append(f"{at_a_time} processes at a time on a node were not calibrated")
    elif at_a_time > 1 and not of_library:
        notes.append(f"contention was not calibrated with {library}")
    if layout.processes > at_a_time:
        notes.append("more ranks than cores")
    means = [max(float(np.mean(ratios[number])), 1.0) for number in processes]
    return float(np.interp(at_a_time, processes, means)) * layout.processes / at_a_time


def mean_of_largest(steps: np.ndarray, ranks: int) -> float:
    """Return the mean of the slowest of `ranks` steps, divided by the mean of all steps.

    The k-th of n values is the largest of r draws with probability (k/n)^r - ((k-1)/n)^r.

    Parameters
    ----------
    steps : seconds, in increasing order.
    """
    ends = (np.arange(len(steps) + 1) / len(steps)) ** ranks
    return float(steps @ np.diff(ends) / steps.mean())
