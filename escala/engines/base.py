"""The contract of an engine: what one process of a run does inside a framework, in NumPy terms."""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from escala.core.errors import Unavailable
from escala.core.hardware import available_gpus, has_instructions

if TYPE_CHECKING:
    from escala.data.base import Arrays
    from escala.engines.functions import Functions
    from escala.probes import Probe, Recorder
    from escala.strategies.base import Place

#: Inputs and targets of a rank's rows, the weight of each row, and the divisor of their loss.
StepInputs = tuple
#: The row numbers of each rank in one step.
RankRows = list[np.ndarray]
#: Takes some steps and the numbers of some ranks, and returns for each of these ranks its inputs of
#: all the steps, one below the other. A rank has equally many rows in each of the steps.
Gather = Callable[[Sequence[RankRows], Sequence[int]], list[StepInputs]]


Opened = TypeVar("Opened")

#: Linux's name for the instructions that multiply numbers of the type bfloat16.
BFLOAT16 = "avx512_bf16"


def require_products(kind: str) -> None:
    """Refuse a type of matrix products (knob `products`) if the processor lacks its instructions.

    Without them the library that multiplies emulates the type, or does not use it.
    """
    if kind == "bfloat16" and not has_instructions(BFLOAT16):
        raise Unavailable(f"products: {kind} needs a processor with {BFLOAT16}")


def gpus_in_use(device: str, finds_gpu: bool, title: str, remedy: str) -> list[str]:
    """Return the identifiers of the GPUs that a framework uses in this process.

    Parameters
    ----------
    device : the knob of this name.
    finds_gpu : whether the framework finds any.
    title, remedy : the name of the framework, and how to install it with CUDA.

    Raises
    ------
    Unavailable : `device` is `gpu`, and the framework finds none; or its GPUs have no identifiers.
    """
    if not finds_gpu:
        if device == "gpu":
            raise Unavailable(
                f"device: gpu, and {title} finds no GPU; its log in `ranks/` states why. Remedy: "
                f"set device: cpu, or install the {title} with CUDA: {remedy}"
            )
        return []
    if not (gpus := available_gpus()):
        raise Unavailable(
            f"{title} finds a GPU, and NVIDIA's library does not name it. Remedy: install "
            f"nvidia-ml-py in the environment of {title}, or set device: cpu"
        )
    return [gpu.identifier for gpu in gpus]


class MadeStep(NamedTuple):
    """A step that this process has made, for one rank or several.

    Attributes
    ----------
    rows : the row numbers of each of these ranks.
    moments : when gathering began, when it ended, and when the step ended, of `time.perf_counter`.
        Steps that are made in one call have equal shares of its time.
    loss, hits : sums over these ranks: a float, or what `float` converts once all steps are made.
    """

    rows: RankRows
    moments: tuple[float, float, float]
    loss: float
    hits: float


class Group:
    """One process among those of a run. Call `start` first.

    Parameters
    ----------
    knobs : those that the strategy reads.
    place : of this process.
    """

    def __init__(self, knobs: Mapping[str, Any], place: Place):
        self.knobs, self.place = knobs, place

    def start(self) -> tuple[list[int], int]:
        """Join the others; return the ranks that this process holds, and the number of all ranks.

        Raises
        ------
        Unavailable : a program or device that it needs is missing.
        """
        return [0], 1

    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of a float64 vector over all processes; each must call it."""
        return values

    def mean(
        self, copies: Sequence[Sequence[np.ndarray]], weights: Sequence[float]
    ) -> list[np.ndarray]:
        """Return the weighted means of arrays over all ranks, float64; each process must call it.

        Parameters
        ----------
        copies : for each rank of this process, its copies of the arrays.
        weights : of each of these ranks. The copies of a rank of weight 0 do not count.
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

    #: The collectives that the ranks of a step may call.
    operations: ClassVar[tuple[str, ...]] = ("allreduce",)

    def collective(self, operation: str, size: int) -> Callable[[], float]:
        """Return a call of a collective as a step makes it, of `size` bytes of float32.

        It returns its seconds until this process has the result. Every process must call it.
        """
        raise NotImplementedError

    def meet(self) -> None:
        """Wait until every process that trains has come here."""
        self.total(np.zeros(1))

    def share_memory(self, open_path: Callable[[str], Opened], instead: str) -> Opened:
        """Open a file of memory that the ranks of a node share; return what `open_path` returns.

        The file is an anonymous one of the first rank (man 2 memfd_create). The others open it
        while the first one waits for them. It ends with the last of their processes, however they
        end. Each rank is a process on one node, and has started. Every rank calls this, in the same
        order if several times.

        Parameters
        ----------
        open_path : opens the file by its path, which is valid during this call. The first rank
            opens an empty file, before all others, and gives it its size.
        instead : the knob that needs no such memory, for the message.

        Raises
        ------
        Unavailable : the first rank cannot make a file, or another rank cannot reach it, for
            example because it runs in another container.
        """
        [rank] = self.place.ranks
        try:
            file = os.memfd_create("escala") if rank == 0 else None
        except OSError as error:
            raise Unavailable(f"no memory that ranks share: {error}") from error
        try:
            path = f"/proc/self/fd/{file}"
            result = None if file is None else open_path(path)
            # Others add zeros, so the sums are the numbers of the first rank.
            numbers = [0] * 4 if file is None else [os.getpid(), file, *_identity(path)]
            process, number, *identity = map(int, self.total(np.array(numbers, np.float64)))
            if file is None:
                path = f"/proc/{process}/fd/{number}"
                if _identity(path) != identity:
                    raise Unavailable(
                        f"{path} is not the memory of the first rank: do all ranks run in one "
                        f"container? Otherwise use `{instead}`"
                    )
                result = open_path(path)
            self.meet()  # Now all have opened it.
        finally:
            if file is not None:
                os.close(file)
        return result

    def serve(self, folder: Path) -> bool:
        """Serve the processes that train, if this one only serves; return whether it does.

        It serves until a file in the run's `folder` tells that they have ended. A process that
        trains returns False at once.
        """
        return False

    def stop(self) -> None:
        """Leave the other processes."""


