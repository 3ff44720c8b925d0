"""Numbers of matches, verdicts and drift keep what they promise on simulated measurements."""

from __future__ import annotations

import numpy as np
import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.analysis.statistics import (
    CALL_DEVIATION,
    CALLS,
    VALUES_FOR_INTERVAL,
    Interval,
    next_time_interval,
    ratio_interval,
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

PILOT, HALF, AT_MOST = 6, 0.05, 40


@pytest.mark.parametrize(("spread", "disturbed"), [(0.02, 0.0), (0.07, 0.0), (0.07, 0.1)])
def test_after_a_pilot_the_interval_covers_as_stated(spread, disturbed):
    """Though the number of matches depends on the pilot, and one run in ten is disturbed."""
    random, covered, narrow, draws = np.random.default_rng(3), 0, 0, 1000
    for _ in range(draws):
        logs = random.normal(0, spread / np.sqrt(2), (2, AT_MOST))
        logs += random.uniform(0.15, 0.65, logs.shape) * (random.random(logs.shape) < disturbed)
        ratios = 0.8 * np.exp(logs[0] - logs[1])
        needed = matches_needed(ratios[:PILOT], HALF, AT_MOST)
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
    assert matches_needed(pilot, HALF, 100) == expected == 34
    assert matches_needed(pilot, HALF, 20) == 20
    assert matches_needed(pilot, 10.0, 20) == matches_needed(pilot, HALF, 3) == PILOT
    assert matches_needed([1.0] * 6, HALF, 20) == PILOT


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
