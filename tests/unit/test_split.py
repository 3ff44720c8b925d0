"""The stratified split: its properties for any class sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.errors import InputError
from escala.prepare.split import stratified_split


def labelled(counts: list[int], seed: int = 0) -> np.ndarray:
    labels = np.repeat(np.arange(len(counts)), counts)
    return np.random.default_rng(seed).permutation(labels)


def names(counts: list[int]) -> list[str]:
    return [f"C{label}" for label in range(len(counts))]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 12), min_size=2, max_size=10),
    st.sampled_from([0.1, 0.3, 0.5, 0.8]),
    st.integers(0, 2**32 - 1),
)
def test_either_refused_or_every_row_once_and_each_class_on_both_sides(counts, fraction, seed):
    labels = labelled(counts)
    try:
        train, test = stratified_split(labels, names(counts), fraction, seed)
    except InputError as error:
        assert min(counts) * min(fraction, 1 - fraction) < 1.5
        assert error.where.removeprefix("class ") in names(counts)
        assert error.value == counts[int(error.where.removeprefix("class C"))]
        return
    assert sorted([*train, *test]) == list(range(len(labels)))
    assert list(train) == sorted(train)
    assert list(test) == sorted(test)
    for side in (train, test):
        assert set(labels[side]) == set(range(len(counts)))
    for label, count in enumerate(counts):
        # One row from rounding within the class, one from rounding the whole test set up.
        assert abs((labels[test] == label).sum() - count * fraction) < 2


def test_the_seed_alone_decides_the_rows():
    counts = [40, 30, 20]
    labels = labelled(counts)
    one, again, other = (stratified_split(labels, names(counts), 0.3, s)[1] for s in (4, 4, 5))
    assert one.tolist() == again.tolist() != other.tolist()


@pytest.mark.parametrize(
    ("counts", "lacking"),
    [
        ([20, 1, 20], "C1"),
        ([20, 20, 0], "C2"),
        # Nine test rows for ten classes: scikit-learn itself would refuse this in its own words.
        ([2, *[3] * 9], "C0"),
        # The one test row that a class of two might get goes to larger remainders.
        ([2, *[103] * 9], "C0"),
    ],
)
def test_a_class_too_small_for_both_sides_is_named(counts, lacking):
    with pytest.raises(InputError) as caught:
        stratified_split(labelled(counts), names(counts), 0.3, 0)
    assert caught.value.where == f"class {lacking}"
    assert "too few" in caught.value.reason
    assert "add records" in caught.value.remedy
