"""The contract of an engine: what one process of a run does inside a framework, in NumPy terms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from escala.core.errors import Unavailable
from escala.core.hardware import has_instructions
from escala.strategies import STRATEGIES

if TYPE_CHECKING:
    from escala.data.base import Arrays
    from escala.probes import Probe, Recorder
    from escala.strategies.base import Place

#: What a rank computes in a call: its inputs and targets, the weight of each row, and the divisor
#: of the sum of the losses.
Arguments = tuple


#: Linux's name for the instructions that multiply numbers of the type bfloat16.
BFLOAT16 = "avx512_bf16"


def require_products(kind: str) -> None:
    """Refuse a value of the knob `products` whose instructions the processor lacks.

    Without them the library for products emulates the type, or does not use it.
    """
    if kind == "bfloat16" and not has_instructions(BFLOAT16):
        raise Unavailable(f"products: {kind} needs a processor with {BFLOAT16}")


class Group(ABC):
    """One process among those of a run. Call `start` first.

    Parameters
    ----------
    knobs : those that the strategy reads.
    place : the number, node and cores of this process, and the addresses of all.
    """

    def __init__(self, knobs: Mapping[str, Any], place: Place):
        self.knobs, self.place = knobs, place

    @abstractmethod
    def start(self) -> tuple[list[int], int]:
        """Join the others; return the ranks this process holds and how many there are in all.

        Raises
        ------
        Unavailable : a program or device that it needs is missing.
        """

    @property
    def trains(self) -> bool:
        """Return whether this process trains. If not, it serves the processes that do."""
        return True

    @property
    def driven(self) -> list[int]:
        """The ranks whose rows this process gathers and whose steps it starts."""
        return self.place.ranks

    @property
    def part(self) -> tuple[int, int]:
        """The number of this process among those that train, and how many these are."""
        return self.place.process, self.place.processes

    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of a float64 vector over all processes; each must call it."""
        return values

    def mean(
        self, copies: Sequence[Sequence[np.ndarray]], weights: Sequence[float]
    ) -> list[np.ndarray]:
        """Return the weighted mean of what all ranks hold, in float64; each process must call it.

        Parameters
        ----------
        copies : some arrays, as each rank of this process holds them.
        weights : of each of these ranks; with the weight 0 it is not looked at.
        """
        sizes = [value.size for value in copies[0]]
        sums = np.zeros(sum(sizes) + 1)
        for values, weight in zip(copies, weights, strict=True):
            flat = np.concatenate([*(value.ravel() for value in values), [1.0]], dtype=np.float64)
            # A constant may be infinite, as in a mask, and 0 times it is no number.
            sums += weight * flat if weight else 0.0
        *flat, weight = self.total(sums)
        means = np.split(np.array(flat) / weight, np.cumsum(sizes)[:-1])
        return [mean.reshape(like.shape) for mean, like in zip(means, copies[0], strict=True)]

    def meet(self) -> None:
        """Wait until every process that trains has come here."""
        self.total(np.zeros(1))

    def join(self) -> None:  # noqa: B027
        """Wait until every step that was started is done."""

    def serve(self, folder: Path) -> None:  # noqa: B027
        """Serve the processes that train until the run's `folder` says that they have ended."""

    def stop(self) -> None:  # noqa: B027
        """Leave the others."""


class Engine(ABC):
    """Model, optimizer and steps of one process. `start` comes first, then `build`.

    Parameters
    ----------
    plan : the run's plan (`escala.record.plan`).
    group : the process among the others.

    Attributes
    ----------
    recorder : what the probe of the run records of the steps, None if it records none.
    steps_per_call : how many steps a call of `step` may make, besides a single one.
    rows_at_once : how many rows `evaluate` should be given at once. `build` sets these three.
    """

    recorder: Recorder | None
    steps_per_call: int
    rows_at_once: int

    def __init__(self, plan: Mapping[str, Any], group: Group):
        self.plan, self.group = plan, group

    @property
    def waits(self) -> bool:
        """Return whether ranks make each step together: its sums are then known when it returns."""
        return STRATEGIES[self.plan["strategy"]].waits()

    @abstractmethod
    def start(self) -> tuple[list[int], int]:
        """Set threads and devices, and start the group."""

    @abstractmethod
    def obtained(self) -> dict[str, Any]:
        """Return the `gpus` and the `threads` that this process uses, as `run.json` has them."""

    @abstractmethod
    def build(
        self,
        work: ModuleType,
        data: Arrays,
        knobs: Mapping[str, Any],
        probe: Probe | None = None,
    ) -> None:
        """Build model, optimizer and compiled steps of a workload.

        Parameters
        ----------
        work : the module `model` of the workload.
        data : gives the form of the rows.
        knobs : of the workload.
        probe : of the run, if it is no timing run.

        Raises
        ------
        InputError : the workload has a part that would be ignored.
        Unavailable : the model needs what the strategy or a knob does not allow.
        """

    @abstractmethod
    def step(self, arguments: Sequence[Arguments], count: int = 1) -> tuple[Sequence, Sequence]:
        """Make `count` steps of the ranks that this process drives, which exchange and update.

        Parameters
        ----------
        arguments : of each rank, with the rows of all these steps, one step after the other.

        Returns
        -------
        For each step the sum of the losses over these ranks, and that of hits. `float` converts
        one, and may wait for the step.
        """

    @abstractmethod
    def step_alone(self, arguments: Arguments) -> None:
        """Make a step of this process's only rank that exchanges nothing."""

    @contextmanager
    @abstractmethod
    def unchanged(self) -> Iterator[None]:
        """Restore everything that steps change when the block ends."""

    @abstractmethod
    def seed(self, *numbers: int) -> None:
        """Seed what the model draws while it trains, by non-negative integers."""

    @abstractmethod
    def end_epoch(self, rows: Sequence[int]) -> None:
        """Make the model equal on all ranks: of what each updates by itself, the weighted mean.

        Parameters
        ----------
        rows : number of rows in the epoch, of each rank that this process drives.
        """

    @abstractmethod
    def evaluate(
        self, inputs: Sequence[np.ndarray], targets: np.ndarray
    ) -> tuple[np.ndarray, dict[str, float]]:
        """Return the predictions for some rows, and the sums over them by name.

        The names are `loss`, `correct`, and the workload's own.
        """

    @abstractmethod
    def weights(self) -> list[list[np.ndarray]]:
        """Return the model's variables as each rank of this process holds them."""

    @abstractmethod
    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Set the model's variables."""

    @abstractmethod
    def values(self) -> list[np.ndarray]:
        """Return the values of all variables of model and optimizer; every process calls this."""

    @abstractmethod
    def restore(self, values: Sequence[np.ndarray]) -> None:
        """Set the variables to what `values` returned in a run with as many ranks."""

    @abstractmethod
    def broadcast(self) -> None:
        """Give every rank the values that rank 0 holds."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """Return `parameters`, `optimizer`, and how gradients are exchanged, for `run.json`."""

    @abstractmethod
    def board(self, folder: Path) -> Callable[[int, Mapping[str, float]], None]:
        """Return a function that writes numbers by name, at a step, for TensorBoard."""
