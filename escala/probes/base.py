"""Define the contract of a probe: its runs, its processes and its result.

A probe run is a separate run of one epoch, without validation and checkpoints. Its folder has the
probe's name in place of `rep1`. The folder of a probe with repeats has the name before `rep1`.
Times of a probe run are never compared with times of timing runs.
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
    values : the values of the probe's settings in the experiment, without `enabled`.
    folder : the run's `ranks/` folder. The names of files that are kept there contain the probe's
        name, such as `rank0.clocks.csv`.
    """

    #: The name of the probe: that of its module's file, with `-` for `_`.
    name: ClassVar[str]
    #: Whether the probe can also capture runs of programs.
    captures_programs: ClassVar[bool] = False
    #: JSON Schema of the probe's key in an experiment, as `section` returns it.
    settings: ClassVar[dict]
    #: JSON Schema of the result of `read`. `run.json` has the result under the probe's name, and
    #: null in other runs. None: the probe leaves only files.
    result: ClassVar[dict | None] = None
    #: Files that the probe may leave alongside `run.json`.
    products: ClassVar[tuple[str, ...]] = ()
    #: Patterns of files in `ranks/` that are removed when the run has ended.
    temporary: ClassVar[tuple[str, ...]] = ()
    #: Whether the engine records each step of the probe's runs, by the module `record_NAME` in the
    #: engine's folder.
    records_steps: ClassVar[bool] = False
    #: `program(interface)` returns a command to start on each node, alongside the ranks of the
    #: node. These ranks exchange over `interface`, a network interface such as `eth0`. The command
    #: should end when the ranks have ended, and is stopped otherwise. It has the environment of the
    #: ranks, and prints to `{name}.log`.
    program: Callable[[str], list[str]] | None = None
    #: Called once before the first epoch, as `measure(engine, rows, gather)`. It may make training
    #: steps on `rows`, the row numbers of each rank; `gather` returns the inputs of `rows`. What
    #: these steps change is restored.
    measure: Callable | None = None
    #: Whether a table reads the probe's runs.
    tabulated: ClassVar[bool] = False
    #: Whether tables compare the probe's runs with the references' runs of the same session. If one
    #: of the two changes, both are measured again.
    compared: ClassVar[bool] = False

    def __init_subclass__(cls):
        cls.name = cls.__module__.rpartition(".")[2].replace("_", "-")

    def __init__(self, values: dict, folder: Path):
        self.values, self.folder = values, folder

    @classmethod
    def applies(cls, run: Any) -> bool:
        """Return whether the probe can capture a run, an `escala.experiment.Run`.

        By default, it can capture a run of a program if `captures_programs`. It can capture another
        run if the run takes steps. A probe that `records_steps` also needs a recorder of the
        engine.
        """
        workload, strategy = run.declared.workload, run.declared.strategy
        if workload.is_program:
            return cls.captures_programs
        is_recorded = not cls.records_steps or strategy.records_for(cls.name)
        return workload.takes_steps and is_recorded

    @classmethod
    def steps(cls, values: dict) -> int | None:
        """Return the number of steps of a probe run; None stands for a whole epoch."""
        return values.get("steps")

    def environment(self, strategy: type[Strategy]) -> dict[str, str]:
        """Return the environment variables to add to those of every rank."""
        return {}

    def around(self, process: int, node: int) -> AbstractContextManager[None]:
        """Return the context in which a process of the run does all its work.

        Parameters
        ----------
        process : number of the process, which has one rank or several.
        node : number of the process's node.
        """
        return nullcontext()

    def read(self, processes: list[dict]) -> Any:
        """Return the result of a run whose ranks ended ok, as `result` describes it.

        Parameters
        ----------
        processes : the measurements of each process, in the order of the processes.
        """
        raise NotImplementedError


def section(description: str, *, enabled: bool, **settings: dict) -> dict:
    """Return the JSON Schema of a probe's key in an experiment.

    Parameters
    ----------
    description : description of its runs, for the reference page of the configuration.
    enabled : whether an experiment without this key includes its runs.
    settings : JSON Schema of each further key, with a description and a default. A key without a
        default may be absent. `determines_run: false` in a schema declares that the key determines
        no run, so a request does not contain the key. The key `repeats` is the number of probe runs
        of each configuration.
    """
    included = value("boolean", "Whether the whole matrix has these runs.", default=enabled)
    properties = {"enabled": included, **settings}
    keys = value("object", description, additionalProperties=False, properties=properties)
    return keys | {"default": {}}


def value(kind: str, description: str, unit: str | None = None, **more: object) -> dict:
    """Return the JSON Schema of a value.

    Parameters
    ----------
    kind : JSON type of the value, such as `number`; a `number?` may also be null.
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
