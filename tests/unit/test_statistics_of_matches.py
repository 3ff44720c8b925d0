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
    CALL_DEVIATION,
    CALLS,
    VALUES_FOR_INTERVAL,
    Interval,
    combine_intervals,
    deviation_of_sessions,
    difference_interval,
    geometric_pseudo_median,
    matches_needed,
    mean_interval,
    median_interval,
    next_time_interval,
    ratio_interval,
    sessions_interval,
    signed_ranks,
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
    noise_floor,
    verdict,
)
from escala.analysis.verdicts import (
    matches_needed as pilot_needs,
)

SECONDS = st.floats(0.01, 1e4)


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


@pytest.mark.parametrize("matches", [6, 15])
def test_the_interval_covers_the_median_as_often_as_stated(matches):
    random, covered = np.random.default_rng(2), 0
    for _ in range(500):
        _, low, high = median_interval(random.lognormal(size=matches))
        covered += low <= 1 <= high
    assert covered / 500 >= 0.94


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


def test_the_matches_that_a_level_needs_are_those_whose_range_reaches_it():
    """The range of n covers with 1 - 2 / 2**n."""
    for compared in (1, 2, 3, 40):
        needed = matches_needed(1 - 0.05 / compared)
        assert 2 / 2**needed <= 0.05 / compared < 2 / 2 ** (needed - 1)


@pytest.mark.parametrize(("level", "quantile"), [(0.95, 4.30265), (0.99, 9.92484)])
def test_sessions_are_the_unit_of_an_interval_over_sessions(level, quantile):
    """Student's by hand, with 2 degrees of freedom."""
    ratios, half = np.exp([-0.4, -0.5, -0.6]), quantile * 0.1 / np.sqrt(3)
    assert np.log(sessions_interval(ratios, level)) == pytest.approx(
        [-0.5, -0.5 - half, -0.5 + half], rel=1e-4
    )


@pytest.mark.parametrize("noise", [0.02, 0.1])
def test_the_interval_of_next_time_covers_the_ratio_over_sessions(noise):
    """Of one session of seven matches, where sessions differ with a deviation of 5 %."""
    random = np.random.default_rng(1)
    sessions = random.normal(0, 0.05, (2000, 1)) + random.normal(0, noise, (2000, 7))
    ends = np.exp(np.transpose(signed_ranks(sessions)))
    wide = [next_time_interval(Interval(*each), *deviation_of_sessions([])) for each in ends]
    covered = np.mean([each.low <= 1 <= each.high for each in wide])
    alone = np.mean((ends[:, 1] <= 1) & (ends[:, 2] >= 1))
    assert covered >= 0.94 and alone < covered - 0.1
    wrong = np.mean([verdict(each, 7, decimals=2).kind in (FASTER, SLOWER) for each in wide])
    assert wrong <= 0.05


def test_how_sessions_differ_is_of_the_prior_and_of_what_was_measured():
    assert deviation_of_sessions([[1.0], []]) == (CALL_DEVIATION, CALLS - 1)
    ratios = np.exp([-0.2, 0.0, 0.2])
    found, degrees = deviation_of_sessions([ratios])
    assert degrees == CALLS + 1
    expected = (CALLS - 1) * CALL_DEVIATION**2 + 2 * 0.2**2
    assert found**2 * degrees == pytest.approx(expected)
    # Of many sessions that hardly differ, the prior says little.
    assert deviation_of_sessions([[1.0] * 500])[0] < 0.01


def test_rates_are_pooled_over_splits():
    first, second = np.array([[9, 1], [2, 8]]), np.array([[10, 0], [0, 10]])
    covid, dengue = pool_rates([first, second], [1, 2])
    assert covid.precision.estimate == 19 / 21
    assert covid.recall.estimate == 19 / 20
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


def test_rows_of_a_genome_are_no_evidence_of_their_own():
    each = _predicted(genomes=60, rows=1, seed=4)
    repeated = [np.repeat(rows, 9) for rows in each]
    np.testing.assert_allclose(rate_differences(*each, 2), rate_differences(*repeated, 2))


def test_rates_that_one_of_two_lacks_have_no_difference():
    labels, after, each = np.array([0, 0, 1, 1]), np.zeros(4, int), np.arange(4)
    _, lost, untested = rate_differences(labels, labels, after, each, 3)
    unknown = (None, None, None)
    assert (lost.precision, lost.recall.estimate) == (unknown, -1)
    assert untested == (unknown, unknown)
    for rates in rate_differences(labels, labels, labels, each, 2):
        assert rates == ((0, 0, 0), (0, 0, 0))
    alone, *_ = rate_differences(labels, labels, after, np.zeros(4, int), 3)
    assert alone.precision == (-0.5, None, None)


