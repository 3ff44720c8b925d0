"""Compute with sets of time intervals: begins and ends, of shape (number, 2), in any unit."""

from __future__ import annotations

import numpy as np


def join(intervals: np.ndarray, apart: float = 0.0) -> np.ndarray:
    """Return disjoint intervals, in order: those that overlap, or are at most `apart`, are one."""
    if not len(intervals):
        return intervals
    ordered = intervals[np.argsort(intervals[:, 0], kind="stable")]
    last_ends = np.maximum.accumulate(ordered[:, 1])
    first = np.flatnonzero(np.r_[True, ordered[1:, 0] > last_ends[:-1] + apart])
    return np.column_stack([ordered[first, 0], last_ends[np.r_[first[1:], len(ordered)] - 1]])


def subtract(intervals: np.ndarray, removed: np.ndarray) -> np.ndarray:
    """Return what of some intervals others do not cover, as disjoint intervals in order."""
    intervals, removed = join(intervals), join(removed)
    if not (len(intervals) and len(removed)):
        return intervals
    free_begins, free_ends = np.r_[-np.inf, removed[:, 1]], np.r_[removed[:, 0], np.inf]
    # Each interval overlaps the free times from `first` to the one before `after`.
    first = np.searchsorted(free_ends, intervals[:, 0], side="right")
    after = np.searchsorted(free_begins, intervals[:, 1], side="left")
    number = after - first
    whose = np.repeat(np.arange(len(intervals)), number)
    free = np.arange(number.sum()) - np.repeat(number.cumsum() - number, number) + first[whose]
    begins = np.maximum(intervals[whose, 0], free_begins[free])
    return np.column_stack([begins, np.minimum(intervals[whose, 1], free_ends[free])])


def covered_between(begins: np.ndarray, ends: np.ndarray, intervals: np.ndarray) -> np.ndarray:
    """Return how much of each time, from a begin to an end, disjoint ordered intervals cover."""
    if not len(intervals):
        return np.zeros(len(begins))
    lengths = np.diff(intervals).ravel()
    before = np.c_[lengths.cumsum() - lengths, lengths.cumsum()].ravel()
    moments = intervals.ravel()
    return np.interp(ends, moments, before) - np.interp(begins, moments, before)


def cover_in_order(
    parts: dict[str, np.ndarray], begins: np.ndarray, ends: np.ndarray
) -> dict[str, np.ndarray]:
    """Divide some times among parts that may overlap: an instant counts for the first part.

    Parameters
    ----------
    parts : intervals of each part, in any order. The parts are in order of precedence.
    begins, ends : of the times, of shape (times,).

    Returns
    -------
    How much of each time each part covers and no earlier part covers, of shape (times,).
    """
    union, covered, result = np.empty((0, 2)), np.zeros(len(begins)), {}
    for part, intervals in parts.items():
        union = join(np.concatenate([union, intervals]))
        before, covered = covered, covered_between(begins, ends, union)
        result[part] = covered - before
    return result
