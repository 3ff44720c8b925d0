"""Let what was measured of configurations count before what is predicted of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from scipy import stats

from escala.analysis.advice.candidates import ONLY_STEPS, Candidate
from escala.analysis.advice.evidence import Measured, measured_ratios
from escala.analysis.cost_model.calibration import LEVEL
from escala.analysis.cost_model.predict import interval
from escala.analysis.statistics import Interval
from escala.analysis.verdicts import FASTER, pays
from escala.experiment.references import Configuration


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


def with_measured(
    candidates: Sequence[Candidate], table: Sequence[Mapping], task: tuple[str, str]
) -> list[Candidate]:
    """Return candidates whose seconds follow measured ratios, where there are some.

    A candidate then takes the seconds of its reference multiplied by the measured ratio. Its draws
    have the interval of that ratio.

    Parameters
    ----------
    table : the rows of `evidence.speedups`.
    task : dataset and workload.
    """
    predicted = {each.configuration: each for each in candidates}
    ratios = measured_ratios(table, task, predicted)
    found: dict[Configuration, Candidate] = {}

    def resolved(names: Configuration, above: frozenset[Configuration]) -> Candidate:
        each, measured = predicted[names], ratios.get(names)
        if measured is None or measured.reference in above:
            return each
        if names not in found:
            reference = resolved(measured.reference, above | {names})
            found[names] = _measured(each, measured, reference, predicted[measured.reference])
        return found[names]

    return [resolved(each.configuration, frozenset([each.configuration])) for each in candidates]


def _measured(
    each: Candidate, measured: Measured, reference: Candidate, as_predicted: Candidate
) -> Candidate:
    """Return a candidate with measured seconds.

    Parameters
    ----------
    reference, as_predicted : the reference with the seconds that count, and with predicted ones.
    """
    seconds = reference.seconds * _draws(measured.interval, len(each.seconds))
    return replace(
        each,
        seconds=seconds,
        job=each.job - each.seconds + seconds,
        compared=Comparison(measured, interval(each.seconds / as_predicted.seconds)),
        extrapolated=tuple(note for note in each.extrapolated if note == ONLY_STEPS),
    )


def _draws(ratio: Interval, number: int) -> np.ndarray:
    """Return draws with the median of a ratio, and its ends as those of an interval of `LEVEL`.

    Logarithms of ratios are taken to be normal on either side of the median.
    """
    ranks = np.random.default_rng(0).permutation(np.linspace(0, 1, number))
    normal = stats.norm.ppf(np.clip(ranks, 0.5 / number, 1 - 0.5 / number))
    normal /= stats.norm.ppf((1 + LEVEL) / 2)
    down, up = np.log(ratio.estimate / ratio.low), np.log(ratio.high / ratio.estimate)
    return ratio.estimate * np.exp(np.where(normal < 0, down, up) * normal)
