"""Estimates and intervals of matches, and the verdicts that rest on them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from escala.analysis.rates import pool_rates, rate_differences, rate_interval
from escala.analysis.statistics import (
    MATCHES_FOR_INTERVAL,
    SESSION_DEVIATION,
    SESSIONS_OF_DEVIATION,
    Interval,
    combine_intervals,
    deviation_of_sessions,
    difference_interval,
    geometric_pseudo_median,
    mean_interval,
    median_interval,
    next_time_interval,
    ratio_interval,
    sessions_interval,
)
from escala.analysis.verdicts import (
    DIFFERENT,
    FASTER,
    NO_VERDICT,
    NOT_DISTINGUISHABLE,
    SAME,
    SLOWER,
    drift,
    equivalence,
    matches_needed,
    noise_floor,
    verdict,
)


def test_few_and_equal_values_are_told_as_what_they_are():
    assert median_interval([3.0]) == mean_interval([3.0]) == (3.0, None, None)
    assert median_interval([]) == mean_interval([]) == (None, None, None)
    assert median_interval([0.0, 0.0, 1.0]) == (0.0, 0.0, 1.0)
    assert median_interval([3.0, 1, 2]) == (2, 1, 3)
    assert median_interval([3.0, 9, 1, 5, 4, 8, 2, 6, 7]) == (5, 2, 8), "the extremes are left out"
    assert mean_interval([0.25] * 3) == (0.25, None, None), "equal values show no variance"


def test_samples_that_are_combined_are_resampled_each_by_itself():
    """Were they resampled together, the product of these medians would never leave 2 to 2.25."""
    assert combine_intervals([[1.0, 2.0], [2.0, 1.0]], np.prod) == (2.25, 1.0, 4.0)
    assert combine_intervals([[3.0, 5.0], [2.0]], np.prod) == (8.0, None, None)
    assert combine_intervals([[3.0, 5.0], []], np.prod) == (None, None, None)


@pytest.mark.parametrize(
    ("least", "most", "found"),
    [
        ([0.0, 2, 3], [1.0, 2, 3], (2, None, 3)),
        ([1.0, 2, 3], [1.0, np.inf, np.inf], (None, 1, None)),
        ([0.0, 0, 3], [1.0, np.inf, 3], (None, None, None)),
    ],
)
def test_ratios_known_between_bounds_leave_open_what_bounds_do(least, most, found):
    assert median_interval(least, most) == found


def test_one_disturbed_match_of_seven_leaves_a_verdict():
    """By hand: of the 28 means, the third largest is that of 0.72 and 1.06."""
    disturbed = [0.62, 0.63, 0.63, 0.65, 0.72, 0.75, 1.06]
    assert median_interval(disturbed) == (0.65, 0.62, 1.06)
    estimate, low, high = ratio_interval(disturbed)
    assert (low, high) == pytest.approx(((0.62 * 0.63) ** 0.5, (0.72 * 1.06) ** 0.5))
    assert high < 0.9 and 0.65 < estimate < 0.7


def test_the_interval_of_six_is_their_range_and_of_few_no_interval():
    six = [0.9, 0.5, 0.6, 0.8, 0.7, 1.1]
    assert ratio_interval(six)[1:] == pytest.approx((0.5, 1.1))
    assert ratio_interval([2.0, 8.0]) == pytest.approx((4.0, 2.0, 8.0))
    assert ratio_interval([3.0]) == (pytest.approx(3.0), None, None)
    assert ratio_interval([]) == (None, None, None)


@pytest.mark.parametrize(("number", "level"), [*product((7, 15), (0.95, 0.975))])
def test_the_interval_holds_what_wilcoxons_exact_test_does_not_reject(number, level):
    """SciPy's test on both sides of each end, at values without ties."""
    values = np.random.default_rng(number).normal(0.1, 1, number)
    _, low, high = difference_interval(values, level)
    step = 1e-6

    def p_value(shift: float) -> float:
        return stats.wilcoxon(values - shift, method="exact").pvalue

    assert p_value(low - step) <= 1 - level < p_value(low + step)
    assert p_value(high + step) <= 1 - level < p_value(high - step)