def _identity(file: str) -> list[int] | None:
    """Return the numbers of a file's device and inode; None if it cannot be reached."""
    try:
        status = Path(file).stat()
    except OSError:
        return None
    return [status.st_dev, status.st_ino]


class Engine(ABC):
    """Model, optimizer and steps of one process. Call `start` first, then `build`.

    Parameters
    ----------
    plan : the run's plan (`escala.record.plan`).
    group : the process among the others.

    Attributes
    ----------
    model, functions : of the workload (`escala.engines.functions`).
    recorder : of the steps, for the probe of the run; None if it records none.
    rows_at_once : how many rows `evaluate` should get at once.
    steps_alone : whether a rank can make `step_alone` while the others do something else.

    `build` sets these attributes.
    """

    model: Any
    functions: Functions
    recorder: Recorder | None = None
    rows_at_once: int
    steps_alone: bool = True

    def __init__(self, plan: Mapping[str, Any], group: Group):
        self.plan, self.group, self.place = plan, group, group.place

    @property
    def slowdown(self) -> float:
        """How many times as long this process computes, by the knob of this name."""
        return dict(enumerate(self.plan["knobs"]["slowdown"])).get(self.place.process, 1.0)

    @abstractmethod
    def start(self) -> tuple[list[int], int]:
        """Set threads and devices, and start the group; return what `Group.start` returns."""

    @abstractmethod
    def resources(self) -> dict[str, Any]:
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

    def make_steps(self, steps: Iterable[RankRows], gather: Gather) -> Iterator[MadeStep]:
        """Make steps, one after the other, in which ranks exchange and update; yield each one.

        No step includes the time that the caller takes between two steps.
        """
        ranks = self.place.ranks
        began = time.perf_counter()
        for step in steps:
            [inputs] = gather([step], ranks)
            gathered = time.perf_counter()
            sums = self.step(inputs)
            moments = began, gathered, time.perf_counter()
            yield MadeStep([step[rank] for rank in ranks], moments, *sums)
            began = time.perf_counter()

    def warm_up(self, step: RankRows, gather: Gather) -> None:
        """Make a step, so that all code that an epoch needs for such steps is compiled."""
        for _ in self.make_steps([step], gather):
            pass

    def step(self, inputs: StepInputs) -> tuple[float, float]:
        """Make a step of this process's rank; return its sums of losses and of hits."""
        raise NotImplementedError

    @abstractmethod
    def step_alone(self, inputs: StepInputs) -> None:
        """Make a step of this process's only rank that exchanges nothing."""

    @contextmanager
    @abstractmethod
    def preserve(self) -> Iterator[None]:
        """Restore everything that steps change when the block ends."""

    @abstractmethod
    def seed(self, *numbers: int) -> None:
        """Seed what the model draws while it trains, by non-negative integers."""

    @abstractmethod
    def end_epoch(self, rows: Sequence[int]) -> None:
        """Make the model equal on all ranks: set what each updates by itself to the weighted mean.

        Parameters
        ----------
        rows : number of rows in the epoch, for each rank whose steps this process makes.
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
        """Return the values of all variables of model and optimizer; every process must call it."""

    @abstractmethod
    def restore(self, values: Sequence[np.ndarray]) -> None:
        """Set the variables to what `values` returned, in a run with the same number of ranks."""

    @abstractmethod
    def broadcast(self) -> None:
        """Give every rank the values that rank 0 holds."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """Return `parameters` and `optimizer` for `run.json`, and what only this engine records."""

    @abstractmethod
    def board(self, folder: Path) -> Callable[[int, Mapping[str, float]], None]:
        """Return a function that writes numbers by name, at a step, for TensorBoard."""
