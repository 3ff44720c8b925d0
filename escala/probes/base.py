"""Define the contract of a probe: its runs, its processes and its result.

A probe run is a run of its own: one epoch, without validation and checkpoints, in a folder that has
the probe's name in place of `rep1`, or before it if the probe has repeats. Its times are never
compared with those of timing runs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from escala.strategies.base import Strategy


class Recorder(Protocol):
    """Records the steps of one process."""

    def note(self, epoch: int, step: int, began: float, gathered: float, returned: float) -> None:
        """Record the moments of a finished step, in seconds of `time.perf_counter`."""

    def write(self) -> None:
        """Write the record."""


class Probe:
    """Capture more of one run than its result. Each process of the run has its own instance.

    Parameters
    ----------
    values : the values of its settings in the experiment, without `enabled`.
    folder : the run's `ranks/` folder. The names of files that are kept there contain the probe's
        name, such as `rank0.clocks.csv`.
    """

    #: The name of its module's file, with `-` for `_`.
    name: ClassVar[str]
    #: Whether it can capture runs of programs, besides those of workloads that take steps.
    captures_programs: ClassVar[bool] = False
    #: JSON Schema of its key in an experiment, as `section` returns it.
    settings: ClassVar[dict]
    #: JSON Schema of the result of `read`, which `run.json` holds under the probe's name, null in
    #: other runs; None for a probe that leaves only files.
    result: ClassVar[dict | None] = None
    #: Files that it may leave alongside `run.json`.
    products: ClassVar[tuple[str, ...]] = ()
    #: Patterns of files in `ranks/` that are removed when the run has ended.
    temporary: ClassVar[tuple[str, ...]] = ()
    #: Whether the engine records each step of its runs, by the module `record_NAME` of its folder.
    records_steps: ClassVar[bool] = False
    #: `program(interface)` returns a command to start on each node beside its ranks, which exchange
    #: over this network interface, such as `eth0`. The command should end when the ranks have
    #: ended, and is stopped otherwise. It has their environment, and prints to `{name}.log`.
    program: Callable[[str], list[str]] | None = None
    #: Called once before the first epoch, as `measure(engine, step, gather)`: it may make steps of
    #: the row numbers `step`, whose inputs `gather` returns. What these steps change is restored.
    measure: Callable | None = None
    #: Whether a table reads its runs.
    tabulated: ClassVar[bool] = False
    #: Whether tables compare its runs with those of the references, of one session. Both are then
    #: measured again when one of them changes.
    compared: ClassVar[bool] = False

    def __init_subclass__(cls):
        cls.name = cls.__module__.rpartition(".")[2].replace("_", "-")

    def __init__(self, values: dict, folder: Path):
        self.values, self.folder = values, folder

    @classmethod
    def applies(cls, run: Any) -> bool:
        """Return whether it can capture a run, an `escala.experiment.Run`.

        By default, a run of a program if `captures_programs`; another run if it takes steps, and
        if the engine has a recorder for a probe that `records_steps`.
        """
        workload, strategy = run.declared.workload, run.declared.strategy
        if workload.is_program:
            return cls.captures_programs
        is_recorded = not cls.records_steps or strategy.records_for(cls.name)
        return workload.takes_steps and is_recorded

    @classmethod
    def steps(cls, values: dict) -> int | None:
        """Return the number of steps of its runs; None stands for a whole epoch."""
        return values.get("steps")

    def environment(self, strategy: type[Strategy]) -> dict[str, str]:
        """Return the environment variables to add to those of every rank."""
        return {}

    def around(self, process: int, node: int) -> AbstractContextManager[None]:
        """Return the context in which a process of the run does all its work.

        Parameters
        ----------
        process : its number; it holds one rank or several.
        node : the number of its node.
        """
        return nullcontext()

    def read(self, processes: list[dict]) -> Any:
        """Return the result of a run whose ranks ended ok, in the form of `result`.

        Parameters
        ----------
        processes : the measurements of each process, in their order.
        """
        raise NotImplementedError


def section(description: str, *, enabled: bool, **settings: dict) -> dict:
    """Return the JSON Schema of a probe's key in an experiment.

    Parameters
    ----------
    description : description of its runs, for the reference page of the configuration.
    enabled : whether an experiment without this key includes its runs.
    settings : JSON Schema of each further key, with a description and a default. A key without a
        default may be absent. `determines_run: false` next to them declares that the key
        determines no run, so a request does not contain it. A probe with the key
        `repeats` has as many runs of each configuration.
    """
    included = value("boolean", "Whether the whole matrix includes these runs.", default=enabled)
    properties = {"enabled": included, **settings}
    keys = value("object", description, additionalProperties=False, properties=properties)
    return keys | {"default": {}}


def value(kind: str, description: str, unit: str | None = None, **more: object) -> dict:
    """Return the JSON Schema of a value.

    Parameters
    ----------
    kind : its JSON type, such as `number`; `number?` may also be null.
    more : further keywords, such as limits and a default.
    """
    json_type = kind.removesuffix("?")
    types = json_type if json_type == kind else [json_type, "null"]
    schema = {"description": description, "type": types}
    return schema | ({"unit": unit} if unit else {}) | more


def object_schema(properties: dict) -> dict:
    """Return the JSON Schema of an object that has exactly these properties."""
    return {
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": properties,
    }
