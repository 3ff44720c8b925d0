"""Intervals, paired ratios, and rates, pooled and paired."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.analysis.statistics import (
    combined_interval,
    mean_interval,
    median_interval,
    pooled_rates,
    rate_differences,
    rate_interval,
)

SECONDS = st.floats(0.01, 1e4)


@settings(deadline=None, max_examples=25)
@given(st.lists(SECONDS, min_size=2, max_size=12))
def test_the_interval_lies_within_the_values_and_around_their_median(values):
    estimate, low, high = median_interval(values)
    assert estimate == pytest.approx(np.median(values))
    rounding = 1 + 1e-12
    assert min(values) <= low * rounding and low <= high and high <= max(values) * rounding
    assert low <= estimate * rounding
    assert high * rounding >= estimate


def test_one_value_has_no_interval_and_none_no_estimate():
    assert median_interval([3.0]) == (3.0, None, None)
    assert median_interval([]) == (None, None, None)
    assert mean_interval([3.0]) == (3.0, None, None)
    assert mean_interval([]) == (None, None, None)


def test_equal_values_have_an_interval_of_no_width_and_zero_is_a_value():
    assert median_interval([2.0] * 5) == (2.0, 2.0, 2.0)
    assert median_interval([0.0, 0.0, 1.0]) == (0.0, 0.0, 1.0)
    assert mean_interval([0.2] * 3) == pytest.approx((0.2, 0.2, 0.2))


def test_samples_that_are_combined_are_resampled_each_by_itself():
    """Were they resampled together, the product of these medians would never leave 2 to 2.25."""
    assert combined_interval([[1.0, 2.0], [2.0, 1.0]], np.prod) == (2.25, 1.0, 4.0)
    assert combined_interval([[3.0, 3.0], [2.0, 2.0, 2.0]], np.sum) == (5.0, 5.0, 5.0)


def test_a_sample_of_one_leaves_no_interval_and_an_empty_one_no_estimate():
    assert combined_interval([[3.0, 5.0], [2.0]], np.prod) == (8.0, None, None)
    assert combined_interval([[3.0, 5.0], []], np.prod) == (None, None, None)
    assert combined_interval([], np.prod) == (None, None, None)


@pytest.mark.parametrize("pairs", [6, 7, 8, 9, 12, 15])
def test_the_interval_covers_the_median_as_often_as_stated(pairs):
    random, covered = np.random.default_rng(2), 0
    for _ in range(500):
        _, low, high = median_interval(random.lognormal(size=pairs))
        covered += low <= 1 <= high
    assert covered / 500 >= 0.94


def test_the_interval_of_many_values_leaves_out_the_extremes():
    assert median_interval([3.0, 9, 1, 5, 4, 8, 2, 6, 7]) == (5, 2, 8)
    assert median_interval([3.0, 1, 2]) == (2, 1, 3)


@pytest.mark.parametrize(
    ("least", "most", "found"),
    [
        ([1.0, 2, 3], [1.0, 2, np.inf], (2, 1, None)),
        ([0.0, 2, 3], [1.0, 2, 3], (2, None, 3)),
        ([1.0, 2, 3], [1.0, np.inf, np.inf], (None, 1, None)),
        ([0.0, 0, 3], [1.0, np.inf, 3], (None, None, None)),
    ],
)
def test_ratios_known_between_bounds_leave_open_what_bounds_do(least, most, found):
    assert median_interval(least, most) == found


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 500), st.integers(1, 500))
def test_wilson_intervals_hold_the_rate(successes, trials):
    successes = min(successes, trials)
    rate, low, high = rate_interval(successes, trials)
    assert rate == successes / trials
    assert 0 <= low <= rate + 1e-12
    assert rate - 1e-12 <= high <= 1


def test_wilson_agrees_with_its_published_formula():
    # Wilson, J. Am. Stat. Assoc. 22 (1927), 209-212, with z = 1.959964.
    k, n, z = 87, 90, 1.959963984540054
    centre = (k + z**2 / 2) / (n + z**2)
    half = z / (n + z**2) * np.sqrt(k * (n - k) / n + z**2 / 4)
    np.testing.assert_allclose(rate_interval(k, n), [k / n, centre - half, centre + half])


def test_rates_are_pooled_over_splits():
    first, second = np.array([[9, 1], [2, 8]]), np.array([[10, 0], [0, 10]])
    covid, dengue = pooled_rates([first, second], [1, 2])
    assert covid.precision.estimate == 19 / 21
    assert covid.recall.estimate == 19 / 20
    assert (dengue.true_positives, dengue.predicted, dengue.actual) == (18, 19, 20)


def test_repeats_of_a_split_count_it_once():
    matrix = np.array([[9, 1], [2, 8]])
    assert pooled_rates([matrix] * 5, [4] * 5) == pooled_rates([matrix], [4])


def test_a_class_never_predicted_has_no_precision():
    _, never = pooled_rates([np.array([[10, 0], [3, 0]])], [4])
    assert never.precision == (None, None, None)
    assert never.recall.estimate == 0


def _predicted(genomes: int, rows: int, seed: int) -> list[np.ndarray]:
    """Return labels, two predictions of them and genomes, of genomes of so many rows each."""
    random = np.random.default_rng(seed)
    labels = np.repeat(np.arange(genomes) % 2, rows)
    before, after = (np.where(random.random(len(labels)) < 0.3, 1 - labels, labels) for _ in "ab")
    return [labels, before, after, np.repeat(np.arange(genomes), rows)]


@pytest.mark.parametrize("rows", [4, 1], ids=["other counts", "equal counts"])
def test_differences_of_rates_are_those_of_all_draws_of_genomes(rows):
    labels, before, after, genomes = _predicted(genomes=5, rows=rows, seed=3)
    found = rate_differences(labels, before, after, genomes, 2)

    def share(of: np.ndarray, right: np.ndarray) -> float:
        return right[of].mean() if of.any() else np.nan

    def differences(rows: np.ndarray, label: int) -> tuple[float, float]:
        is_label = labels[rows] == label
        (was, recalled), (is_now, recalled_now) = (
            (share(called, is_label), share(is_label, called))
            for called in (before[rows] == label, after[rows] == label)
        )
        return (is_now - was if is_label.any() else np.nan), recalled_now - recalled

    rows_of = [np.flatnonzero(genomes == genome) for genome in range(5)]
    draws = [
        np.concatenate([rows_of[genome] for genome in drawn])
        for drawn in product(range(5), repeat=5)
    ]
    for label in range(2):
        everything = differences(np.arange(len(labels)), label)
        assert [interval.estimate for interval in found[label]] == pytest.approx(everything)
        for interval, exact in zip(
            found[label], np.array([differences(rows, label) for rows in draws]).T, strict=True
        ):
            known = exact[~np.isnan(exact)]
            for end, part in ((interval.low, 0.025), (interval.high, 0.975)):
                assert np.mean(known < end - 1e-9) <= part + 0.01
                assert np.mean(known <= end + 1e-9) >= part - 0.01


def test_rows_of_a_genome_are_no_evidence_of_their_own():
    labels, before, after, genomes = _predicted(genomes=60, rows=1, seed=4)
    once = rate_differences(labels, before, after, genomes, 2)
    repeated = [np.repeat(rows, 9) for rows in (labels, before, after, genomes)]
    for few, many in zip(once, rate_differences(*repeated, 2), strict=True):
        np.testing.assert_allclose(few, many)


def test_mistakes_that_both_make_are_no_difference():
    labels, before, *_ = _predicted(genomes=60, rows=1, seed=5)
    for precision, recall in rate_differences(labels, before, before, np.arange(60), 2):
        assert precision == recall == (0, 0, 0)


def test_rates_that_one_of_two_lacks_have_no_difference():
    labels, before = np.array([0, 0, 1, 1]), np.array([0, 0, 1, 1])
    after = np.zeros(4, int)
    _, lost, untested = rate_differences(labels, before, after, np.arange(4), 3)
    assert lost.precision == (None, None, None)
    assert lost.recall.estimate == -1
    assert untested == ((None, None, None), (None, None, None))
    alone, *_ = rate_differences(labels, before, after, np.zeros(4, int), 3)
    assert alone.precision == (-0.5, None, None)