@settings(deadline=None, max_examples=40)
@given(st.lists(st.floats(0.2, 5), min_size=2, max_size=12), st.floats(0.3, 3), st.randoms())
def test_ratios_that_are_scaled_inverted_or_reordered_move_their_interval(ratios, factor, random):
    found = ratio_interval(ratios)
    scaled = ratio_interval([factor * ratio for ratio in random.sample(ratios, len(ratios))])
    assert scaled == pytest.approx([factor * each for each in found])
    inverted = ratio_interval([1 / ratio for ratio in ratios])
    assert inverted == pytest.approx((1 / found.estimate, 1 / found.high, 1 / found.low))
    assert geometric_pseudo_median(np.array([ratios] * 2).T, axis=0) == pytest.approx(
        [found.estimate] * 2
    )


def test_bounds_of_ratios_are_judged_by_order():
    least, most = [0.5, 0.6, 0.7, 0.8, 0.9, 0.9, 0.95], [0.5, 0.6, 0.7, 0.8, 0.9, 0.9, np.inf]
    assert ratio_interval(least, most) == median_interval(least, most) == (0.8, 0.5, None)
    assert ratio_interval(least, least) == ratio_interval(least)


@pytest.mark.parametrize(
    ("number", "level", "student_level"),
    [(5, 0.95, 0.995), (6, 0.9843, 0.995), (7, 0.998, 0.998), (6, 0.95, None), (7, 0.9843, None)],
)
def test_values_too_few_for_signed_ranks_have_students_interval(number, level, student_level):
    """The range of n covers with 1 - 2 / 2**n: it is the widest interval by signed ranks."""
    values = np.random.default_rng(number).normal(0.1, 1, number)
    found, ends = difference_interval(values, level), (values.min(), values.max())
    if student_level:
        assert 2 / 2**number > 1 - level
        ends = stats.ttest_1samp(values, 0).confidence_interval(student_level)
    assert found[1:] == pytest.approx(tuple(ends))
    # Of bounds, only the range of values is known.
    bounds = ratio_interval([0.5] * number, [0.6] * number, level)
    assert bounds[1:] == ((None, None) if student_level else (0.5, 0.6))


@pytest.mark.parametrize(("level", "quantile"), [(0.95, 4.30265), (0.99, 9.92484)])
def test_sessions_are_the_unit_of_an_interval_over_sessions(level, quantile):
    """Student's by hand, with 2 degrees of freedom."""
    ratios, half = np.exp([-0.4, -0.5, -0.6]), quantile * 0.1 / np.sqrt(3)
    assert np.log(sessions_interval(ratios, level)) == pytest.approx(
        [-0.5, -0.5 - half, -0.5 + half], rel=1e-4
    )


@pytest.mark.parametrize(("degrees", "quantile"), [(11, 2.20099), (2, 4.30265)])
def test_the_interval_of_next_time_holds_what_sessions_differ_by(degrees, quantile):
    """Each arm and Student's quantile of the deviation of sessions are added in quadrature."""
    wide = next_time_interval(Interval(0.5, 0.4, 0.7), 0.05, degrees)
    arms = np.hypot(np.log([0.5 / 0.4, 0.7 / 0.5]), quantile * 0.05)
    assert wide == pytest.approx((0.5, 0.5 / np.exp(arms[0]), 0.5 * np.exp(arms[1])), rel=1e-4)


def test_how_sessions_differ_is_of_the_prior_and_of_what_was_measured():
    assert deviation_of_sessions([[1.0], []]) == (SESSION_DEVIATION, SESSIONS_OF_DEVIATION - 1)
    ratios = np.exp([-0.2, 0.0, 0.2])
    found, degrees = deviation_of_sessions([ratios])
    assert degrees == SESSIONS_OF_DEVIATION + 1
    expected = (SESSIONS_OF_DEVIATION - 1) * SESSION_DEVIATION**2 + 2 * 0.2**2
    assert found**2 * degrees == pytest.approx(expected)
    # Of many sessions that hardly differ, the prior says little.
    assert deviation_of_sessions([[1.0] * 500])[0] < 0.01


