"""The contract of a strategy: start, exchange gradients, agree on weights, stop.

A *rank* is one replica of the model. Most strategies give each a process of its own; some hold all
ranks of a node in one process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, ClassVar

from escala.core.errors import Unavailable
from escala.core.hardware import has_instructions

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import tensorflow as tf

    from escala.strategies.shared.place import Place


#: The timeline as a library writes it, in the run's `ranks/` folder, and the files made of it.
RAW_TIMELINE = "timeline.raw"
#: A timeline as a trace for Perfetto.
TRACE = "trace.json"
TIMELINE_FILES = ("timeline.json", TRACE)
#: Linux's name for the instructions that multiply numbers of the type bfloat16.
BFLOAT16 = "avx512_bf16"


class Strategy(ABC):
    """One process's side of a strategy. Call `start` first; no library is loaded before it.

    What runs inside a step may not use Python's `if`, `for` or `while` on tensors
    (`escala.workloads.graphs`).

    Parameters
    ----------
    knobs : the variant's settings.
    place : the number, node and cores of this process, and the addresses of all.
    """

    name: ClassVar[str]
    #: Where tables and figures list it: by position, and by name where several have one.
    position: ClassVar[int] = 100
    #: How the workloads are trained that it runs (`escala.workloads`).
    trains_by: ClassVar[frozenset[str]] = frozenset({"steps"})
    #: The library by which the ranks of a program sum, as `escala/hook/escala_collectives.py` names
    #: it; None where it is not known.
    library_of_programs: ClassVar[str | None] = None
    #: Whether its ranks find each other through MPI.
    mpi: ClassVar[bool] = False
    #: Whether Horovod's rendezvous must be served while it runs.
    rendezvous: ClassVar[bool] = False
    #: Whether a process accepts connections on every address of its machine.
    listens: ClassVar[bool] = False
    only_one_rank: ClassVar[bool] = False
    #: Whether one process holds all ranks of its node.
    one_process_per_node: ClassVar[bool] = False
    only_one_node: ClassVar[bool] = False
    #: Whether ranks are given rows in proportion to the speed they show before training.
    by_speed: ClassVar[bool] = False
    #: Whether ranks do not wait for each other's updates of the weights.
    asynchronous: ClassVar[bool] = False
    writes_timeline: ClassVar[bool] = False
    #: Whether ranks can exchange the gradient of a dense layer in other ways than by its sum.
    gathers: ClassVar[bool] = False
    #: Whether a process can read the clock inside its compiled step.
    can_time_inside_step: ClassVar[bool] = True

    def __init__(self, knobs: dict, place: Place):
        self.knobs, self.place = knobs, place

    @staticmethod
    def environment(knobs: dict) -> dict[str, str]:
        """Return the environment variables its library reads, the same in every process."""
        return {}

    @staticmethod
    def process_variables(place: Place, interface: str) -> dict[str, str]:
        """Return the variables by which the program of one process finds the others.

        Parameters
        ----------
        interface : network interface that the processes exchange over.
        """
        return {}

    @staticmethod
    def timeline_environment(path: Path, negotiation: bool = True) -> dict[str, str]:
        """Return what makes its library write a timeline to `path`, if it `writes_timeline`.

        With `negotiation` the timeline also records when each rank was ready, which costs time.
        """
        return {}

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
    def driven_ranks(self) -> list[int]:
        """Return the ranks whose rows this process gathers and whose steps it starts."""
        return self.place.ranks

    @property
    def part(self) -> tuple[int, int]:
        """Return the number of this process among those that train, and how many these are."""
        return self.place.process, self.place.processes

    def scope(self) -> AbstractContextManager:
        """Return the context that model and optimizer are built in."""
        return nullcontext()

    def compiled(self, step: Callable, signature: Sequence[tf.TypeSpec]) -> Callable:
        """Compile the step of one rank to a step of all ranks of this process.

        Parameters
        ----------
        step : takes tensors as in `signature` and returns float32 scalars to be summed.

        Returns
        -------
        A function of one tuple of arrays per rank that this process drives. It returns the sums
        over these ranks, each a float. An asynchronous strategy returns objects that `float`
        converts, which waits for the step.
        """
        from escala.workloads.graphs import as_graph

        function = as_graph(input_signature=signature)(step)

        def run(arguments: Sequence[tuple]) -> list[float]:
            (only,) = arguments
            return [float(value) for value in function(*only)]

        return run

    def local(self, gradients: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Return a rank's own gradients in the form in which they are exchanged."""
        return list(gradients)

    def exchange(
        self, gradients: Sequence[tf.Tensor], variables: Sequence[tf.Variable]
    ) -> list[tf.Tensor]:
        """Return the sums of the gradients over all ranks.

        Where the optimizer sums them, they are returned as they are. For a gradient that is
        `Factors`, the factors of all ranks' rows are returned.

        A strategy that `gathers` also takes, as `sums`, an object
        `escala.strategies.shared.shared_memory.Sums`. It then sums the gradients of its variables.
        """
        return list(gradients)

    def summed(self, values: tf.Tensor, name: str) -> tf.Tensor:
        """Return the sum of a tensor over all ranks inside a step, with its gradient.

        Every rank must call it, with the same name.

        Raises
        ------
        Unavailable : the ranks have no common step.
        """
        return values

    def gathered(self, values: tf.Tensor, name: str) -> tf.Tensor:
        """Return a tensor of all ranks, one below the other in the order of the ranks.

        It needs a strategy that `gathers`. Every rank must call it, with the same name; ranks may
        have different numbers of rows.
        """
        return values

    def join(self) -> None:  # noqa: B027
        """Wait until every step that was started is done."""

    @abstractmethod
    def broadcast(self, variables: list[tf.Variable]) -> None:
        """Give every rank the values that rank 0 holds."""

    @abstractmethod
    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of a float64 vector over all processes; each must call it."""

    def serve(self, folder: Path) -> None:  # noqa: B027
        """Serve the processes that train until the run's `folder` says that they have ended."""

    def weights(self, variables: Sequence[tf.Variable]) -> list[list[np.ndarray]]:
        """Return the values of variables as each rank of this process holds them."""
        return [[variable.numpy() for variable in variables]]

    @abstractmethod
    def stop(self) -> None:
        """Leave the others."""


