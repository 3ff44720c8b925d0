"""Hold a measured ratio against the one that the cost model predicts."""

from __future__ import annotations

from typing import NamedTuple

from escala.analysis.statistics import Interval
from escala.analysis.verdicts import FASTER, Ratio, pays
from escala.experiment.references import Configuration


class Measured(NamedTuple):
    """A measured ratio of the times of an epoch, as that by which the page answers.

    Attributes
    ----------
    sessions : over which it is, with what they differ by; None for the current runs.
    """

    ratio: Ratio
    verdict: str
    reference: Configuration
    sessions: int | None = None

    @property
    def interval(self) -> Interval:
        return Interval(self.ratio.value, self.ratio.low, self.ratio.high)

    def speedup(self, baseline: Configuration) -> dict | None:
        """Return the speed-up over a baseline with the number of matches; None if over another."""
        if self.reference != baseline:
            return None
        value, low, high = self.interval
        return Interval(1 / value, 1 / high, 1 / low)._asdict() | {"matches": self.ratio.matches}


class Comparison(NamedTuple):
    """A measured ratio, and the predicted one to the same reference."""

    measured: Measured
    predicted: Interval

    @property
    def contradict(self) -> bool:
        """Return whether the intervals are disjoint, or only one of the two pays."""
        found = self.measured.interval
        apart = found.low > self.predicted.high or found.high < self.predicted.low
        return apart or (self.measured.verdict == FASTER) != pays(self.predicted)
