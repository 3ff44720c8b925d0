"""References: the configurations that a configuration is compared with.

An experiment lists its references in order, the main one first. A reference names a strategy and a
layout, and may name a variant and a network. Those that it does not name
default to those of the configuration that is compared with it. A configuration of one node has the
network `native`. Every configuration is compared with each reference; a reference is compared with
those listed before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from escala.core.engines import DEFAULT, ENGINES
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES

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
#: The references of an experiment that lists none: one process under the same variant.
DEFAULT_REFERENCES = ({"strategy": ONE_PROCESS[0], "layout": ONE_PROCESS[1]},)

Reference = Mapping[str, str]


def one_process(strategy: str) -> tuple[str, str]:
    """Return strategy and layout of a run in one process of the engine of a strategy."""
    engine = STRATEGIES[strategy].engine or DEFAULT
    return ALONE[engine.partition(".")[0]]


def resolve(reference: Reference, configuration: Configuration) -> Configuration:
    """Fill a reference's missing parts from the configuration compared with it.

    A reference of one node uses no network, even if it names one.
    """
    layout = Layout.parse(reference["layout"])
    return Configuration(
        reference["strategy"],
        layout,
        reference.get("variant", configuration.variant),
        reference.get("network", configuration.network) if layout.nodes > 1 else NATIVE,
    )


def reference_number(configuration: Configuration, references: Sequence[Reference]) -> int | None:
    """If a configuration is a reference, return its position from 1, else None."""
    for number, reference in enumerate(references, start=1):
        if resolve(reference, configuration) == configuration:
            return number
    return None


def compared_with(
    configuration: Configuration, references: Sequence[Reference]
) -> Iterator[tuple[int, Configuration]]:
    """Yield number and configuration of every reference that a configuration is compared with."""
    own = reference_number(configuration, references)
    earlier = references if own is None else references[: own - 1]
    seen = set()
    for number, reference in enumerate(earlier, start=1):
        other = resolve(reference, configuration)
        if other not in seen:
            yield number, other
        seen.add(other)
