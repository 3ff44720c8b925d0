"""The contract of an engine: the work of one process inside a framework, in terms of NumPy."""

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

#: Inputs and targets of a rank's rows, the weight of each row, and the divisor of the sum of
#: losses.
StepInputs = tuple
#: The row numbers of each rank in one step.
RankRows = list[np.ndarray]
#: A function of some steps and the numbers of some ranks. For each of these ranks it returns the
#: inputs of all steps, one step below the other. A rank has an equal number of rows in each step.
Gather = Callable[[Sequence[RankRows], Sequence[int]], list[StepInputs]]


Opened = TypeVar("Opened")

#: Linux's name for the instructions that multiply numbers of the type bfloat16.
BFLOAT16 = "avx512_bf16"


def require_products(kind: str) -> None:
    """Refuse a type of matrix products (knob `products`) if the processor lacks its instructions.

    Without these instructions, the library that multiplies emulates the type, or does not use it.
    """
    if kind == "bfloat16" and not has_instructions(BFLOAT16):
        raise Unavailable(f"products: {kind} needs a processor with {BFLOAT16}")


def gpus_in_use(device: str, finds_gpu: bool, title: str, remedy: str) -> list[str]:
    """Return the identifiers of the GPUs that a framework uses in this process.

    Parameters
    ----------
    device : the value of the knob `device`.
    finds_gpu : whether the framework finds a GPU.
    title, remedy : the name of the framework, and how to install it with CUDA.

    Raises
    ------
    Unavailable : `device` is `gpu`, and the framework finds no GPU; or the GPUs have no
        identifiers.
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
    rows : the row numbers of each rank.
    moments : start and end of gathering, and end of the step, by `time.perf_counter`. Steps in one
        call have equal parts of the call's time.
    loss, hits : sums over the ranks: a float, or an object that `float` converts after all steps.
    """

    rows: RankRows
    moments: tuple[float, float, float]
    loss: float
    hits: float


