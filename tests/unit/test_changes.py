"""A change is marked where it recurs, at its first session, and nowhere else."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from escala.analysis import changes
from escala.analysis.changes import BEFORE, LEAST, RECURRENCE, mark

VALUES = st.lists(st.floats(1, 100), max_size=40)
SMALL = {"recurrence": 2, "before": 3, "least": 0.0}


def noisy(*levels: tuple[float, int], seed: int = 0, noise: float = 0.02) -> list[float]:
    """Return so many values at each level, with some noise."""
    random = np.random.default_rng(seed)
    level = np.repeat([at for at, _ in levels], [count for _, count in levels])
    return list(level * np.exp(random.normal(0, noise, len(level))))


@pytest.mark.parametrize("after", [1.2, 0.8])
def test_a_change_that_stays_is_marked_at_its_first_session(after):
    found = mark(noisy((5.0, 20), (5.0 * after, 10)))
    [change] = found.changes
    assert (change.first, change.sessions) == (20, RECURRENCE)
    assert change.relative == pytest.approx(after - 1, abs=0.03)
    assert found.unconfirmed is None
    assert mark([1.0] * (BEFORE - 1) + [2.0] * RECURRENCE).changes == []
    values = noisy((5.0, 20), (5.0 * (1 + LEAST / 2), 20), noise=0.0001)
    assert mark(values).changes == []
    assert [change.first for change in mark(values, least=LEAST / 3).changes] == [20]


@pytest.mark.parametrize("sessions", [1, RECURRENCE - 1])
def test_what_fewer_sessions_show_is_not_marked(sessions):
    values = noisy((5.0, 20), (7.5, sessions), (5.0, 20))
    assert mark(values) == ([], None)
    so_far = mark(values[: 20 + sessions])
    assert so_far.changes == []
    assert so_far.unconfirmed[:2] == (20, sessions)


def test_busy_sessions_before_a_change_do_not_hide_it():
    values = noisy((5.0, 40), (6.0, 8))
    for busy in (2, 11, 17, 30):
        values[busy] *= 2
    assert [change.first for change in mark(values).changes] == [40]


def test_every_change_is_marked_and_the_way_back_is_one():
    found = mark(noisy((5.0, 15), (6.0, 12), (5.0, 12)))
    assert [change.first for change in found.changes] == [15, 27]
    assert [change.relative > 0 for change in found.changes] == [True, False]


@given(VALUES)
def test_later_sessions_add_marks_and_remove_none(values):
    everything = mark(values, **SMALL).changes
    for length in range(len(values)):
        earlier = mark(values[:length], **SMALL).changes
        assert earlier == everything[: len(earlier)]


@given(VALUES)
def test_every_mark_is_what_its_definition_says(values):
    start = 0
    for change in mark(values, **SMALL).changes:
        before = values[start : change.first]
        after = values[change.first : change.first + SMALL["recurrence"]]
        assert len(before) >= SMALL["before"] and len(after) == SMALL["recurrence"]
        larger = sum(value >= min(after) for value in before)
        smaller = sum(value <= max(after) for value in before)
        assert min(larger, smaller) <= max(1, len(before) // 10)
        start = change.first


def test_the_chance_of_a_mark_is_that_of_all_orders():
    """With one place for a mark, the bound is the exact fraction of the orders of a series."""
    orders = list(permutations([1.0, 2.0, 3.0, 4.0, 5.0]))
    marked = sum(bool(mark(order, **SMALL).changes) for order in orders)
    exact = changes.chance_of_a_mark(5, recurrence=2, before=3)
    assert marked / len(orders) == pytest.approx(exact)
    assert changes.chance_of_a_mark(BEFORE + RECURRENCE - 1) == 0


@pytest.mark.parametrize("draw", ["normal", "standard_cauchy"])
def test_steady_series_are_marked_as_rarely_as_stated(draw):
    """Whatever the distribution; 2000 series have a fraction within 0.011 of its chance."""
    random = np.random.default_rng(1)
    series = 1 + 0.001 * np.arctan(getattr(random, draw)(size=(2000, 30)))
    fraction = np.mean([bool(mark(list(values), least=0.0).changes) for values in series])
    assert fraction <= changes.chance_of_a_mark(30) + 0.011
    assert changes.chance_of_a_mark(500) < 0.07