PILOT, HALF, AT_MOST = 6, 0.05, 40


@pytest.mark.parametrize(("spread", "disturbed"), [(0.02, 0.0), (0.07, 0.0), (0.07, 0.1)])
def test_after_a_pilot_the_interval_covers_as_stated(spread, disturbed):
    """Though the number of matches depends on the pilot, and one run in ten is disturbed."""
    random, covered, narrow, draws = np.random.default_rng(3), 0, 0, 1000
    for _ in range(draws):
        logs = random.normal(0, spread / np.sqrt(2), (2, AT_MOST))
        logs += random.uniform(0.15, 0.65, logs.shape) * (random.random(logs.shape) < disturbed)
        ratios = 0.8 * np.exp(logs[0] - logs[1])
        needed = pilot_needs(ratios[:PILOT], HALF, AT_MOST)
        _, low, high = ratio_interval(ratios[:needed])
        covered += low <= 0.8 <= high
        narrow += np.sqrt(high / low) <= 1 + 1.5 * HALF
    assert 0.92 <= covered / draws <= 0.99
    assert disturbed or narrow / draws >= 0.8


def test_the_number_of_matches_is_that_of_the_rule():
    """n = (t s / d)², with Student's 97.5 % quantile of 5 degrees of freedom, 2.5706."""
    pilot = np.exp([0.1, -0.1, 0.1, -0.1, 0.1, -0.1])
    deviation = np.std(np.log(pilot), ddof=1)
    expected = np.ceil((2.570582 * deviation / np.log(1.05)) ** 2)
    assert pilot_needs(pilot, HALF, 100) == expected == 34
    assert pilot_needs(pilot, HALF, 20) == 20
    assert pilot_needs(pilot, 10.0, 20) == pilot_needs(pilot, HALF, 3) == PILOT
    assert pilot_needs([1.0] * 6, HALF, 20) == PILOT


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
    assert verdict(ratio, VALUES_FOR_INTERVAL, floor).kind == kind
    assert verdict(ratio, VALUES_FOR_INTERVAL - 1, floor) == (NO_VERDICT, None)


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
    assert verdict(ratio, PILOT, decimals=2).kind == printed
    assert verdict(ratio, PILOT).kind == exact


def test_a_detectable_decrease_is_half_as_much_again_as_the_interval():
    wide = Interval(1.0, 1 / 1.1, 1.1)
    assert verdict(wide, PILOT).detectable == pytest.approx(1 - 1.1**-1.5)
    beyond_floor = 1 - 1 / (1.2 * 1.1**0.5)
    assert verdict(wide, PILOT, floor=0.2).detectable == pytest.approx(beyond_floor)
    assert verdict(wide, PILOT, floor=0.01) == verdict(wide, PILOT)
    assert verdict(Interval(None, 0.9, None), PILOT) == (NO_VERDICT, None)
    assert noise_floor(Interval(1.01, 0.96, 1.03)) == pytest.approx(0.01)
    assert noise_floor(Interval(0.8, 0.7, 0.9)) == pytest.approx(0.25)


@pytest.mark.parametrize("matches", [7, 12, 20])
@pytest.mark.parametrize("disturbed", [0.0, 0.1])
def test_a_detectable_decrease_is_found_in_about_80_percent_of_sessions(matches, disturbed):
    """Of sessions that differ, with noise, by the interval of the question "next time"."""
    random, draws = np.random.default_rng(11), 600

    def sessions() -> list[Interval]:
        logs = random.normal(0, 0.05, (draws, 2, matches))
        logs += random.uniform(0.15, 0.65, logs.shape) * (random.random(logs.shape) < disturbed)
        both = logs[:, 0] - logs[:, 1] + random.normal(0, CALL_DEVIATION, (draws, 1))
        return [
            next_time_interval(ratio_interval(np.exp(each)), CALL_DEVIATION, CALLS - 1)
            for each in both
        ]

    high = np.sort([each.high for each in sessions()])
    stated = [verdict(each, matches).detectable for each in sessions()]
    power = np.mean([np.searchsorted(high, 1 / (1 - each)) / draws for each in stated])
    assert 0.72 <= power <= 0.88


@settings(deadline=None)
@given(st.floats(0.5, 2), st.floats(0.001, 0.5), st.floats(0, 0.3))
def test_exchanging_the_two_sides_exchanges_the_verdict(estimate, half, floor):
    one = Interval(estimate, estimate / (1 + half), estimate * (1 + half))
    other = Interval(*(1 / value for value in (estimate, one.high, one.low)))
    opposite = {FASTER: SLOWER, SLOWER: FASTER, NOT_DISTINGUISHABLE: NOT_DISTINGUISHABLE}
    found, inverse = (verdict(each, PILOT, floor) for each in (one, other))
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
        ([0.0] * (VALUES_FOR_INTERVAL - 1), NO_VERDICT),
        ([], NO_VERDICT),
    ],
)
def test_scores_are_the_same_if_they_are_in_every_match(differences, kind):
    found, inverse = (equivalence(side * np.array(differences), 0.02) for side in (1, -1))
    assert found == inverse and found.kind == kind


