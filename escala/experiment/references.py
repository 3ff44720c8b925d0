"""Which configurations a configuration is compared with.

An experiment lists its references in order, the main one first. A reference names a strategy and a
layout, and may name a variant and a network; those it leaves out are the variant and the network of
the configuration compared. Every configuration is compared with each reference, and a reference
with those listed before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from escala.runtime.layout import Layout

#: The network of a layout of one node, which uses none.
NATIVE = "native"


class Place(NamedTuple):
    """Under what a workload is trained: the parts of a configuration's name besides its data."""

    strategy: str
    layout: str
    variant: str
    network: str

    def __str__(self) -> str:
        return " ".join(part for part in self if part != NATIVE)


ONE_PROCESS = ("single", "1x1")
#: What an experiment that lists no references compares with: one process under the same variant.
DEFAULT = (dict(zip(("strategy", "layout"), ONE_PROCESS, strict=True)),)

Reference = Mapping[str, str]


def resolved(reference: Reference, place: Place) -> Place:
    """Return the configuration that a reference means for the one at `place`."""
    several = Layout.parse(reference["layout"]).nodes > 1
    return Place(
        reference["strategy"],
        reference["layout"],
        reference.get("variant", place.variant),
        reference.get("network", place.network) if several else NATIVE,
    )


def number_of(place: Place, references: Sequence[Reference]) -> int | None:
    """Return which of the references, counted from 1, a configuration is, or None."""
    found = [resolved(reference, place) for reference in references]
    return found.index(place) + 1 if place in found else None


def compared_with(place: Place, references: Sequence[Reference]) -> Iterator[tuple[int, Place]]:
    """Yield the number and the configuration of every reference that one is compared with."""
    end = (number_of(place, references) or len(references) + 1) - 1
    seen = set()
    for number, reference in enumerate(references[:end], start=1):
        found = resolved(reference, place)
        if found not in seen:
            yield number, found
        seen.add(found)
