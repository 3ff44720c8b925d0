"""The knobs of a variant: the declaration of each knob, and its readers.

Knobs of strategies are declared in `knobs.yaml`, in this folder and in the folder of each engine.
The head of the file in this folder says how. Knobs of a workload are declared in its
`workload.yaml`. A request holds the knobs that its run reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from escala.core.engines import ENGINES, FOLDER
from escala.core.errors import InputError
from escala.core.files import read_yaml
from escala.strategies import KNOBS, STRATEGIES, Strategy
from escala.workloads import WORKLOADS

_FILE = Path(__file__).with_name(KNOBS)


class Knob(NamedTuple):
    """The declaration of a knob.

    Attributes
    ----------
    schema : JSON Schema of the knob's value, with the default.
    strategies : the strategies whose runs read the knob.
    is_about_process : whether the knob is about the start of a process. Such a knob is read for
        every workload; another knob only for workloads that take steps.
    workload : the workload that declares the knob; None for a knob of strategies.
    """

    schema: dict[str, Any]
    strategies: frozenset[str]
    is_about_process: bool = False
    workload: str | None = None

    @property
    def exchanging(self) -> Sequence[Any]:
        """Values with which the model itself exchanges in the middle of a step.

        An example is synchronised batch normalisation. All ranks must make each step together.
        """
        return self.schema.get("synchronous", ())

    @property
    def default(self) -> Any:
        return self.schema["default"]

    @property
    def read_by(self) -> list[str]:
        """The names of its readers: strategies, or a workload. Empty if all strategies read it."""
        if self.workload:
            return [self.workload]
        if len(self.strategies) == len(STRATEGIES):
            return []
        return [name for name in STRATEGIES if name in self.strategies]

    @property
    def value_schema(self) -> dict[str, Any]:
        """JSON Schema of its value in `run.json`, without a default."""
        keys = self.schema.keys() - {"default", "synchronous"}
        return {key: value for key, value in self.schema.items() if key in keys}


def strategy_knobs() -> dict[str, Knob]:
    """Return the knobs that runs of any workload may read, by name."""
    return dict(_read_declarations(tuple(STRATEGIES.values())))


def workload_knobs(workload: str) -> dict[str, Knob]:
    """Return the knobs that a workload declares, by name; none for an unknown workload."""
    if workload not in WORKLOADS:
        return {}
    declared = WORKLOADS[workload]
    every = frozenset(STRATEGIES)
    return {name: Knob(schema, every, workload=workload) for name, schema in declared.knobs.items()}


def all_knobs() -> dict[str, Knob]:
    """Return every knob by name.

    Raises
    ------
    InputError : two workloads give one name to knobs with different values, or a workload uses the
        name of a strategy's knob.
    """
    knobs = strategy_knobs()
    for workload, declared in WORKLOADS.items():
        for name, knob in workload_knobs(workload).items():
            # Two workloads may describe the same knob in different words.
            same = knob.schema | {"description": ""}
            if name in knobs and knobs[name].schema | {"description": ""} != same:
                raise InputError(
                    f"{declared.folder / 'workload.yaml'}: knobs",
                    name,
                    "is a knob of other values elsewhere",
                    "choose another name",
                )
            knobs.setdefault(name, knob)
    return knobs


def read_by_run(
    knobs: Mapping[str, Any], strategy: str, workload: str, takes_steps: bool = True
) -> dict[str, Any]:
    """Return the values of the knobs of a variant that a run reads, in alphabetical order.

    Raises
    ------
    KeyError : a knob is not declared.
    """
    known = all_knobs()
    if unknown := knobs.keys() - known.keys():
        raise KeyError(min(unknown))
    read = read_by_strategy(known, strategy, takes_steps) | workload_knobs(workload)
    return {name: knobs[name] for name in sorted(knobs.keys() & read.keys())}


def read_by_strategy(
    knobs: Mapping[str, Any], strategy: str, takes_steps: bool = True
) -> dict[str, Any]:
    """Return the given knobs that a strategy reads, for a workload with or without steps."""
    read = {
        name
        for name, knob in strategy_knobs().items()
        if strategy in knob.strategies and (takes_steps or knob.is_about_process)
    }
    return {name: value for name, value in knobs.items() if name in read}


def reads(strategy: str, knob: str) -> bool:
    """Return whether a strategy reads a knob."""
    return strategy in strategy_knobs()[knob].strategies


def model_knobs(knobs: Mapping[str, Any], workload: str) -> dict[str, Any]:
    """Return the given knobs that a workload declares."""
    declared = workload_knobs(workload)
    return {name: value for name, value in knobs.items() if name in declared}


def complete(knobs: Mapping[str, Any], workload: str) -> dict[str, Any]:
    """Return the values of all knobs of a run: the values in `knobs`, otherwise the defaults."""
    declared = strategy_knobs() | workload_knobs(workload)
    return {name: knob.default for name, knob in declared.items()} | dict(knobs)


def threads_of(knobs: Mapping[str, Any], ranks: int = 1) -> dict[str, int]:
    """Return the threads of a process: as its knobs state, otherwise one for each core.

    Parameters
    ----------
    knobs : all knobs of the run.
    ranks : the number of ranks of the process; more than one only for a strategy with one process
        per node.
    """
    cores = knobs["cores_per_process"] * ranks
    return dict.fromkeys(("intra_op", "inter_op"), cores) | knobs["threads"]


@cache
def _read_declarations(strategies: tuple[type, ...]) -> tuple[tuple[str, Knob], ...]:
    bases = {strategy.name: {base.__name__ for base in strategy.__mro__} for strategy in strategies}
    files = [_FILE, *filter(Path.is_file, (FOLDER / engine / KNOBS for engine in ENGINES))]
    knobs: dict[str, Knob] = {}
    for file in files:
        for name, schema in read_yaml(file).items():
            if name in knobs:
                raise InputError(file, name, "is also the name of another knob", "rename it")
            classes = set(schema.pop("read_by", [Strategy.__name__]))
            if unknown := classes.difference(*bases.values()):
                reason = "is the class of no strategy"
                remedy = "name a strategy's class, or a base class of it"
                raise InputError(f"{file}: {name}.read_by", min(unknown), reason, remedy)
            readers = frozenset(strategy for strategy in bases if classes & bases[strategy])
            knobs[name] = Knob(schema, readers, schema.pop("about", None) == "process")
    return tuple(knobs.items())
