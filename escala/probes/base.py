"""The contract of a probe: where it applies, how it shapes a run, what it starts, what it returns.

A probe run is a run of its own: one epoch, without validation and checkpoints, in a folder that has
the probe's name in place of `rep1`. Its times are compared with those of no timing run.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    import tensorflow as tf

    from escala.strategies.base import Strategy


class Run(Protocol):
    """The names of a run, as `escala.experiment.Run` has them."""

    dataset: str
    workload: str
    strategy: str
    layout: str
    variant: str
    network: str


class Recorder(Protocol):
    """Notes what happens in each step of one process."""

    def step(
        self, compute: Callable, local: Callable, exchange: Callable, apply: Callable
    ) -> Callable:
        """Return a rank's step with what the recorder adds to it.

        It is called only where moments inside the step can be read; see `Probe.recorder`.

        Parameters
        ----------
        compute : takes the arrays of a step to gradients, sum of losses and number right.
        local : brings gradients into the form they are exchanged in.
        exchange : takes gradients to their sums over all ranks.
        apply : updates the variables by these; returns the variables, in the order of gradients.
        """

    def note(self, epoch: int, step: int, began: float, gathered: float, returned: float) -> None:
        """Note the moments of a step that is done, in seconds of `time.perf_counter`."""

    def write(self) -> None:
        """Write what was noted."""


class Probe:
    """Capture something of one run. Each process that takes part in it has an instance of its own.

    Parameters
    ----------
    values : the values of its settings in the experiment, without `enabled`.
    folder : the run's `ranks/` folder. Files that are kept there have the probe's name in theirs,
        as `rank0.clocks.csv`.
    """

    #: The name of its module's file, with `-` for `_`.
    name: ClassVar[str]
    #: Where it observes: in each `rank`; beside the ranks of each `node`, by a process that runs
    #: `program`; or once for the whole `run`, by what runs anyway.
    scope: ClassVar[Literal["rank", "node", "run"]]
    #: JSON Schema of its key in an experiment, as `section` returns it.
    settings: ClassVar[dict]
    #: JSON Schema of what `read` returns, which `run.json` holds under the probe's name and which
    #: is null in other runs; None for a probe that leaves nothing but files.
    result: ClassVar[dict | None] = None
    #: Files that it may leave beside `run.json`.
    products: ClassVar[tuple[str, ...]] = ()
    #: Patterns of files in `ranks/` that are removed when the run has ended.
    temporary: ClassVar[tuple[str, ...]] = ()
    #: Whether a table reads its runs.
    tabulated: ClassVar[bool] = False
    #: Whether tables set its runs against those of the references of one session: both are then
    #: measured again where one of them changes.
    compared: ClassVar[bool] = False

    def __init_subclass__(cls):
        cls.name = cls.__module__.rpartition(".")[2].replace("_", "-")

    def __init__(self, values: dict, folder: Path):
        self.values, self.folder = values, folder

    @classmethod
    def applies(cls, run: Run, strategy: type[Strategy]) -> bool:
        """Return whether it can capture a run: by default, any that is trained by steps."""
        from escala.workloads import WORKLOADS

        return WORKLOADS[run.workload].kind == "steps"

    @classmethod
    def steps(cls, values: dict) -> int | None:
        """Return how many steps its runs make; None stands for a whole epoch."""
        return values.get("steps")

    def environment(self, strategy: type[Strategy]) -> dict[str, str]:
        """Return environment variables that are added to those of every rank."""
        return {}

    def program(self, interface: str) -> list[str]:
        """Return the command to start on each node beside its ranks, of a probe of `scope` node.

        It should end when the ranks have ended; otherwise it is stopped then. It has the
        environment of the ranks, and what it prints goes to `{name}.log`.

        Parameters
        ----------
        interface : of the network that the ranks exchange over, such as `eth0`.
        """
        raise NotImplementedError

    def around(self, process: int, node: int) -> AbstractContextManager[None]:
        """Return the context in which a process of the run does all its work.

        Parameters
        ----------
        process : its number; it holds one rank or several.
        node : the number of its node.
        """
        return nullcontext()

    def recorder(
        self, process: int, variables: Sequence[tf.Variable], inside: bool
    ) -> Recorder | None:
        """Return what notes the steps of a process, if any is to.

        Parameters
        ----------
        variables : those that are trained.
        inside : whether moments inside the step can be read, as `Strategy.shows_steps` tells.
        """
        return None

    def read(self, processes: list[dict]) -> Any:
        """Return the result of a run whose ranks have ended ok, as `result` describes it.

        Parameters
        ----------
        processes : what each process measured, in their order.
        """
        raise NotImplementedError


def section(description: str, *, enabled: bool, **settings: dict) -> dict:
    """Return the JSON Schema of a probe's key in an experiment.

    Parameters
    ----------
    description : of its runs; the reference page of the configuration shows it.
    enabled : whether an experiment that says nothing of the probe includes its runs.
    settings : JSON Schema of each further key, with a description and a default.
    """
    included = {
        "description": "Whether the whole matrix includes these runs.",
        "type": "boolean",
        "default": enabled,
    }
    return {
        "description": description,
        "type": "object",
        "additionalProperties": False,
        "properties": {"enabled": included, **settings},
        "default": {},
    }
