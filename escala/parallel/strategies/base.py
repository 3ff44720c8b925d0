"""The contract of a strategy: start, gather gradients, agree on weights, stop."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    import tensorflow as tf


class Strategy(ABC):
    """One rank's side of a strategy. `start` comes first; before it no library is loaded.

    Parameters
    ----------
    knobs : the variant's settings.
    """

    name: ClassVar[str]
    #: The launcher in `escala.parallel.launch` that starts its ranks.
    launcher: ClassVar[str]
    only_one_rank: ClassVar[bool] = False
    writes_timeline: ClassVar[bool] = False

    def __init__(self, knobs: dict):
        self.knobs = knobs

    @staticmethod
    def environment(knobs: dict) -> dict[str, str]:
        """Return the environment variables its library reads."""
        return {}

    @staticmethod
    def timeline_environment(path: Path) -> dict[str, str]:
        """Return what makes its library write a timeline to `path`, if it `writes_timeline`."""
        return {}

    @abstractmethod
    def start(self) -> tuple[int, int]:
        """Join the other ranks; return this rank's number and how many there are."""

    @abstractmethod
    def tape(self, tape: tf.GradientTape) -> tf.GradientTape:
        """Return a tape whose gradients are the sums over all ranks."""

    @abstractmethod
    def broadcast(self, variables: list[tf.Variable]) -> None:
        """Give every rank the values that rank 0 holds."""

    @abstractmethod
    def total(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of a float64 vector over all ranks; every rank must call it."""

    @abstractmethod
    def stop(self) -> None:
        """Leave the other ranks."""
