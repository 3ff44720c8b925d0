"""References: the configurations that a configuration is compared with.

An experiment lists its references in order, the main one first. A reference names a strategy and a
layout, and may name a variant and a network. By default it takes these from the configuration that
is compared. Every configuration is compared with each reference; a reference is compared with those
listed before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from escala.runtime.layout import Layout

#: The name in place of a network for a layout of one node, which uses none.
NATIVE = "native"


class Configuration(NamedTuple):
    """Strategy, layout, variant and network under which a workload is trained."""

    strategy: str
    layout: str
    variant: str
    network: str

    def __str__(self) -> str:
        return " ".join(part for part in self if part != NATIVE)


ONE_PROCESS = ("single", "1x1")
#: The reference of an experiment that lists none: one process under the same variant.
DEFAULT = (dict(zip(("strategy", "layout"), ONE_PROCESS, strict=True)),)

Reference = Mapping[str, str]


def resolved(reference: Reference, configuration: Configuration) -> Configuration:
    """Return the configuration that a reference means for a configuration compared with it."""
    several = Layout.parse(reference["layout"]).nodes > 1
    return Configuration(
        reference["strategy"],
        reference["layout"],
        reference.get("variant", configuration.variant),
        reference.get("network", configuration.network) if several else NATIVE,
    )


def number_of(configuration: Configuration, references: Sequence[Reference]) -> int | None:
    """Return the number, from 1, of the reference that a configuration is, or None."""
    found = [resolved(reference, configuration) for reference in references]
    return found.index(configuration) + 1 if configuration in found else None


def compared_with(
    configuration: Configuration, references: Sequence[Reference]
) -> Iterator[tuple[int, Configuration]]:
    """Yield number and configuration of every reference that a configuration is compared with."""
    end = (number_of(configuration, references) or len(references) + 1) - 1
    seen = set()
    for number, reference in enumerate(references[:end], start=1):
        found = resolved(reference, configuration)
        if found not in seen:
            yield number, found
        seen.add(found)
