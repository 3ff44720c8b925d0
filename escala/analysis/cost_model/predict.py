"""Predict steps, epochs and runs of a plan, each term with its interval.

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
  copies through shared memory. It is corrected by how much longer steps with an exchange were.
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
    Calibration,
    Contention,
    ExchangeTimes,
    Overheads,
    StartTimes,
    StepTimes,
    Work,
    resampled,
    undisturbed,
)
from escala.analysis.cost_model.collectives import TENSORFLOW
from escala.analysis.cost_model.messages import (
    Exchange,
    copied_bytes,
    messages,
    product_operations,
    recomputed,
    updated_share,
)
from escala.analysis.cost_model.overlap import exposed_seconds
from escala.analysis.cost_model.transfers import Transfers, known_network
from escala.analysis.statistics import Interval
from escala.core.errors import InputError
from escala.runtime.layout import Layout

#: Largest share of a rank's cores that the model gives to threads of a library: without any rest,
#: a step would never end.
_MOST_OF_LIBRARY = 0.9
DRAWS = 400
#: Sets of resamples that are kept.
_KEPT = 8
TERMS = ("fixed", "compute", "contention", "skew", "exchange", "update")


@dataclass(frozen=True)
class Plan:
    """A layout with its work, rows and network, of which a step is predicted.

    Attributes
    ----------
    work : its name in the calibration.
    library : of the collectives; without effect on one rank.
    cores : of a process.
    rows : of a step of all ranks together.
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

    plan: Plan
    terms: Mapping[str, np.ndarray]
    overheads: Mapping[str, np.ndarray] | None
    extrapolated: tuple[str, ...]
    extrapolated_start: tuple[str, ...] = ()

    @property
    def steps(self) -> np.ndarray:
        """Return the seconds of a step, of shape (draws,)."""
        return sum(self.terms.values())

    def run(
        self, train_seconds: np.ndarray, evaluated_rows: int, *, divided: bool = True
    ) -> np.ndarray:
        """Return the seconds of a whole run, of shape (draws,).

        Parameters
        ----------
        train_seconds : of all training steps, of shape (draws,).
        evaluated_rows : of all evaluations of the run together.
        divided : whether the ranks divide the rows that are evaluated.

        Raises
        ------
        InputError : the overheads of the work were not calibrated.
        """
        if self.overheads is None:
            raise InputError(
                "overheads",
                None,
                "are needed to predict a run",
                "calibrate them, or ask for epochs",
            )
        rows = evaluated_rows / (self.plan.layout.ranks if divided else 1)
        return (
            self.overheads["start"]
            + train_seconds
            + rows * self.overheads["evaluation_per_row"]
            + self.overheads["end"]
        )


def interval(draws: np.ndarray) -> Interval:
    """Return the median of draws and their interval of level `LEVEL`."""
    low, median, high = np.quantile(draws, [(1 - LEVEL) / 2, 0.5, (1 + LEVEL) / 2])
    return Interval(float(median), float(low), float(high))


def predict(calibration: Calibration, plan: Plan, draws: int = DRAWS, seed: int = 0) -> Prediction:
    """Predict the step of a plan.

    The draws hold the uncertainty of the calibration and, for several ranks, an error of the model.
    With one seed, the draws of two plans of one work use the same resamples of its steps, so a
    ratio of them is paired.

    Raises
    ------
    InputError : the calibration has no such work, cores, network or library.
    """
    work = calibration.works.get(plan.work)
    if work is None:
        raise InputError(
            "work", plan.work, "was not calibrated", f"choose one of {', '.join(calibration.works)}"
        )
    samples = _samples(calibration, plan.work, plan.library, draws, seed)
    notes: list[str] = []
    about_start: list[str] = []
    nearest = _nearest_exchange(calibration, plan, notes)
    rows = []
    for sample, _ in samples:
        terms = _terms(sample, plan, notes)
        if nearest:
            terms["exchange"] = _as_measured(terms, sample, *nearest)
        rows.append(terms)
    deviation = calibration.model_deviation if plan.layout.ranks > 1 else 0.0
    errors = np.exp([deviation * error for _, error in samples])
    return Prediction(
        plan,
        {name: errors * np.array([row[name] for row in rows]) for name in TERMS},
        work.overheads and _overheads([sample for sample, _ in samples], plan, about_start),
        tuple(dict.fromkeys(notes)),
        tuple(dict.fromkeys(about_start)),
    )


