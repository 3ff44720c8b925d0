"""The processes of a run as JAX has them. A module of a strategy names its class `RANKS`."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from escala.engines.base import Group


class Ranks(Group):
    """One process among those of a run, and how its ranks exchange arrays of JAX."""

    def summed(self, arrays: Sequence[jax.Array]) -> Sequence[jax.Array]:
        """Return the sums of some arrays over all ranks; every rank must call it."""
        return arrays

    def broadcast(self, arrays: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
        """Return the arrays that rank 0 gives; every rank must call it."""
        return arrays
