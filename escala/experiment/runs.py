"""The runs of an experiment: their names and folders."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from escala.experiment.references import NATIVE, Configuration
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES
from escala.workloads import WORKLOADS

#: Value of `Run.series` for the duplicate run of a reference.
DUPLICATE = "duplicate"


@dataclass(frozen=True)
class Run:
    """One cell of the matrix.

    `instrument` is the name of the probe, None for a timing run. `repeat` is None for a run of a
    probe without `repeats`.
    `series` is the name of the ladder's rung that the run is one side of, or `DUPLICATE`
    for the second run of a reference; None for all others.
    """

    experiment: str
    dataset: str
    workload: str
    strategy: str
    layout: str
    variant: str
    network: str
    repeat: int | None
    instrument: str | None = None
    series: str | None = None

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
    def configuration(self) -> Configuration:
        return Configuration(self.strategy, self.layout, self.variant, self.network)


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
    return WORKLOADS[run.workload].kind == "steps"


def engines_of(runs: Iterable[Run]) -> set[str]:
    """Return the names of the engines that train in runs; a fit and a program need none."""
    return {STRATEGIES[run.strategy].engine.partition(".")[0] for run in filter(takes_steps, runs)}


def is_compared(run: Run) -> bool:
    """Return whether the time of a run is compared: that of a fit is not."""
    return WORKLOADS[run.workload].kind != "fit"


def configuration_of(place: dict) -> Configuration:
    """Return the configuration of a place on a ladder; one node uses no network."""
    several = Layout.parse(place["layout"]).nodes > 1
    network = place["network"] if several else NATIVE
    return Configuration(place["strategy"], place["layout"], place["variant"], network)