@pytest.mark.parametrize("matches", [6, 7, 10, 20, 40])
@pytest.mark.parametrize("fails", [0.05, 0.1, 0.3, 0.36, 0.5])
def test_the_rate_that_equal_scores_leave_open_is_too_low_in_at_most_a_twentieth(matches, fails):
    """By the exact probability of each number of matches of which the score is lost."""
    lost = range(matches + 1)
    rates = [equivalence([0.3] * n + [0.0] * (matches - n), 0.02).rate for n in lost]
    assert rates[0] == pytest.approx(1 - 0.05 ** (1 / matches)) and rates == sorted(rates)
    chance = scipy.stats.binom.pmf(lost, matches, fails)
    assert chance[np.array(rates) < fails].sum() <= 0.05


@pytest.mark.parametrize(("shift", "most"), [(0.0, 0.05), (0.03, 0.05), (-0.05, 0.05)])
def test_noisy_scores_are_seldom_called_different_or_the_same_wrongly(shift, most):
    """Equal ones, with one run in ten that loses 0.3, and others that are shifted by more."""
    random, wrong = np.random.default_rng(9), SAME if shift else DIFFERENT
    scores = random.normal(0, 0.01, (2000, 2, 7)) - 0.3 * (random.random((2000, 2, 7)) < 0.1)
    kinds = [equivalence(one - other + shift, 0.02).kind for one, other in scores]
    assert kinds.count(wrong) / len(kinds) <= most


def verdicts(effect: float, sessions: int, matches: int = 8) -> list[str]:
    """Verdicts by the ratios of a configuration and those of the reference to itself.

    The speed of the machine is a random walk with steps of 3 %, and every time has 4 % of noise.
    """
    random, kinds = np.random.default_rng(5), []
    for _ in range(sessions):
        walk = np.exp(np.cumsum(random.normal(0, 0.03, 3 * matches))).reshape(matches, 3)
        times = walk * np.exp(random.normal(0, 0.04, (matches, 3))) * (1, 1, effect)
        floor = noise_floor(ratio_interval(times[:, 0] / times[:, 1]))
        kinds.append(verdict(ratio_interval(times[:, 2] / times[:, 1]), matches, floor).kind)
    return kinds


def test_a_configuration_that_does_not_differ_rarely_gets_a_verdict():
    """An interval alone is allowed 5 %; the floor leaves fewer."""
    kinds = verdicts(1.0, 1000)
    assert np.mean([kind != NOT_DISTINGUISHABLE for kind in kinds]) <= 0.05
    assert np.mean([kind == FASTER for kind in verdicts(0.7, 200)]) > 0.95


def times_of(random, change, noise: float = 0.03, each: int = 8):
    """Moments and seconds of two configurations in turns, with a common change of speed."""
    when = np.arange(2 * each, dtype=float)
    speed = change(when / when[-1]) * np.exp(random.normal(0, noise, 2 * each))
    names = {"plain": (slice(0, None, 2), 3.0), "fast": (slice(1, None, 2), 1.0)}
    return (
        {name: when[of] for name, (of, _) in names.items()},
        {name: base * speed[of] for name, (of, base) in names.items()},
    )


def test_a_steady_machine_rarely_seems_to_drift():
    random = np.random.default_rng(1)
    found = [drift(*times_of(random, np.ones_like)).detected for _ in range(200)]
    assert np.mean(found) <= 0.1


def test_a_machine_that_drifts_by_a_fifth_is_noticed():
    """Also if it comes back."""
    random = np.random.default_rng(2)
    for change in (lambda t: 1 + 0.2 * t, lambda t: 1 + 0.2 * np.sin(np.pi * t)):
        found = [drift(*times_of(random, change)).detected for _ in range(50)]
        assert np.mean(found) > 0.9


def test_the_change_is_that_from_the_first_measurement_to_the_last():
    found = drift(*times_of(np.random.default_rng(0), lambda t: 1.3**t, noise=0))
    # Each configuration is divided by its own median, and the two began one moment apart.
    assert found.change.estimate == pytest.approx(0.3, abs=0.03)
    assert drift({"one": [0, 1, 2]}, {"one": [1.0, 2.0, 3.0]}) is drift({}, {}) is None
    noisy = drift(*times_of(np.random.default_rng(0), lambda t: 1.3**t))
    assert noisy.change.low < noisy.change.estimate < noisy.change.high