@lru_cache(_KEPT)
def _samples(
    calibration: Calibration, work: str, library: str, draws: int, seed: int
) -> tuple[tuple[Calibration, float], ...]:
    """Return resamples of what a work and a library need, each with an error of the model.

    The error is that of a standard normal distribution. Plans of one work share their resamples, if
    they are predicted from one calibration object.
    """
    used = replace(
        calibration,
        works={work: calibration.works[work]},
        collectives=tuple(each for each in calibration.collectives if each.library == library),
    )
    randoms = np.random.default_rng(seed).spawn(draws)
    return tuple((resampled(used, random), random.standard_normal()) for random in randoms)


def _overheads(
    samples: Sequence[Calibration], plan: Plan, notes: list[str]
) -> dict[str, np.ndarray]:
    """Return the overheads of one process; several ranks start later by what was calibrated."""
    of_work = [sample.works[plan.work].overheads for sample in samples]
    found = {
        each.name: np.array([getattr(one, each.name).mean() for one in of_work])
        for each in fields(Overheads)
    }
    later = np.array([_later_start(sample.starts, plan, notes) for sample in samples])
    return found | {"start": found["start"] + later}


def _nearest_exchange(
    calibration: Calibration, plan: Plan, notes: list[str]
) -> tuple[int, Plan] | None:
    """Return the number of the measured exchange nearest to a plan, and the plan of its step.

    None if none was measured with the library and cores of the plan, or if the plan has one rank.
    """
    work = calibration.works[plan.work]
    fitting = [
        number
        for number, each in enumerate(work.exchanges)
        if each.library == plan.library and each.cores == plan.cores
    ]
    if plan.layout.ranks == 1 or not fitting:
        return None
    number = min(fitting, key=lambda number: _distance(work.exchanges[number], plan))
    each = work.exchanges[number]
    *elsewhere, _ = _distance(each, plan)
    if any(elsewhere):
        notes.append(
            f"what a step loses by its exchange was not measured {_where(plan)}: that "
            f"{_where(each)} stands for it"
        )
    given = {name: getattr(each, name) for name in ("fusion_bytes", "cycle_seconds")}
    return number, replace(
        plan,
        layout=each.layout,
        rows=each.rows * each.layout.ranks,
        network=each.network,
        exchange=Exchange(**{name: value for name, value in given.items() if value is not None}),
    )


def _as_measured(
    terms: Mapping[str, float], sample: Calibration, number: int, measured: Plan
) -> float:
    """Return the seconds of the exchange among terms, corrected by one that was measured.

    What the measured step lost beyond the exchange and skew that explain it is added. A longer
    exchange loses as much, because computing takes longer after a wait, which hardly depends on how
    long the wait was (`docs/decisions/037-calibration.md`). A shorter one, for example through
    shared memory, loses less in proportion. Both steps are predicted from one resample, so its
    error cancels where they are alike.

    Parameters
    ----------
    terms : of the predicted step.
    sample : a resampled calibration.
    number : of the measured exchange.
    measured : the plan of its step.
    """
    work, exchange = sample.works[measured.work], terms["exchange"]
    explained = _terms(undisturbed(sample), measured, [])
    seconds = float(work.exchanges[number].seconds.mean())
    beyond = seconds - explained["skew"] - explained["exchange"]
    share = min(1.0, exchange / explained["exchange"]) if explained["exchange"] else 1.0
    return max(0.0, exchange + beyond * share * work.deviation)


def _distance(each: StartTimes | ExchangeTimes, plan: Plan) -> tuple[bool, bool, int]:
    """Return how far the layout of a measurement is from that of a plan, to be compared."""
    other_kind = (each.layout.nodes > 1) != (plan.layout.nodes > 1)
    other_network = plan.layout.nodes > 1 and each.network != plan.network
    return other_kind, other_network, abs(each.layout.ranks - plan.layout.ranks)


def _where(each: ExchangeTimes | Plan) -> str:
    return "on one node" if each.layout.nodes == 1 else f"between nodes over {each.network}"


