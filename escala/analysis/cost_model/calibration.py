"""Times of one node and of a link between two, from which the cost model predicts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from escala.analysis.cost_model.networks import Network
from escala.runtime.layout import Layout

#: Probability that intervals of predictions cover.
LEVEL = 0.9
#: The network of ranks on one node.
LOCAL = "local"
#: Standard deviation of the logarithm of the model's error with several ranks: that of 24
#: predictions on one node beyond their intervals. docs/decisions/037-calibration.md has them.
MODEL_DEVIATION = 0.05
#: The most ranks with which a prediction has an interval. Predictions of two ranks were held
#: against measured times, on one node and on two (docs/decisions/037-calibration.md). Those of four
#: nodes of the lab, which shared two cores, were 17 to 55 % too short.
VALIDATED_RANKS = 2


# Compared by identity, so that it can be a key of `functools.lru_cache`.
@dataclass(frozen=True, eq=False)
class CollectiveTimes:
    """Times of one operation of a library.

    Attributes
    ----------
    sizes : bytes, as in `collectives.algorithm`; shape (sizes,).
    seconds : while ranks do nothing else, of shape (sizes, repeats).
    deviation : factor by which the times of the predicted run differ from those of all runs.
    """

    library: str
    operation: str
    network: str
    layout: Layout
    sizes: np.ndarray
    seconds: np.ndarray
    deviation: float = 1.0

    @property
    def measured_with(self) -> tuple[str, str, Layout]:
        """The library, network and layout: their operations have common repeats."""
        return self.library, self.network, self.layout


@dataclass(frozen=True)
class StepTimes:
    """Times of steps of one process that has the node to itself.

    Attributes
    ----------
    rows : rows of a step.
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
    """

    library: str
    rows: int
    cores: int
    processes: int
    ratios: np.ndarray


@dataclass(frozen=True)
class ExchangeTimes:
    """How much longer a step takes if ranks exchange their gradients in it.

    Attributes
    ----------
    network : between nodes; `LOCAL` on one node.
    rows, cores : of a rank, as of `StepTimes`.
    seconds : one for each round of blocks, shape (rounds,).
    """

    library: str
    network: str
    layout: Layout
    rows: int
    cores: int
    seconds: np.ndarray


@dataclass(frozen=True)
class Gradient:
    """The gradient of one variable.

    Attributes
    ----------
    shape : of the variable.
    item_bytes : of a number.
    ready : fraction of a rank's computing, from 0 to 1, after which the gradient is known.
    factor_rows : rows that a dense layer of this kernel receives for one row of the model; None if
        its gradient is not exchanged as factors.
    sparse_rows : rows of the variable that one row of the model reads; None if it reads all.
    """

    name: str
    shape: tuple[int, ...]
    item_bytes: int = 4
    ready: float = 1.0
    factor_rows: int | None = None
    sparse_rows: int | None = None

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
    bytes_per_second : rate at which one core reads memory and writes it elsewhere, of shape
        (repeats,). No network is faster with one process.
    operations_per_second : floating-point operations of a product of matrices on one core, of shape
        (repeats,).
    drift : how many times longer a step takes in other minutes of the calibration than in those of
        `StepTimes`, shape (runs,); empty if not measured.
    model_deviation : standard deviation of the logarithm of the model's error with several ranks;
        of a calibration that does not have it, the usual one.
    programs : as in the file; see `escala.analysis.cost_model.bounds`.
    """

    cores_per_node: int
    bytes_per_second: np.ndarray
    operations_per_second: np.ndarray
    networks: Mapping[str, Network]
    collectives: tuple[CollectiveTimes, ...]
    works: Mapping[str, Work]
    drift: np.ndarray = field(default_factory=lambda: np.ones(0))
    starts: tuple[StartTimes, ...] = ()
    model_deviation: float = MODEL_DEVIATION
    programs: Mapping[str, Mapping] = field(default_factory=dict)
