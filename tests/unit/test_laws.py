"""Laws of scaling, fitted to points that are made from known parameters."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.analysis import laws


@settings(max_examples=30)
@given(st.floats(0, 0.9), st.floats(0, 0.2), st.sampled_from([(2, 4), (2, 3, 8), (2, 4, 8, 16)]))
def test_parameters_of_the_universal_law_are_recovered(contention, coherency, times):
    point = [laws.ratio(n, contention, coherency) for n in times]
    found = laws.fitted(times, [point] * 2)
    assert found.contention.estimate == pytest.approx(contention, abs=1e-6)
    assert found.coherency.estimate == pytest.approx(coherency, abs=1e-6)
    expected = 1 / laws.ratio(32, contention, coherency)
    assert found.speedup(32).estimate == pytest.approx(expected, rel=1e-4)
    assert found.speedup(32).low is None


def test_a_law_never_promises_more_than_as_many_times_the_speed():
    """A speed-up above n is fitted by nothing undivided, not by less than nothing."""
    found = laws.fitted((2, 4), [[0.45, 0.2], [0.46, 0.22], [0.44, 0.21]]).speedup(8)
    assert found.estimate <= found.high <= 8


def test_intervals_cover_the_truth_about_as_often_as_they_say():
    """Of 60 experiments of five repeats with noise of 3 %, all in one session."""
    rng = np.random.default_rng(7)
    times, truth = (2, 4), 1 / laws.ratio(8, 0.2, 0.02)
    covered = 0
    for _ in range(60):
        noise = np.exp(0.03 * rng.standard_normal((5, 2)))
        found = laws.fitted(times, [laws.ratio(n, 0.2, 0.02) for n in times] * noise)
        low, high = found.speedup(8)[1:]
        covered += low <= truth <= high
    assert covered >= 53


def test_slower_with_more_has_a_fraction_above_one_and_one_process_as_the_fastest():
    found = laws.fitted((2, 4), [[1.3, 1.5]] * 3)
    assert found.contention.estimate > 1
    assert found.fastest.estimate == 1
