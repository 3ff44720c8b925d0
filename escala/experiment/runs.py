"""The runs of an experiment: their names and folders."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from escala.experiment.references import NATIVE, Configuration
from escala.runtime.layout import Layout
from escala.strategies.base import Strategy
from escala.workloads import Workload

#: A layout of one node uses no network, even if the experiment defines a network `native`.
NO_LINK = {"interface": None, "rate": None, "steps": None}
#: Value of `Run.series` for the duplicate run of a reference.
DUPLICATE = "duplicate"


@dataclass(frozen=True)
class Declared:
    """Workload, strategy, variant and link of a run, as values.

    Attributes
    ----------
    variant : its settings, with every knob.
    link : settings of its network; those of no network on one node.
    """

    workload: Workload
    strategy: type[Strategy]
    variant: Mapping[str, Any]
    link: Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """One cell of the matrix.

    `instrument` is the name of the probe, None for a timing run. `repeat` is None for a run of a
    probe without `repeats`.
    `series` is the name of the ladder's rung that the run is one side of, or `DUPLICATE`
    for the second run of a reference; None for all others. `declared` is what the names stand for;
    it makes no run another.
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
        """The cores that it needs on each of its nodes."""
        return self.layout.processes * self.declared.variant["cores_per_process"]

    @property
    def configuration(self) -> Configuration:
        return Configuration(self.strategy, self.layout, self.variant, self.network)


NAMES = tuple(each.name for each in fields(Run) if each.compare)


@dataclass(frozen=True)
class Rung:
    """Two configurations timed in turns: neighbours on a ladder, or its two ends.

    `number` counts the rungs from 1 and is None for the ends. `before` and `after` are
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
    """Return whether the time of a run is compared: that of a fit is not."""
    return not run.declared.workload.is_fitted


def configuration_of(place: dict) -> Configuration:
    """Return the configuration of a place on a ladder; one node uses no network."""
    layout = Layout.parse(place["layout"])
    network = place["network"] if layout.nodes > 1 else NATIVE
    return Configuration(place["strategy"], layout, place["variant"], network)
