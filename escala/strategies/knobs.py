"""The knobs of a variant: their declarations, and who reads them.

Those of strategies are declared in `knobs.yaml`, whose head says how, here and in the folder of an
engine, and those of a workload in its `workload.yaml`.

A request holds the knobs that its run reads.
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

#: Keys of a declaration that do not restrict the value.
_ABOUT = ("default", "synchronous")
_FILE = Path(__file__).with_name(KNOBS)


class Knob(NamedTuple):
    """The declaration of a knob.

    Attributes
    ----------
    schema : JSON Schema of its value, with the default.
    strategies : those whose runs read it.
    is_about_process : whether it is about how a process is started, whatever trains in it.
        Otherwise it is for workloads that take steps.
    workload : the workload that declares it, None for those of strategies.
    """

    schema: dict[str, Any]
    strategies: frozenset[str]
    is_about_process: bool = False
    workload: str | None = None

    @property
    def synchronous(self) -> Sequence[Any]:
        """Values with which ranks exchange while they compute."""
        return self.schema.get("synchronous", ())

    @property
    def default(self) -> Any:
        return self.schema["default"]

    @property
    def read_by(self) -> list[str]:
        """The names of those that read it: strategies, or a workload; empty for all."""
        if self.workload:
            return [self.workload]
        if len(self.strategies) == len(STRATEGIES):
            return []
        return [name for name in STRATEGIES if name in self.strategies]

    @property
    def value(self) -> dict[str, Any]:
        """JSON Schema of its value without the default, as `run.json` records it."""
        return {key: value for key, value in self.schema.items() if key not in _ABOUT}


def strategy_knobs() -> dict[str, Knob]:
    """Return the knobs that runs of any workload may read, by name."""
    return dict(_read_declarations(tuple(STRATEGIES.values())))


def workload_knobs(workload: str) -> dict[str, Knob]:
    """Return the knobs that a workload declares, by name; none if it is not known here."""
    if workload not in WORKLOADS:
        return {}
    declared = WORKLOADS[workload]
    every = frozenset(STRATEGIES)
    return {name: Knob(schema, every, workload=workload) for name, schema in declared.knobs.items()}


def all_knobs() -> dict[str, Knob]:
    """Return every knob by name.

    Raises
    ------
    InputError : workloads give one name to knobs of other values, or that of a strategy's knob.
    """
    knobs = strategy_knobs()
    for workload, declared in WORKLOADS.items():
        for name, knob in workload_knobs(workload).items():
            if name in knobs and _value_schema(knobs[name]) != _value_schema(knob):
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
    """Return the knobs that a run reads.

    Parameters
    ----------
    knobs : of the variant.
    strategy, workload : of the run.
    takes_steps : whether the workload does.

    Raises
    ------
    KeyError : a knob is not declared.
    """
    known = all_knobs()
    read = readable(known, strategy, takes_steps) | workload_knobs(workload)
    return {name: value for name, value in sorted(knobs.items()) if known[name] and name in read}


def readable(knobs: Mapping[str, Any], strategy: str, takes_steps: bool = True) -> dict[str, Any]:
    """Return the knobs that a strategy may read for workloads that take steps, or for others.

    Asking for another is a `KeyError`.
    """
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
    """Return the knobs that a workload may read: asking for another is a `KeyError`."""
    declared = workload_knobs(workload)
    return {name: value for name, value in knobs.items() if name in declared}


def complete(knobs: Mapping[str, Any], workload: str) -> dict[str, Any]:
    """Return all knobs of a run: those given, and the defaults of the others."""
    declared = strategy_knobs() | workload_knobs(workload)
    return {name: knob.default for name, knob in declared.items()} | dict(knobs)


def threads_of(knobs: Mapping[str, Any], processes: int = 1) -> dict[str, int]:
    """Return the threads of a process: those of the knobs, and otherwise one for each core.

    Parameters
    ----------
    knobs : complete.
    processes : of the layout whose cores one process has.
    """
    cores = knobs["cores_per_process"] * processes
    return dict.fromkeys(("intra_op", "inter_op"), cores) | knobs["threads"]


def _value_schema(knob: Knob) -> dict[str, Any]:
    return {key: value for key, value in knob.schema.items() if key != "description"}


@cache
def _read_declarations(strategies: tuple[type, ...]) -> tuple[tuple[str, Knob], ...]:
    classes = {
        strategy.name: {base.__name__ for base in strategy.__mro__} for strategy in strategies
    }
    knobs: dict[str, Knob] = {}
    files = [_FILE, *filter(Path.is_file, (FOLDER / engine / KNOBS for engine in ENGINES))]
    for file, name, schema in ((f, *declared) for f in files for declared in read_yaml(f).items()):
        read_by = set(schema.pop("read_by", [Strategy.__name__]))
        if name in knobs:
            raise InputError(file, name, "is also the name of another knob", "rename it")
        if unknown := read_by.difference(*classes.values()):
            reason, remedy = "is the class of no strategy", "name one, or a class they derive from"
            raise InputError(f"{file}: {name}.read_by", min(unknown), reason, remedy)
        readers = frozenset(strategy for strategy, bases in classes.items() if read_by & bases)
        knobs[name] = Knob(schema, readers, schema.pop("about", None) == "process")
    return tuple(knobs.items())
