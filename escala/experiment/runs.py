"""The runs of an experiment: their names and folders, their references, and words for them.

An experiment lists its references in order, the main one first. A reference names a strategy and a
layout, and may name a variant and a network. Without a variant or a network, the reference has the
variant or the network of the configuration that is compared with it. A configuration of one node
has the network `native`. Every configuration is compared with each reference. A reference is
compared only with the references that are listed before it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from escala.core.engines import DEFAULT, ENGINES
from escala.core.readable import in_words
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES
from escala.strategies.base import Strategy
from escala.workloads import Workload

#: The network name in every configuration of one node. Such a configuration uses no network. An
#: experiment may define a network of this name for its configurations of several nodes.
NATIVE = "native"


class Configuration(NamedTuple):
    """Strategy, layout, variant and network under which a workload is trained."""

    strategy: str
    layout: Layout
    variant: str
    network: str

    def __str__(self) -> str:
        return " ".join(self[:-1] if self.network == NATIVE else self)


#: Strategy and layout of a run in one process, of each engine and of the first one.
ALONE = {name: (engine.one_process, "1x1") for name, engine in ENGINES.items()}
ONE_PROCESS = ALONE[DEFAULT]
#: The references of an experiment without `references`: one process with the same variant.
DEFAULT_REFERENCES = ({"strategy": ONE_PROCESS[0], "layout": ONE_PROCESS[1]},)

Reference = Mapping[str, str]


def one_process(strategy: str) -> tuple[str, str]:
    """Return strategy and layout of a run in one process of the engine of a strategy."""
    engine = STRATEGIES[strategy].engine or DEFAULT
    return ALONE[engine.partition(".")[0]]


def resolve(reference: Reference, configuration: Configuration) -> Configuration:
    """Return a reference as a configuration, with missing names from the compared configuration.

    A reference of one node uses no network, even if it names one.
    """
    layout = Layout.parse(reference["layout"])
    return Configuration(
        reference["strategy"],
        layout,
        reference.get("variant", configuration.variant),
        reference.get("network", configuration.network) if layout.nodes > 1 else NATIVE,
    )


#: The number of the main reference.
MAIN = 1


def reference_number(configuration: Configuration, references: Sequence[Reference]) -> int | None:
    """Return the position of a configuration in the references, from 1; None if it is not there."""
    for number, reference in enumerate(references, start=1):
        if resolve(reference, configuration) == configuration:
            return number
    return None


def references_for(
    configuration: Configuration, references: Sequence[Reference]
) -> Iterator[tuple[int, Configuration]]:
    """Yield the number and the configuration of every reference of a configuration."""
    number_of_itself = reference_number(configuration, references)
    earlier = references if number_of_itself is None else references[: number_of_itself - 1]
    seen = set()
    for number, reference in enumerate(earlier, start=1):
        other = resolve(reference, configuration)
        if other not in seen:
            yield number, other
        seen.add(other)


#: The link of a layout of one node, even if the experiment defines a network `native`.
NO_LINK = {"interface": None, "rate": None, "steps": None}
#: Value of `Run.series` for the duplicate run of a reference.
DUPLICATE = "duplicate"


@dataclass(frozen=True)
class Declared:
    """Workload, strategy, variant and link of a run, as values.

    Attributes
    ----------
    variant : its settings, with every knob.
    link : the settings of its network; `NO_LINK` on one node.
    """

    workload: Workload
    strategy: type[Strategy]
    variant: Mapping[str, Any]
    link: Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """One run of an experiment, identified by names.

    Attributes
    ----------
    repeat : from 1; None for a run of a probe without `repeats`.
    instrument : the name of the probe; None for a timing run.
    series : the ladder's rung that the run is a side of; `DUPLICATE` for the second run of a
        reference; None for every other run.
    declared : the values that the names stand for. They are not compared.
    """

    experiment: str
    dataset: str
    workload: str
    strategy: str
    layout: Layout
    variant: str
    network: str
    repeat: int | None
    instrument: str | None = None
    series: str | None = None
    declared: Declared = field(default=None, compare=False, repr=False)

    @property
    def names(self) -> dict[str, Any]:
        """Return the fields that identify the run, as `run.json` holds them."""
        return {name: getattr(self, name) for name in NAMES}

    @property
    def folder(self) -> str:
        """The run's folder; its result is `run.json` in it."""
        repeat = f"rep{self.repeat}" if self.repeat else None
        last = ".".join(filter(None, (self.series, self.instrument, repeat)))
        return (
            f"results/{self.experiment}/runs/{self.dataset}/{self.workload}/{self.strategy}/"
            f"{self.layout}/{self.variant}/{self.network}/{last}"
        )

    @property
    def file(self) -> str:
        return f"{self.folder}/run.json"

    @property
    def cores(self) -> int:
        """The cores that the run needs on each of its nodes."""
        return self.layout.processes * self.declared.variant["cores_per_process"]

    @property
    def configuration(self) -> Configuration:
        return Configuration(self.strategy, self.layout, self.variant, self.network)


NAMES = tuple(part.name for part in fields(Run) if part.compare)


@dataclass(frozen=True)
class Rung:
    """Two configurations timed in turns: neighbours on a ladder, or its two ends.

    `number` counts the rungs from 1. For the two ends, `number` is None. `before` and `after` are
    strategy, layout, variant and network. For neighbours, `change` says what differs.
    """

    name: str
    ladder: str
    number: int | None
    before: Configuration
    after: Configuration
    change: str | None


def where_listed(run: Run) -> str:
    """Return the key of the settings under which a run is listed, for messages."""
    return f"{'ladders' if is_of_ladder(run) else 'configurations'}: {run.strategy}"


def is_of_ladder(run: Run) -> bool:
    """Return whether a run is one side of a rung of a ladder."""
    return run.series not in (None, DUPLICATE)


def takes_steps(run: Run) -> bool:
    return run.declared.workload.takes_steps


def engines_of(runs: Iterable[Run]) -> set[str]:
    """Return the names of the engines that train in runs; a fit and a program need none."""
    return {run.declared.strategy.engine.partition(".")[0] for run in runs if takes_steps(run)}


def is_compared(run: Run) -> bool:
    """Return whether the time of a run is compared. The time of a fit is not."""
    return not run.declared.workload.is_fitted


def configuration_of(side: Mapping[str, str]) -> Configuration:
    """Return the configuration of a side of a ladder's rung."""
    layout = Layout.parse(side["layout"])
    network = side["network"] if layout.nodes > 1 else NATIVE
    return Configuration(side["strategy"], layout, side["variant"], network)


def strategy_in_words(name: str) -> str:
    """Return words for how processes train together by a strategy; its name if it is unknown."""
    return STRATEGIES[name].title if name in STRATEGIES else name


def layout_in_words(layout: str, strategy: str = "", threads: int = 1) -> str:
    """Describe a layout: `two processes on one node`, or `one process with two threads`.

    Parameters
    ----------
    strategy : the name of the strategy. Some strategies run all ranks of a node in one process.
    threads : the threads of each process. A single thread is not mentioned.
    """
    parsed, known = Layout.parse(layout), STRATEGIES.get(strategy)
    ranks, several = in_words(parsed.ranks), parsed.ranks > 1
    if several and known is not None and known.layouts.process_per_node and known.engine:
        return f"one process with {ranks} copies of the model"
    text = f"{ranks} processes" if several else "one process"
    if several:
        text += f" on {in_words(parsed.nodes)} node{'s' * (parsed.nodes > 1)}"
    if threads > 1:
        text += f" with {in_words(threads)} threads{' each' * several}"
    return text
