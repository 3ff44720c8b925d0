"""The base of the synchronous strategies of `tf.distribute`."""

from __future__ import annotations

from escala.strategies.base import Strategy


class Distribute(Strategy):
    """Ranks whose gradients the optimizer sums."""
