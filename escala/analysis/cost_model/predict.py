"""Predict steps, epochs and runs of a setup, each term with its interval.

The terms of a step:

- `fixed`: of the compute time of one process, what does not depend on its rows: the line through
  the two smallest calibrated numbers of rows, at 0 rows.
- `compute`: the rest of it, interpolated between the calibrated numbers of rows.
- `contention`: what ranks lose by computing at the same time, as calibrated for the library and the
  processes of a node, and by sharing cores if there are more ranks than cores.
- `skew`: the mean of the slowest of all ranks minus the mean of one: the expected largest of n
  independent draws from the calibrated steps.
- `exchange`: what the exchange adds (`exchange.compute_exposure`), the conversion to 16 bits, and
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
    Contention,
    ExchangeTimes,
    Overheads,
    StartTimes,
    StepTimes,
    Work,
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
            field.name: np.array([getattr(one, field.name).mean() for one in work_overheads])
            for field in fields(Overheads)
        }
        overheads["start"] += [_later_start(one.starts, setup, about_start) for one, _ in samples]
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
        collectives=tuple(times for times in calibration.collectives if times.library == library),
    )
    randoms = np.random.default_rng(seed).spawn(draws)
    return tuple(
        (resample_calibration(used, random), random.standard_normal()) for random in randoms
    )


def _nearest_exchange(work: Work, setup: Setup, notes: list[str]) -> int | None:
    """Return the number of the measured exchange that is nearest to a setup.

    None if none was measured with its library and cores, or if it has one rank.
    """
    measured = [
        number
        for number, entry in enumerate(work.exchanges)
        if (entry.library, entry.cores) == (setup.library, setup.cores)
    ]
    if setup.layout.ranks == 1 or not measured:
        return None
    number = min(measured, key=lambda number: _distance(work.exchanges[number], setup))
    nearest = work.exchanges[number]
    if any(_distance(nearest, setup)[:2]):
        notes.append(
            f"what a step loses by its exchange was not measured {_where(setup)}: that "
            f"{_where(nearest)} stands for it"
        )
    return number


def _as_measured(exchange: float, sample: Calibration, setup: Setup, number: int) -> float:
    """Return the predicted seconds of an exchange with the residual of a measured one.

    The residual is what the measured step lost beyond its predicted exchange and skew. A longer
    exchange loses as much, because computing takes longer after a wait, which hardly depends on how
    long the wait was (`docs/decisions/predictions.md`). A shorter one, for example through
    shared memory, loses less in proportion. Both steps are predicted from one resample, so its
    error cancels where they are alike.

    Parameters
    ----------
    sample : a resampled calibration.
    number : of the measured exchange.
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


def _distance(entry: StartTimes | ExchangeTimes, setup: Setup) -> tuple[bool, bool, int]:
    """Return how far the layout of a measurement is from that of a setup, to be compared."""
    across = setup.layout.nodes > 1
    other_network = across and entry.network != setup.network
    ranks = abs(entry.layout.ranks - setup.layout.ranks)
    return (entry.layout.nodes > 1) != across, other_network, ranks


def _where(place: ExchangeTimes | Setup) -> str:
    return "on one node" if place.layout.nodes == 1 else f"between nodes over {place.network}"


