"""Mark changes in a series of sessions, if they recur.

A session whose time differs from that of all earlier ones may have met a busy machine. So a change
is marked only where several sessions in a row show it:

- the sessions *before* are all since the last change, at least `BEFORE` of them;
- the next `RECURRENCE` sessions all have larger values than those before, or all have smaller ones.
  A tenth of the sessions before, and at least one, may be exceptions: they may have met a busy
  machine too;
- each of these sessions differs from the median before by a factor of at least 1 + `LEAST`.

The first of the `RECURRENCE` sessions has the mark. Whether it is there depends on the sessions up
to the last of them only: later sessions add marks and remove none.

If nothing changes, and the sessions are independent, each order of n + m
sessions is equally likely, whatever the distribution. The m last ones are then above all but j of
the n before with probability C(m + j, m) / C(n + m, m). `chance_of_a_mark` adds these up. It does
not hold for a machine that drifts for longer than a session: ratios of matches hold no drift.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

#: Sessions in a row that must show a change.
RECURRENCE = 5
#: Fewest sessions before a change.
BEFORE = 7
#: Smallest difference of a session from the median before that counts; 0.05 is 5 %.
LEAST = 0.05
#: Fraction of the sessions before that may lie beyond those after, and the fewest such sessions.
BEYOND, FEWEST_BEYOND = 0.1, 1


class Change(NamedTuple):
    """A change of the values of a series.

    Attributes
    ----------
    first : position of the first session that shows it, from 0.
    sessions : the number of sessions in a row that show it, `RECURRENCE` unless it is not marked.
    before, after : the medians of the sessions before, and of those that show it.
    """

    first: int
    sessions: int
    before: float
    after: float

    @property
    def relative(self) -> float:
        """The change as a fraction of the value before; 0.1 is 10 % more."""
        return self.after / self.before - 1


class Marks(NamedTuple):
    """The changes of a series.

    Attributes
    ----------
    changes : those that recur, in order.
    unconfirmed : a change that the last sessions show, but fewer than `RECURRENCE`; else None.
    """

    changes: list[Change]
    unconfirmed: Change | None


def mark(
    values: Sequence[float],
    recurrence: int = RECURRENCE,
    before: int = BEFORE,
    least: float = LEAST,
) -> Marks:
    """Mark the changes of a series that recur.

    Parameters
    ----------
    values : a positive number for each session, in the order of the sessions.
    recurrence, before, least : instead of `RECURRENCE`, `BEFORE` and `LEAST`; the first two are at
        least 1.
    """
    changes: list[Change] = []
    start, first = 0, before
    while first + recurrence <= len(values):
        change = _change(values[start:first], values[first : first + recurrence], first, least)
        if change is None:
            first += 1
        else:
            changes.append(change)
            start, first = first, first + before
    # A change that the last sessions show, most of them first.
    places = range(max(start + before, len(values) - recurrence + 1), len(values))
    shown = (_change(values[start:at], values[at:], at, least) for at in places)
    return Marks(changes, next(filter(None, shown), None))


def _change(
    before: Sequence[float], after: Sequence[float], first: int, least: float
) -> Change | None:
    """Return the change between two parts of a series, if all that follow show it."""
    ordered, beyond = np.sort(before), beyond_allowed(len(before))
    if beyond >= len(ordered):
        return None
    median, least_factor = float(np.median(before)), 1 + least
    slower = min(after) > ordered[-1 - beyond] and min(after) >= median * least_factor
    faster = max(after) < ordered[beyond] and max(after) <= median / least_factor
    if not (slower or faster):
        return None
    return Change(first, len(after), median, float(np.median(after)))


def beyond_allowed(before: int) -> int:
    """Return how many of the sessions before may lie beyond those after."""
    return max(FEWEST_BEYOND, int(BEYOND * before))


def chance_of_a_mark(sessions: int, recurrence: int = RECURRENCE, before: int = BEFORE) -> float:
    """Return an upper bound of the probability that a steady series has any mark.

    It is the sum over the places of a mark, for both directions, and at most 1.

    Parameters
    ----------
    sessions : the length of the series.
    """
    places = range(before, sessions - recurrence + 1)
    chances = (
        2 * math.comb(recurrence + beyond_allowed(n), recurrence) / math.comb(n + recurrence, n)
        for n in places
    )
    return min(1.0, sum(chances))