def _later_start(starts: Sequence[StartTimes], plan: Plan, notes: list[str]) -> float:
    """Return the seconds by which ranks start and end later than one process.

    Those of the nearest layout stand for those of a layout that was not calibrated.
    """
    layout = plan.layout
    if layout.ranks == 1:
        return 0.0
    of_library = [each for each in starts if each.library == plan.library]
    if not of_library:
        notes.append("the start of several ranks was not calibrated: it is taken for that of one")
        return 0.0

    nearest = min(of_library, key=lambda each: _distance(each, plan))
    if nearest.layout != layout:
        notes.append(
            f"the start of {layout} was not calibrated: that of {nearest.layout} stands for it"
        )
    elif layout.nodes > 1 and nearest.network != plan.network:
        notes.append(
            f"the start of {layout} over {plan.network} was not calibrated: that over "
            f"{nearest.network} stands for it"
        )
    return float(nearest.seconds.mean())


def _terms(calibration: Calibration, plan: Plan, notes: list[str]) -> dict[str, float]:
    work, ranks = calibration.works[plan.work], plan.layout.ranks
    parts = plan.exchange.accumulation
    rows = -(-plan.rows // ranks)
    of_part = -(-rows // parts)
    alone = sorted(_of_cores(work, plan), key=lambda each: each.rows)
    update = 0.0 if work.update is None else float(work.update.mean())
    fixed, whole = _interpolated(alone, of_part, notes)
    # The update happens once a step, also if it is computed in parts.
    computing = max(parts * (whole - update), 0.0) * work.deviation
    slower = _contention(work.contention, plan, calibration.cores_per_node, notes)
    slowest = _expected_largest(_nearest(alone, of_part).shape, ranks)
    with_others = computing * slower
    at_the_end = with_others * slowest
    exchange = plan.exchange.between(plan.layout.nodes)
    listed = messages(work.gradients, rows, ranks, exchange)
    network = known_network(calibration, plan.network) if plan.layout.nodes > 1 else None
    transfers = Transfers(calibration, plan.library, plan.layout, network)
    exposed = exposed_seconds(
        at_the_end,
        listed,
        transfers.seconds,
        exchange.fusion_bytes,
        spare_core=plan.layout.processes * plan.cores < calibration.cores_per_node,
        cycle_seconds=0.0 if plan.library == TENSORFLOW else exchange.cycle_seconds,
    )
    notes += transfers.extrapolated
    moved = sum(message.cast_bytes for message in listed)
    moved += copied_bytes(work.gradients, rows, ranks, exchange) if ranks > 1 else 0.0
    again = _recomputing(work, rows, ranks, exchange, notes) * work.deviation
    updated = update * updated_share(work.gradients, rows, ranks, exchange)
    fixed = min(max(parts * (fixed - update), 0.0) * work.deviation, computing)
    return {
        "fixed": fixed,
        # Ranks compute again at the same time, after the exchanges that computing may hide.
        "compute": computing - fixed + again,
        "contention": with_others - computing + again * (slower - 1),
        "skew": at_the_end - with_others,
        "exchange": exposed + moved / calibration.bytes_per_second.mean(),
        "update": updated * work.deviation * slower
        + _products(calibration, plan, work, rows, exchange),
    }


def _of_cores(work: Work, plan: Plan) -> list[StepTimes]:
    steps = [each for each in work.steps if each.cores == plan.cores]
    if not steps:
        known = sorted({each.cores for each in work.steps})
        raise InputError(
            "cores",
            plan.cores,
            f"the steps of {plan.work} were calibrated with {', '.join(map(str, known))}",
            "choose one of these, or calibrate this number",
        )
    return steps


def _nearest(steps: list[StepTimes], rows: int) -> StepTimes:
    return min(steps, key=lambda each: abs(each.rows - rows))


def _interpolated(alone: list[StepTimes], rows: int, notes: list[str]) -> tuple[float, float]:
    """Return the seconds of a step without rows and with some, between calibrated numbers of rows.

    Outside them, the line through the two nearest continues.
    """
    known = np.array([each.rows for each in alone], float)
    seconds = np.array([each.means.mean() for each in alone])
    if not known[0] <= rows <= known[-1]:
        notes.append(f"{rows} rows of a rank are outside those calibrated")
    if len(known) == 1:
        return 0.0, float(seconds[0] * rows / known[0])
    return max(_on_line(known, seconds, 0, 0.0), 0.0), _between(known, seconds, rows)


def _between(known: np.ndarray, seconds: np.ndarray, rows: float) -> float:
    segment = int(np.clip(np.searchsorted(known, rows) - 1, 0, len(known) - 2))
    return max(_on_line(known, seconds, segment, rows), 0.0)


def _on_line(known: np.ndarray, seconds: np.ndarray, segment: int, rows: float) -> float:
    slope = (seconds[segment + 1] - seconds[segment]) / (known[segment + 1] - known[segment])
    return float(seconds[segment] + slope * (rows - known[segment]))


def _contention(
    calibrated: Sequence[Contention], plan: Plan, cores_per_node: int, notes: list[str]
) -> float:
    """Return the factor by which a step takes longer while the other ranks compute theirs.

    Threads of the library take a share of the cores of each rank, also of ranks that have a node to
    themselves. Without ratios of the plan's library, those of the others stand for them. The ratio
    of one process on a node is that of runs on several nodes, and 1 without such runs.
    """
    if plan.layout.ranks == 1:
        return 1.0
    of_cores = [each for each in calibrated if each.cores == plan.cores]
    of_library = [each for each in of_cores if each.library == plan.library]
    ratios: dict[int, list[float]] = {}
    for each in of_library or of_cores:
        ratios.setdefault(each.processes, []).append(float(each.ratios.mean()))
    if plan.layout.nodes == 1 or 1 not in ratios:
        ratios[1] = [1.0]
    processes = plan.layout.processes
    fitting = min(processes, max(cores_per_node // plan.cores, 1))
    known = sorted(ratios)
    if fitting > known[-1]:
        notes.append(f"{fitting} processes at a time on a node were not calibrated")
    elif fitting > 1 and not of_library:
        notes.append(f"contention was not calibrated with {plan.library}")
    means = [max(float(np.mean(ratios[number])), 1.0) for number in known]
    if processes > fitting:
        notes.append("more ranks than cores")
    shares = [each.library_shares.mean() for each in of_library if len(each.library_shares)]
    taken = float(np.mean(shares)) / plan.cores if shares else 0.0
    computing = 1 - min(taken, _MOST_OF_LIBRARY)
    return float(np.interp(fitting, known, means)) / computing * processes / fitting


def _expected_largest(shape: np.ndarray, ranks: int) -> float:
    """Return the expected largest of independent draws from some values, in increasing order.

    The k-th of n values is the largest of r draws with probability (k/n)^r - ((k-1)/n)^r.
    """
    steps = np.arange(len(shape) + 1) / len(shape)
    return float(shape @ np.diff(steps**ranks) / shape.mean())


def _recomputing(work: Work, rows: int, ranks: int, exchange: Exchange, notes: list[str]) -> float:
    """Return the seconds in which a rank computes the inputs of layers again, for all rows.

    Where this was not measured, the evaluation of these rows stands for it, which computes all
    layers.
    """
    found, of_all = 0.0, rows * ranks
    for gradient in recomputed(work.gradients, rows, ranks, exchange) if ranks > 1 else ():
        if gradient.recompute:
            known, seconds = map(np.array, zip(*sorted(gradient.recompute), strict=True))
            if not known[0] <= of_all <= known[-1]:
                notes.append(f"{of_all} rows are outside those that were computed again")
            found += _between(known, seconds, of_all)
            continue
        if work.overheads is None:
            raise InputError(
                "overheads",
                None,
                "are needed to predict dense_exchange recompute",
                "calibrate them",
            )
        notes.append("an evaluation of the rows stands for computing a layer's input again")
        found += of_all * float(work.overheads.evaluation_per_row.mean())
    return found


def _products(
    calibration: Calibration, plan: Plan, work: Work, rows: int, exchange: Exchange
) -> float:
    operations = product_operations(work.gradients, rows, plan.layout.ranks, exchange)
    if not operations:
        return 0.0
    if calibration.operations_per_second is None:
        raise InputError(
            "core.operations_per_second",
            None,
            "is needed to predict the product of factors",
            "calibrate it, or predict without factors",
        )
    return operations / float(calibration.operations_per_second.mean()) / plan.cores
