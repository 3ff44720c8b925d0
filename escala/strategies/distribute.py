"""The base of synchronous strategies of `tf.distribute`, and what every one of these refuses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from escala.strategies.base import Strategy


def updates_by_itself(knobs: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the knob of an optimizer that updates variables itself, without Keras's sums."""
    if knobs.get("optimizer") == "one-pass":
        reason = "does not sum the gradients of ranks by tf.distribute, which Keras's updates do"
        yield "optimizer", reason, "use fused"


class Distribute(Strategy):
    """Ranks whose gradients the optimizer sums."""

    @classmethod
    def refused(cls, knobs, checkpoint_epochs):
        yield from updates_by_itself(knobs)