class Group:
    """One process among those of a run. Call `start` first.

    Parameters
    ----------
    knobs : the knobs that the strategy reads.
    place : the place of this process.
    """

    def __init__(self, knobs: Mapping[str, Any], place: Place):
        self.knobs, self.place = knobs, place

    def start(self) -> tuple[list[int], int]:
        """Join the other processes; return the ranks of this process, and the number of all ranks.

        Raises
        ------
        Unavailable : a needed program or device is missing.
        """
        return [0], 1

    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of a float64 vector over all processes. Every process must call this."""
        return values

    def mean(
        self, copies: Sequence[Sequence[np.ndarray]], weights: Sequence[float]
    ) -> list[np.ndarray]:
        """Return weighted means of arrays over all ranks, float64. Every process must call this.

        Parameters
        ----------
        copies : the arrays of each rank of this process.
        weights : the weight of each of these ranks. Arrays of weight 0 do not count.
        """
        sizes = [value.size for value in copies[0]]
        sums = np.zeros(sum(sizes) + 1)
        for values, weight in zip(copies, weights, strict=True):
            flat = np.concatenate([*(value.ravel() for value in values), [1.0]], dtype=np.float64)
            # An array may hold infinity, as in a mask, and 0 times infinity is not a number.
            sums += weight * flat if weight else 0.0
        *flat, weight = self.total(sums)
        means = np.split(np.array(flat) / weight, np.cumsum(sizes)[:-1])
        return [mean.reshape(like.shape) for mean, like in zip(means, copies[0], strict=True)]

    #: The collectives that the ranks of a step may call.
    operations: ClassVar[tuple[str, ...]] = ("allreduce",)

    def collective(self, operation: str, size: int) -> Callable[[], float]:
        """Return a function that calls a collective as in a step, with `size` bytes of float32.

        It returns the seconds until the result is here. Every process must call it.
        """
        raise NotImplementedError

    def meet(self) -> None:
        """Wait until every process that trains has called this."""
        self.total(np.zeros(1))

    def share_memory(self, open_path: Callable[[str], Opened], instead: str) -> Opened:
        """Open a file of memory that the ranks of a node share; return what `open_path` returns.

        The first rank makes an anonymous file (man 2 memfd_create). The other ranks open it while
        the first rank waits. The file disappears with the last process that uses it. Each rank is a
        started process on one node. Every rank calls this; several calls have one order on all
        ranks.

        Parameters
        ----------
        open_path : opens the file by its path, which is valid during this call. The first rank
            opens an empty file before all other ranks, and sets the size of the file.
        instead : a knob's value that needs no shared memory, for the message.

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
            # The other ranks add zeros, so the sums are the numbers of the first rank.
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
            self.meet()  # Now all ranks have opened the file.
        finally:
            if file is not None:
                os.close(file)
        return result

    def serve(self, folder: Path) -> bool:
        """Serve the processes that train, if this process only serves; return whether it does.

        The process serves until a file in the run's `folder` says that training has ended. A
        process that trains returns False at once.
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
    group : this process in its group of processes.

    Attributes
    ----------
    model, functions : of the workload (`escala.engines.functions`).
    recorder : records the steps for the probe of the run; None if the probe records no steps.
    rows_at_once : the number of rows that one call of `evaluate` should get.
    steps_alone : whether a rank can make a step without other ranks (`step_alone`).

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
        """The factor on the computing time of this process, by the knob `slowdown`."""
        return dict(enumerate(self.plan["knobs"]["slowdown"])).get(self.place.process, 1.0)

    @abstractmethod
    def start(self) -> tuple[list[int], int]:
        """Set threads and devices, and start the group; return what `Group.start` returns."""

    @abstractmethod
    def resources(self) -> dict[str, Any]:
        """Return the used `gpus` and `threads` of this process, in the format of `run.json`."""

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
        data : the arrays; they give shapes and dtypes of the rows.
        knobs : the knobs of the workload.
        probe : the probe of the run; None for a timing run.

        Raises
        ------
        InputError : the workload has a part that training would ignore.
        Unavailable : the strategy or a knob does not allow something that the model needs.
        """

    def make_steps(self, steps: Iterable[RankRows], gather: Gather) -> Iterator[MadeStep]:
        """Make steps in sequence, in which ranks exchange and update; yield each step.

        The time of a step does not include the caller's work between two steps.
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
        """Make a step, so that the code for steps of this size is compiled."""
        for _ in self.make_steps([step], gather):
            pass

    def step(self, inputs: StepInputs) -> tuple[float, float]:
        """Make a step of this process's rank; return the rank's sums of losses and of hits."""
        raise NotImplementedError

    @abstractmethod
    def step_alone(self, inputs: StepInputs) -> None:
        """Make a step of this process's only rank without any exchange."""

    @contextmanager
    @abstractmethod
    def preserve(self) -> Iterator[None]:
        """At the end of the block, restore everything that steps change."""

    @abstractmethod
    def seed(self, *numbers: int) -> None:
        """Seed the random numbers of training by non-negative integers."""

    @abstractmethod
    def end_epoch(self, rows: Sequence[int]) -> None:
        """Make the model equal on all ranks: average the variables that ranks update separately.

        Parameters
        ----------
        rows : for each rank of this process, its rows in the epoch: the weight in the mean.
        """

    @abstractmethod
    def evaluate(
        self, inputs: Sequence[np.ndarray], targets: np.ndarray
    ) -> tuple[np.ndarray, dict[str, float]]:
        """Return the predictions for some rows, and sums over the rows by name.

        The names are `loss`, `correct`, and names of the workload's scores.
        """

    @abstractmethod
    def weights(self) -> list[list[np.ndarray]]:
        """Return the values of the model's variables on each rank of this process."""

    @abstractmethod
    def set_weights(self, weights: Sequence[np.ndarray]) -> None:
        """Set the model's variables."""

    @abstractmethod
    def values(self) -> list[np.ndarray]:
        """Return all values of model and optimizer. Every process must call this."""

    @abstractmethod
    def restore(self, values: Sequence[np.ndarray]) -> None:
        """Set the variables to a result of `values` from a run with an equal number of ranks."""

    @abstractmethod
    def broadcast(self) -> None:
        """Copy the values of rank 0 to every rank."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """Return `parameters` and `optimizer` for `run.json`, and entries of this engine only."""

    @abstractmethod
    def board(self, folder: Path) -> Callable[[int, Mapping[str, float]], None]:
        """Return a function of a step and numbers by name, which writes for TensorBoard."""