def test_rates_are_pooled_over_splits():
    first, second = np.array([[9, 1], [2, 8]]), np.array([[10, 0], [0, 10]])
    covid, dengue = pool_rates([first, second], [1, 2])
    assert (covid.precision.estimate, covid.recall.estimate) == (19 / 21, 19 / 20)
    assert (dengue.true_positives, dengue.predicted, dengue.actual) == (18, 19, 20)
    assert pool_rates([first] * 5, [4] * 5) == pool_rates([first], [4]), "a split counts once"
    assert covid.precision[1:] == rate_interval(19, 21)[1:]
    _, never = pool_rates([np.array([[10, 0], [3, 0]])], [4])
    assert never.precision == (None, None, None) and never.recall.estimate == 0


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

    def fraction(of: np.ndarray, right: np.ndarray) -> float:
        return right[of].mean() if of.any() else np.nan

    def differences(rows: np.ndarray, label: int) -> tuple[float, float]:
        is_label = labels[rows] == label
        (was, recalled), (is_now, recalled_now) = (
            (fraction(called, is_label), fraction(is_label, called))
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


def test_rates_that_one_of_two_lacks_have_no_difference():
    drawn = _predicted(genomes=60, rows=1, seed=4)
    repeated = [np.repeat(rows, 9) for rows in drawn]
    # Rows of a genome are no evidence of their own.
    np.testing.assert_allclose(rate_differences(*drawn, 2), rate_differences(*repeated, 2))
    labels, after, each = np.array([0, 0, 1, 1]), np.zeros(4, int), np.arange(4)
    _, lost, untested = rate_differences(labels, labels, after, each, 3)
    unknown = (None, None, None)
    assert (lost.precision, lost.recall.estimate) == (unknown, -1)
    assert untested == (unknown, unknown)
    for rates in rate_differences(labels, labels, labels, each, 2):
        assert rates == ((0, 0, 0), (0, 0, 0))
    alone, *_ = rate_differences(labels, labels, after, np.zeros(4, int), 3)
    assert alone.precision == (-0.5, None, None)


SIX = 6


def test_the_number_of_matches_is_that_of_the_rule():
    """n = (t s / d)², with Student's 97.5 % quantile of 5 degrees of freedom, 2.5706."""
    ratios = np.exp([0.1, -0.1, 0.1, -0.1, 0.1, -0.1])
    deviation = np.std(np.log(ratios), ddof=1)
    expected = np.ceil((2.570582 * deviation / np.log(1.05)) ** 2)
    assert matches_needed(ratios, np.log(1.05)) == expected == 34
    # At least as many as an interval needs.
    assert matches_needed(ratios, 10.0) == matches_needed([1.0] * 6, 0.1) == 5
    assert matches_needed(ratios, np.log(1.05), 0.9843) > expected


@pytest.mark.parametrize(
    ("ratio", "floor", "kind"),
    [
        ((0.8, 0.7, 0.9), None, FASTER),
        ((1.2, 1.1, 1.3), None, SLOWER),
        ((0.95, 0.9, 1.01), None, NOT_DISTINGUISHABLE),
        ((0.97, 0.96, 0.98), 0.05, NOT_DISTINGUISHABLE),
        ((0.9, 0.89, 0.91), 0.05, FASTER),
        # An end that is unknown decides nothing, and the other end may decide alone.
        ((None, 0.5, None), None, NO_VERDICT),
        ((1.0, None, None), None, NO_VERDICT),
        ((None, None, 0.9), None, FASTER),
        ((None, 1.1, None), None, SLOWER),
        ((None, 0.9, 1.1), None, NOT_DISTINGUISHABLE),
        # The end stands for an unknown ratio.
        ((None, None, 0.97), 0.05, NOT_DISTINGUISHABLE),
        ((None, None, 0.9), 0.05, FASTER),
    ],
)
def test_verdicts_by_interval_and_floor(ratio, floor, kind):
    ratio = Interval(*ratio)
    assert verdict(ratio, MATCHES_FOR_INTERVAL, floor).kind == kind
    assert verdict(ratio, MATCHES_FOR_INTERVAL - 1, floor) == (NO_VERDICT, None)


@pytest.mark.parametrize(
    ("low", "high", "printed", "exact"),
    [
        (0.9, 0.996, NOT_DISTINGUISHABLE, FASTER),
        (0.9, 0.994, FASTER, FASTER),
        (1.004, 1.1, NOT_DISTINGUISHABLE, SLOWER),
    ],
)
def test_an_end_that_is_printed_as_one_contains_it(low, high, printed, exact):
    ratio = Interval((low * high) ** 0.5, low, high)
    assert verdict(ratio, SIX, decimals=2).kind == printed
    assert verdict(ratio, SIX).kind == exact


def test_a_detectable_decrease_is_half_as_much_again_as_the_interval():
    wide = Interval(1.0, 1 / 1.1, 1.1)
    assert verdict(wide, SIX).detectable == pytest.approx(1 - 1.1**-1.5)
    beyond_floor = 1 - 1 / (1.2 * 1.1**0.5)
    assert verdict(wide, SIX, floor=0.2).detectable == pytest.approx(beyond_floor)
    assert verdict(wide, SIX, floor=0.01) == verdict(wide, SIX)
    assert verdict(Interval(None, 0.9, None), SIX) == (NO_VERDICT, None)
    assert noise_floor(Interval(1.01, 0.96, 1.03)) == pytest.approx(0.01)
    assert noise_floor(Interval(0.8, 0.7, 0.9)) == pytest.approx(0.25)


@settings(deadline=None)
@given(st.floats(0.5, 2), st.floats(0.001, 0.5), st.floats(0, 0.3))
def test_exchanging_the_two_sides_exchanges_the_verdict(estimate, half, floor):
    one = Interval(estimate, estimate / (1 + half), estimate * (1 + half))
    other = Interval(*(1 / value for value in (estimate, one.high, one.low)))
    opposite = {FASTER: SLOWER, SLOWER: FASTER, NOT_DISTINGUISHABLE: NOT_DISTINGUISHABLE}
    found, inverse = (verdict(each, SIX, floor) for each in (one, other))
    assert inverse.kind == opposite[found.kind]
    assert inverse.detectable == pytest.approx(found.detectable)


@pytest.mark.parametrize(
    ("differences", "kind"),
    [
        ([0.0] * 7, SAME),
        # 0.98 - 0.96 is a little more than 0.02.
        ([0.98 - 0.96] * 7, SAME),
        ([-0.3] + [0.0] * 6, NOT_DISTINGUISHABLE),
        ([-0.04, 0.04] * 3 + [0.0], NOT_DISTINGUISHABLE),
        ([-0.03] * 6 + [-0.01], DIFFERENT),
        ([0.3] * 6, DIFFERENT),
        ([0.0] * (MATCHES_FOR_INTERVAL - 1), NO_VERDICT),
        ([], NO_VERDICT),
    ],
)
def test_scores_are_the_same_if_they_are_in_every_match(differences, kind):
    found, inverse = (equivalence(side * np.array(differences), 0.02) for side in (1, -1))
    assert found == inverse and found.kind == kind


@pytest.mark.parametrize(
    ("matches", "fails"), [(6, 0.5), (7, 0.36), (10, 0.3), (20, 0.1), (40, 0.05)]
)
def test_the_rate_that_equal_scores_leave_open_is_too_low_in_at_most_a_twentieth(matches, fails):
    """By the exact probability of each number of matches of which the score is lost."""
    lost = range(matches + 1)
    rates = [equivalence([0.3] * n + [0.0] * (matches - n), 0.02).rate for n in lost]
    assert rates[0] == pytest.approx(1 - 0.05 ** (1 / matches)) and rates == sorted(rates)
    chance = scipy.stats.binom.pmf(lost, matches, fails)
    assert chance[np.array(rates) < fails].sum() <= 0.05


def times_of(random, change, noise: float = 0.03, each: int = 8):
    """Moments and seconds of two configurations in turns, with a common change of speed."""
    when = np.arange(2 * each, dtype=float)
    speed = change(when / when[-1]) * np.exp(random.normal(0, noise, 2 * each))
    names = {"plain": (slice(0, None, 2), 3.0), "fast": (slice(1, None, 2), 1.0)}
    return (
        {name: when[of] for name, (of, _) in names.items()},
        {name: base * speed[of] for name, (of, base) in names.items()},
    )


def test_the_change_is_that_from_the_first_measurement_to_the_last():
    found = drift(*times_of(np.random.default_rng(0), lambda t: 1.3**t, noise=0))
    # Each configuration is divided by its own median, and the two began one moment apart.
    assert found.change.estimate == pytest.approx(0.3, abs=0.03)
    assert drift({"one": [0, 1, 2]}, {"one": [1.0, 2.0, 3.0]}) is drift({}, {}) is None
    for change in (lambda t: 1 + 0.2 * t, lambda t: 1 + 0.2 * np.sin(np.pi * t)):
        assert drift(*times_of(np.random.default_rng(2), change)).detected, "also if it comes back"
    steady = [drift(*times_of(np.random.default_rng(n), np.ones_like)).detected for n in range(20)]
    assert sum(steady) <= 3, "of 20, at a level of 5 %"
    noisy = drift(*times_of(np.random.default_rng(0), lambda t: 1.3**t))
    assert noisy.change.low < noisy.change.estimate < noisy.change.high