def tensor_names(variables: Sequence[tf.Variable]) -> list[str]:
    """Return a name for the gradient of each variable, such as `6.dense/kernel`.

    Two variables may have the same name, as in nested models. The position makes every name unique.
    The names are the same on all ranks, because all build the same model.
    """
    names = [variable.name.partition(":")[0] for variable in variables]
    return [f"{position}.{name}" for position, name in enumerate(names)]


def set_threads(threads: dict[str, int]) -> None:
    """Size TensorFlow's thread pools, before it uses any."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads["intra_op"])
    tf.config.threading.set_inter_op_parallelism_threads(threads["inter_op"])


def set_products(kind: str) -> None:
    """Choose the type of matrix products and convolutions in graphs that are compiled after it.

    For `bfloat16` TensorFlow rewrites the graphs: it casts the factors of these operations, and the
    results back to float32, and oneDNN computes them with the processor's own instructions. For
    `tensor-float-32` a GPU rounds the factors to 10 bits of mantissa, which is TensorFlow's own
    default; cores do not.

    Parameters
    ----------
    kind : `float32`, `tensor-float-32` or `bfloat16`.

    Raises
    ------
    Unavailable : the processor has no instructions for bfloat16. oneDNN would emulate them.
    """
    if kind == "bfloat16" and not has_instructions(BFLOAT16):
        raise Unavailable(f"products: {kind} needs a processor with {BFLOAT16}")
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(kind == "tensor-float-32")
    if kind == "bfloat16":
        tf.config.optimizer.set_experimental_options({"auto_mixed_precision_onednn_bfloat16": True})