def _later_start(starts: Sequence[StartTimes], setup: Setup, notes: list[str]) -> float:
    """Return the seconds by which ranks start and end later than one process.

    For a layout that was not calibrated, those of the nearest layout are used.
    """
    layout = setup.layout
    if layout.ranks == 1:
        return 0.0
    library_starts = [start for start in starts if start.library == setup.library]
    if not library_starts:
        notes.append("the start of several ranks was not calibrated: it is taken for that of one")
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
    work, ranks, exchange = calibration.works[setup.work], setup.layout.ranks, setup.exchange
    rows, parts = -(-setup.rows // ranks), exchange.accumulation
    part_rows = -(-rows // parts)
    steps = steps_of_cores(work, setup.cores)
    update = 0.0 if work.update is None else float(work.update.mean())
    without_rows, whole = interpolate(steps, part_rows, notes)
    # The update happens once a step, also if it is computed in parts.
    computing = max(parts * (whole - update), 0.0) * work.deviation
    fixed = min(max(parts * (without_rows - update), 0.0) * work.deviation, computing)
    slower = contention(
        work.contention, setup.library, setup.layout, setup.cores, calibration.cores_per_node, notes
    )
    shape = min(steps, key=lambda entry: abs(entry.rows - part_rows)).shape
    slowest = computing * slower * mean_of_largest(shape, ranks)
    sent = plan_exchange(work.gradients, rows, ranks, exchange.across(setup.layout.nodes))
    network = calibration.network(setup.network) if setup.layout.nodes > 1 else None
    transfers = Transfers(calibration, setup.library, setup.layout, network)
    sums = COLLECTIVES[setup.library]
    exposed = compute_exposure(
        slowest,
        in_buckets(sent.messages, exchange.buckets) if sums.in_buckets else sent.messages,
        transfers.seconds,
        spare_core=setup.layout.processes * setup.cores < calibration.cores_per_node,
        cycle=CYCLE_SECONDS if sums.in_cycles else 0.0,
        fusion_bytes=0.0 if sums.in_buckets else FUSION_BYTES,
    )
    notes += transfers.extrapolated
    product = 0.0
    if sent.operations:
        product = sent.operations / float(calibration.operations_per_second.mean()) / setup.cores
    return {
        "fixed": fixed,
        "compute": computing - fixed,
        "contention": computing * slower - computing,
        "skew": slowest - computing * slower,
        "exchange": exposed + sent.moved_bytes / calibration.bytes_per_second.mean(),
        "update": update * sent.updated * work.deviation * slower + product,
    }


def steps_of_cores(work: Work, cores: int) -> list[StepTimes]:
    """Return the steps of processes with this number of cores, by their rows."""
    steps = [entry for entry in work.steps if entry.cores == cores]
    if not steps:
        known = sorted({entry.cores for entry in work.steps})
        raise InputError(
            "cores",
            cores,
            f"the steps of this work were calibrated with {', '.join(map(str, known))}",
            "choose one of these, or calibrate this number",
        )
    return sorted(steps, key=lambda entry: entry.rows)


def interpolate(steps: Sequence[StepTimes], rows: int, notes: list[str]) -> tuple[float, float]:
    """Return the seconds of a step without rows and with some, between calibrated numbers of rows.

    Outside them, the line through the two nearest continues.
    """
    known = [entry.rows for entry in steps]
    seconds = [float(entry.means.mean()) for entry in steps]
    if not known[0] <= rows <= known[-1]:
        notes.append(f"{rows} rows of a rank are outside those calibrated")
    if len(known) == 1:
        return 0.0, seconds[0] * rows / known[0]
    return _on_line(known[:2], seconds[:2], 0), _on_line(known, seconds, rows)


def _on_line(known: Sequence[float], seconds: Sequence[float], rows: float) -> float:
    """Return the seconds on the line through the two nearest numbers of rows, not below 0."""
    at = int(np.clip(np.searchsorted(known, rows) - 1, 0, len(known) - 2))
    slope = (seconds[at + 1] - seconds[at]) / (known[at + 1] - known[at])
    return max(float(seconds[at] + slope * (rows - known[at])), 0.0)


def contention(
    calibrated: Sequence[Contention],
    library: str,
    layout: Layout,
    cores: int,
    cores_per_node: int,
    notes: list[str],
) -> float:
    """Return the factor by which a step takes longer while the other ranks compute theirs.

    Without ratios of the library, those of the other libraries are used. The ratio of one process
    on a node is that of runs on several nodes, and 1 without such runs.
    """
    if layout.ranks == 1:
        return 1.0
    with_cores = [entry for entry in calibrated if entry.cores == cores]
    from_library = [entry for entry in with_cores if entry.library == library]
    ratios: dict[int, list[float]] = {}
    for entry in from_library or with_cores:
        ratios.setdefault(entry.processes, []).append(float(entry.ratios.mean()))
    if layout.nodes == 1 or 1 not in ratios:
        ratios[1] = [1.0]
    processes = layout.processes
    fitting = min(processes, max(cores_per_node // cores, 1))
    known = sorted(ratios)
    if fitting > known[-1]:
        notes.append(f"{fitting} processes at a time on a node were not calibrated")
    elif fitting > 1 and not from_library:
        notes.append(f"contention was not calibrated with {library}")
    if processes > fitting:
        notes.append("more ranks than cores")
    means = [max(float(np.mean(ratios[number])), 1.0) for number in known]
    return float(np.interp(fitting, known, means)) * processes / fitting


def mean_of_largest(steps: np.ndarray, ranks: int) -> float:
    """Return the mean of the slowest of so many steps, divided by that of all.

    The k-th of n values is the largest of r draws with probability (k/n)^r - ((k-1)/n)^r.

    Parameters
    ----------
    steps : seconds, in increasing order.
    """
    ends = (np.arange(len(steps) + 1) / len(steps)) ** ranks
    return float(steps @ np.diff(ends) / steps.mean())
