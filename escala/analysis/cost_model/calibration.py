"""Read a calibration, and resample its repeats.

A calibration is measured on one node and on a link between two. Its JSON form is described in
`schemas/calibration.schema.yaml`.

A prediction is computed for many resamples of the calibration. The repeats of one measurement are
drawn with replacement, all sizes of a collective together, because the speed of a machine changes
from repeat to repeat. Deviations are those of logarithms, and they are widened for a small number
of repeats (T. C. Hesterberg, What teachers should know about the bootstrap, The American
Statistician 69 (2015), 371-386: expanded percentile intervals). Steps of all numbers of rows of a
work have the same spread, so their deviations are drawn from all of them. The predicted run is one
more repeat, so it deviates like one. The deviation of a repeat of collectives is the mean over all
operations and sizes of a library. A run makes many calls, so differences between single calls do
not count. The predicted run is also made in other minutes, so its steps are slower or faster by
what is drawn from the drift that the calibration measured. What was measured in rounds of blocks is
the median of what is drawn, because some blocks are disturbed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from jsonschema import Draft202012Validator
from jsonschema.exceptions import best_match
from scipy import stats

from escala.analysis.cost_model.networks import Network
from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.files import read_json, read_yaml
from escala.runtime.layout import Layout

SCHEMA = Path(__file__).resolve().parents[3] / "schemas" / "calibration.schema.yaml"

#: Version of the form, and the least number of repeats in it.
FORMAT, LEAST_REPEATS = 2, 2
#: Probability that intervals of predictions cover.
LEVEL = 0.9
#: A call takes a core for this time at least, so that all such times can be fitted.
LEAST_CORE_SECONDS = 1e-6
#: The network of ranks on one node.
LOCAL = "local"
#: Standard deviation of the logarithm of the model's error with several ranks: that of 24
#: predictions on one node beyond their intervals. docs/decisions/037-calibration.md has them.
MODEL_DEVIATION = 0.05


# Compared by identity, so that it can be a key of `functools.lru_cache`.
@dataclass(frozen=True, eq=False)
class CollectiveTimes:
    """Times of one operation of a library.

    Attributes
    ----------
    sizes : bytes, as in `collectives.algorithm`; shape (sizes,).
    seconds : while ranks do nothing else, of shape (sizes, repeats).
    computing_seconds : while they compute, of the same shape; None if not measured.
    computing_shares : speed at which they compute meanwhile, divided by their usual one, of the
        same shape; None if not measured.
    deviation : factor by which the times of the predicted run differ from those of all runs.
    """

    library: str
    operation: str
    network: str
    layout: Layout
    sizes: np.ndarray
    seconds: np.ndarray
    computing_seconds: np.ndarray | None = None
    computing_shares: np.ndarray | None = None
    deviation: float = 1.0

    @property
    def measured_with(self) -> tuple[str, str, Layout]:
        """Return what operations share whose repeats were measured together."""
        return self.library, self.network, self.layout

    @property
    def core_seconds(self) -> np.ndarray | None:
        """Return how much a call delays computing, of the shape of `seconds`, if it was measured.

        It is at least `LEAST_CORE_SECONDS`.
        """
        if self.computing_seconds is None or self.computing_shares is None:
            return None
        return np.maximum(self.computing_seconds * (1 - self.computing_shares), LEAST_CORE_SECONDS)


@dataclass(frozen=True)
class StepTimes:
    """Times of steps of one process that has the node to itself.

    Attributes
    ----------
    rows : of a step.
    cores : of the process.
    means : mean seconds of a step, of shape (repeats,).
    shape : seconds of single steps, divided by the mean of their repeat, in increasing order.
    """

    rows: int
    cores: int
    means: np.ndarray
    shape: np.ndarray


@dataclass(frozen=True)
class Contention:
    """How many times longer a step takes while the other ranks compute theirs.

    Ranks with a node to themselves have a contention too, if nodes share cores, memory or a cache.

    Attributes
    ----------
    library : by which the processes could exchange.
    rows, cores : as of `StepTimes`.
    processes : that compute at the same time on each node.
    ratios : one for each round of blocks, shape (rounds,).
    library_shares : of a core, that threads of the library take meanwhile, shape (shares,); empty
        if not measured.
    """

    library: str
    rows: int
    cores: int
    processes: int
    ratios: np.ndarray
    library_shares: np.ndarray


@dataclass(frozen=True)
class ExchangeTimes:
    """How much longer a step takes if ranks exchange their gradients in it.

    Attributes
    ----------
    library : by which they exchange.
    network : between nodes; `LOCAL` on one node.
    rows, cores : of a rank, as of `StepTimes`.
    fusion_bytes, cycle_seconds : as of `messages.Exchange`; None stands for its default.
    seconds : one for each round of blocks, shape (rounds,).
    """

    library: str
    network: str
    layout: Layout
    rows: int
    cores: int
    fusion_bytes: float | None
    cycle_seconds: float | None
    seconds: np.ndarray


@dataclass(frozen=True)
class Gradient:
    """The gradient of one variable.

    Attributes
    ----------
    shape : of the variable.
    item_bytes : of a number.
    ready : share of a rank's computing, from 0 to 1, after which the gradient is known.
    factor_rows : rows that a dense layer of this kernel receives for one row of the model; None if
        its gradient is not exchanged as factors.
    sparse_rows : rows of the variable that one row of the model reads; None if it reads all.
    data_bytes : of the model's inputs for one of these rows; None if ranks cannot compute the
        layer's input again from them.
    recompute : numbers of rows, and the seconds in which a process computes the layer's input again
        for them; empty if not measured.
    """

    name: str
    shape: tuple[int, ...]
    item_bytes: int = 4
    ready: float = 1.0
    factor_rows: int | None = None
    sparse_rows: int | None = None
    data_bytes: float | None = None
    recompute: tuple[tuple[int, float], ...] = ()

    @property
    def numbers(self) -> int:
        return int(np.prod(self.shape, dtype=int))


@dataclass(frozen=True)
class Overheads:
    """Seconds of a run outside its training steps, each of shape (repeats,).

    Attributes
    ----------
    start : from the start of the process to the first step, with building and compiling.
    evaluation_per_row : of one row of the validation or the test side.
    end : from the last step to the end, with saving.
    """

    start: np.ndarray
    evaluation_per_row: np.ndarray
    end: np.ndarray


@dataclass(frozen=True)
class Work:
    """A model in training: its gradients and its times in one process.

    Attributes
    ----------
    update : seconds of a step after its last gradient, of shape (repeats,); part of `steps`. None
        if not measured: then it is predicted as computing, which hides more of an exchange.
    deviation : as of `CollectiveTimes`.
    """

    gradients: tuple[Gradient, ...]
    steps: tuple[StepTimes, ...]
    contention: tuple[Contention, ...] = ()
    exchanges: tuple[ExchangeTimes, ...] = ()
    update: np.ndarray | None = None
    overheads: Overheads | None = None
    deviation: float = 1.0


@dataclass(frozen=True)
class StartTimes:
    """How much longer several ranks take to start and to end than one process.

    Attributes
    ----------
    library : by which the ranks exchange.
    network : between nodes; `LOCAL` on one node.
    seconds : one for each run, shape (runs,).
    """

    library: str
    network: str
    layout: Layout
    seconds: np.ndarray


# As `CollectiveTimes`.
@dataclass(frozen=True, eq=False)
class Calibration:
    """Measured times of a machine and its networks.

    Attributes
    ----------
    cores_per_node : cores of a node.
    bytes_per_second : rate at which one core reads memory and writes it elsewhere, of shape
        (repeats,). No network is faster with one process.
    operations_per_second : floating-point operations of a product of matrices on one core, of shape
        (repeats,); None if not measured.
    drift : how many times longer a step takes in other minutes of the calibration than in those of
        `StepTimes`, shape (runs,); empty if not measured.
    model_deviation : standard deviation of the logarithm of the model's error with several ranks.
    programs : as in the file; see `escala.analysis.cost_model.bounds`.
    """

    cores_per_node: int
    bytes_per_second: np.ndarray
    operations_per_second: np.ndarray | None
    networks: Mapping[str, Network]
    collectives: tuple[CollectiveTimes, ...]
    works: Mapping[str, Work]
    drift: np.ndarray = field(default_factory=lambda: np.ones(0))
    starts: tuple[StartTimes, ...] = ()
    model_deviation: float = 0.0
    programs: Mapping[str, Mapping] = field(default_factory=dict)


def read(path: Path) -> Calibration:
    """Return a calibration from its JSON file.

    Raises
    ------
    InputError : there is no such file, it is no JSON, or not of the form of a calibration.
    """
    try:
        content = read_json(path)
    except FileNotFoundError:
        remedy = "name another one, or make it: snakemake calibration"
        raise InputError(path, None, "no such file", remedy) from None
    except ValueError as error:
        raise InputError(path, str(error), "is no JSON", "calibrate again") from error
    return parse(content, path)


def parse(content: Any, where: object = "calibration") -> Calibration:
    """Return a calibration from the content of its file.

    Raises
    ------
    InputError : it has an earlier format, a key is unknown or missing, or a value is not allowed.
    """
    if isinstance(content, Mapping) and content.get("format") not in (None, FORMAT):
        raise InputError(
            where,
            content["format"],
            f"format: is not {FORMAT}, in which contention is a ratio",
            f"calibrate again: {call('run calibration')}, with the --experiment FILE",
        )
    error = best_match(_validator().iter_errors(content))
    if error is not None:
        key = ".".join(map(str, error.absolute_path)) or "(top level)"
        raise InputError(
            where, error.instance, f"{key}: {error.message}", "see docs/reference/calibration.md"
        )
    for each in content["collectives"]:
        _check_network(each, content["networks"], where)
    for name, each in content["works"].items():
        _check_steps(name, each["steps"], where)
    core = content["core"] or {"bytes_per_second": (), "operations_per_second": None}
    return Calibration(
        content["cores_per_node"],
        np.array(core["bytes_per_second"], float),
        _optional(core["operations_per_second"]),
        {
            name: Network(name, each["bits_per_second"], each["latency_seconds"], "calibrated")
            for name, each in content["networks"].items()
        },
        tuple(_collective(each, where) for each in content["collectives"]),
        {name: _work(each) for name, each in content["works"].items()},
        np.array(content.get("drift", ()), float),
        tuple(
            StartTimes(
                each["library"],
                each["network"],
                Layout.parse(each["layout"]),
                np.array(each["seconds"], float),
            )
            for each in content.get("starts", ())
        ),
        content.get("model_deviation", 0.0),
        content.get("programs", {}),
    )


@cache
def _validator() -> Draft202012Validator:
    return Draft202012Validator(read_yaml(SCHEMA))


def _check_network(content: dict, networks: Mapping, where: object) -> None:
    within = Layout.parse(content["layout"]).nodes == 1
    if within != (content["network"] == LOCAL) or not (within or content["network"] in networks):
        raise InputError(
            where,
            content["network"],
            f"collectives: is not the network of {content['layout']}",
            f"`{LOCAL}` is that of one node, and `networks` holds those of several",
        )


def _check_steps(name: str, steps: list[dict], where: object) -> None:
    numbers = Counter((each["rows"], each["cores"]) for each in steps)
    (rows, *others), times = numbers.most_common(1)[0]
    if times > 1:
        raise InputError(
            where,
            [rows, *others],
            f"steps: {name} has two entries of {rows} rows with the same cores",
            "join their repeats",
        )


def _collective(content: dict, where: object) -> CollectiveTimes:
    times = sorted(content["times"], key=lambda each: each["bytes"])
    numbers = [[len(each.get(key, ())) for each in times] for key in _KINDS_OF_TIMES]
    if any(len(set(each)) > 1 for each in numbers):
        raise InputError(
            where,
            numbers,
            "collectives: the sizes of one entry have unequal numbers of repeats",
            "measure every size in every repeat",
        )
    pairs = zip(_KINDS_OF_TIMES, numbers, strict=True)
    return CollectiveTimes(
        content["library"],
        content["operation"],
        content["network"],
        Layout.parse(content["layout"]),
        np.array([each["bytes"] for each in times], float),
        *(_optional([each[key] for each in times] if n[0] else None) for key, n in pairs),
    )


def _gradient(content: dict) -> Gradient:
    recompute = tuple((each["rows"], each["seconds"]) for each in content.get("recompute", ()))
    return Gradient(**content | {"shape": tuple(content["shape"]), "recompute": recompute})


def _work(content: dict) -> Work:
    overheads = content["overheads"]
    return Work(
        tuple(map(_gradient, content["gradients"])),
        tuple(_steps(each) for each in content["steps"]),
        tuple(
            Contention(**each | {name: np.array(each[name], float) for name in _OF_ROUNDS})
            for each in content["contention"]
        ),
        tuple(map(_exchange, content.get("exchanges", ()))),
        _optional(content["update_seconds"]),
        None
        if overheads is None
        else Overheads(*(np.array(overheads[f"{key}_seconds"], float) for key in _OVERHEADS)),
    )


def _exchange(content: dict) -> ExchangeTimes:
    names = ("fusion_bytes", "cycle_seconds")
    found = {name: content.get(name) for name in names}
    found |= {"layout": Layout.parse(content["layout"]), "seconds": np.array(content["seconds"])}
    return ExchangeTimes(**content | found)


_OF_ROUNDS = ("ratios", "library_shares")
_OVERHEADS = ("start", "evaluation_per_row", "end")
_KINDS_OF_TIMES = ("seconds", "computing_seconds", "computing_shares")


def _steps(content: dict) -> StepTimes:
    repeats = [np.array(seconds, float) for seconds in content["seconds"]]
    means = np.array([seconds.mean() for seconds in repeats])
    shape = np.sort(np.concatenate([s / mean for s, mean in zip(repeats, means, strict=True)]))
    return StepTimes(content["rows"], content["cores"], means, shape)


def _optional(values: list[float] | None) -> np.ndarray | None:
    return None if values is None else np.array(values, float)


def resampled(calibration: Calibration, random: np.random.Generator) -> Calibration:
    """Return a calibration whose measurements have one repeat each, drawn from all.

    Collectives are drawn last, so calibrations that differ only in them have the same draws of the
    others.
    """

    def one(values: np.ndarray) -> np.ndarray:
        return _resampled(values[None], random)[0]

    def work(content: Work) -> Work:
        overheads, deviations = content.overheads, _deviations_of(content.steps)
        return replace(
            content,
            steps=tuple(_drawn(each, deviations, random) for each in content.steps),
            contention=tuple(
                replace(each, **{name: _median(getattr(each, name), random) for name in _OF_ROUNDS})
                for each in content.contention
            ),
            exchanges=tuple(
                replace(each, seconds=_median(each.seconds, random)) for each in content.exchanges
            ),
            update=None if content.update is None else one(content.update),
            overheads=overheads
            and Overheads(*(one(getattr(overheads, name)) for name in _OVERHEADS)),
            deviation=_of_run(deviations, random) * _of_minutes(calibration.drift, random),
        )

    def collective(content: CollectiveTimes) -> CollectiveTimes:
        busy, shares = content.computing_seconds, content.computing_shares
        return replace(
            content,
            seconds=_resampled(content.seconds, random),
            computing_seconds=None if busy is None else _resampled(busy, random),
            computing_shares=None if shares is None else shares.mean(axis=1, keepdims=True),
            deviation=of_runs[content.measured_with],
        )

    operations = calibration.operations_per_second
    of_core = one(calibration.bytes_per_second), None if operations is None else one(operations)
    works = {name: work(content) for name, content in calibration.works.items()}
    starts = tuple(
        replace(each, seconds=random.choice(each.seconds, 1)) for each in calibration.starts
    )
    of_runs = {
        kind: _of_run(_deviations(repeats), random)
        for kind, repeats in _repeats(calibration.collectives).items()
    }
    return replace(
        calibration,
        bytes_per_second=of_core[0],
        operations_per_second=of_core[1],
        works=works,
        collectives=tuple(map(collective, calibration.collectives)),
        starts=starts,
    )


def undisturbed(calibration: Calibration) -> Calibration:
    """Return a resampled calibration without what a predicted run adds to it.

    So its times are those of the minutes in which it was measured.
    """
    return replace(
        calibration,
        works={name: replace(each, deviation=1.0) for name, each in calibration.works.items()},
        collectives=tuple(replace(each, deviation=1.0) for each in calibration.collectives),
    )


def _of_minutes(drift: np.ndarray, random: np.random.Generator) -> float:
    """Return how many times longer steps take in the minutes of the predicted run.

    The other minutes of the calibration stand for these, so they are drawn as they are, and are no
    deviations from their mean. If fewer than two are known, there is no drift.
    """
    return float(random.choice(drift)) if len(drift) >= LEAST_REPEATS else 1.0


def _deviations_of(steps: Sequence[StepTimes]) -> np.ndarray:
    """Return how all repeats deviate from the mean of their number of rows, widened."""
    logarithms = [np.log(each.means) for each in steps]
    deviations = np.concatenate([each - each.mean() for each in logarithms])
    return deviations * _widening(len(deviations), len(steps))


def _repeats(collectives: Sequence[CollectiveTimes]) -> dict[tuple, np.ndarray]:
    """Return the seconds of all operations, of shape (measurements, repeats), by `measured_with`.

    They are those while ranks compute, if these were measured, because the others may be single
    calls after a step. If operations have unequal numbers of repeats, the first ones count.
    """
    joined: dict[tuple, list[np.ndarray]] = {}
    for each in collectives:
        busy = each.computing_seconds
        joined.setdefault(each.measured_with, []).append(each.seconds if busy is None else busy)
    fewest = {kind: min(seconds.shape[1] for seconds in found) for kind, found in joined.items()}
    return {
        kind: np.concatenate([seconds[:, : fewest[kind]] for seconds in found])
        for kind, found in joined.items()
    }


def _drawn(steps: StepTimes, deviations: np.ndarray, random: np.random.Generator) -> StepTimes:
    """Return steps with one mean, which deviates like the mean of so many repeats."""
    drawn = random.choice(deviations, steps.means.shape).mean()
    return replace(steps, means=np.exp(np.log(steps.means).mean() + drawn)[None])


def _deviations(seconds: np.ndarray) -> np.ndarray:
    """Return how the repeats deviate from their mean, widened; of shape (repeats,).

    Parameters
    ----------
    seconds : shape (measurements, repeats). Deviations of one repeat are averaged.
    """
    logarithms = np.log(seconds)
    deviations = (logarithms - logarithms.mean(axis=1, keepdims=True)).mean(axis=0)
    return deviations * _widening(seconds.shape[1])


@cache
def _widening(repeats: int, means: int = 1) -> float:
    """Return the factor by which Student's interval is wider than the percentile bootstrap's.

    Parameters
    ----------
    repeats : number of deviations from `means` means.
    """
    upper, freedom = (1 + LEVEL) / 2, repeats - means
    student = stats.t.ppf(upper, freedom) / stats.norm.ppf(upper)
    return float(student * np.sqrt(repeats / freedom))


def _resampled(seconds: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the means of drawn repeats, of shape (measurements, 1).

    A repeat may be a single call, and some calls take many times as long as others. A run makes
    many, so their arithmetic mean counts.
    """
    repeats = seconds.shape[1]
    means = seconds.mean(axis=1, keepdims=True)
    drawn = seconds[:, random.integers(repeats, size=repeats)].mean(axis=1, keepdims=True)
    return means * (drawn / means) ** _widening(repeats)


def _median(of_rounds: np.ndarray, random: np.random.Generator) -> np.ndarray:
    """Return the median of a resample, of shape (1,), or nothing of nothing."""
    if not len(of_rounds):
        return of_rounds
    return np.median(random.choice(of_rounds, of_rounds.shape))[None]


def _of_run(deviations: np.ndarray, random: np.random.Generator) -> float:
    return float(np.exp(random.choice(deviations)))
