"""The stratified split: its properties for any class sizes."""

from __future__ import annotations

from itertools import chain, combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.core.errors import InputError
from escala.data.genomes.split import (
    SLACK,
    group_split,
    split_at_random,
    split_leaving_out,
)


def labelled(counts: list[int], seed: int = 0) -> tuple[np.ndarray, list[str]]:
    """Return labels in mixed order, and the names of the classes."""
    labels = np.repeat(np.arange(len(counts)), counts)
    return np.random.default_rng(seed).permutation(labels), [f"C{n}" for n in range(len(counts))]


@settings(deadline=None, max_examples=40)
@given(
    st.lists(st.integers(0, 12), min_size=2, max_size=10),
    st.sampled_from([0.1, 0.3, 0.5, 0.8]),
    st.integers(0, 2**32 - 1),
)
def test_either_refused_or_every_row_once_and_each_class_on_both_sides(counts, fraction, seed):
    labels, names = labelled(counts)
    try:
        split = split_at_random(labels, names, fraction, seed)
    except InputError as error:
        assert min(counts) * min(fraction, 1 - fraction) < 1.5
        assert error.value == counts[names.index(error.where.removeprefix("class "))]
        return
    train, test = split.train, split.test
    assert sorted([*train, *test]) == list(range(len(labels)))
    assert list(train) == sorted(train) and list(test) == sorted(test)
    for side in (train, test):
        assert set(labels[side]) == set(range(len(counts)))
    for label, count in enumerate(counts):
        # One row from rounding within the class, one from rounding the whole test set up.
        assert abs((labels[test] == label).sum() - count * fraction) < 2


@pytest.mark.parametrize(
    ("counts", "lacking"),
    [
        ([20, 20, 0], "C2"),
        # Nine test rows for ten classes: scikit-learn itself would refuse this in its own words.
        ([2, *[3] * 9], "C0"),
        # The one test row that a class of two might get goes to larger remainders.
        ([2, *[103] * 9], "C0"),
    ],
)
def test_a_class_too_small_for_both_sides_is_named(counts, lacking):
    with pytest.raises(InputError, match=f"class {lacking}.*too few.*add records"):
        split_at_random(*labelled(counts), 0.3, 0)


grouped = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=8), min_size=2, max_size=5)


def in_groups(sizes: list[list[int]], seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels and groups of rows in mixed order; `sizes` has the rows of each group, by class."""
    rows = [
        (label, f"g{label}.{number}")
        for label, groups in enumerate(sizes)
        for number, size in enumerate(groups)
        for _ in range(size)
    ]
    order = np.random.default_rng(seed).permutation(len(rows))
    labels, groups = zip(*(rows[i] for i in order), strict=True)
    return np.array(labels), np.array(groups, object)


@settings(deadline=None)
@given(grouped, st.sampled_from([0.1, 0.3, 0.5, 0.8]), st.integers(0, 100))
def test_groups_stay_whole_and_the_fraction_is_nearly_that_asked_for(sizes, fraction, seed):
    labels, groups = in_groups(sizes)
    classes = [f"C{label}" for label in range(len(sizes))]
    single = tuple(label for label, own in enumerate(sizes) if len(own) == 1)
    if len(single) == len(sizes):
        with pytest.raises(InputError, match="none can be split"):
            group_split(labels, groups, classes, fraction, seed)
        return
    split = group_split(labels, groups, classes, fraction, seed)
    assert sorted([*split.train, *split.test]) == list(range(len(labels)))
    assert list(split.train) == sorted(split.train) and list(split.test) == sorted(split.test)
    assert not set(groups[split.train]) & set(groups[split.test])
    assert split.single_group_classes == single
    for label, own in enumerate(sizes):
        tested = (labels[split.test] == label).sum()
        if len(own) == 1:
            assert tested == 0
            continue
        assert 0 < tested < sum(own)
        wanted = fraction * sum(own)
        subsets = chain.from_iterable(combinations(own, n) for n in range(1, len(own)))
        nearest = min(abs(sum(subset) - wanted) for subset in subsets)
        assert abs(tested - wanted) <= max(nearest, SLACK * wanted)


def test_the_seed_alone_decides_the_groups_and_none_is_tested_always():
    labels, groups = in_groups([[31, 30, 28, 6, 5, 4], [3] * 8])
    tested = [
        set(groups[group_split(labels, groups, ["A", "B"], 0.3, seed).test])
        for seed in (*range(30), 0)
    ]
    assert tested[0] == tested[-1]
    assert len(set(map(frozenset, tested))) > 10
    assert not set.intersection(*tested)
    assert set.union(*tested) == set(groups)


def test_the_groups_left_out_are_the_test_rows():
    labels, groups = in_groups([[5, 4, 3], [7], [2, 2]])
    split = split_leaving_out(labels, groups, ["A", "B", "C"], ["g0.1", "g2.0"])
    assert set(groups[split.test]) == {"g0.1", "g2.0"}
    assert set(groups[split.train]) == {"g0.0", "g0.2", "g1.0", "g2.1"}
    assert split.single_group_classes == (1,)
    with_an_empty_class = split_leaving_out(labels, groups, ["A", "B", "C", "D"], ["g0.1"])
    assert with_an_empty_class.single_group_classes == (1, 3)
    drawn = group_split(labels, groups, ["A", "B", "C", "D"], 0.5, 0)
    assert drawn.single_group_classes == (1, 3)


@pytest.mark.parametrize(
    ("left_out", "reason"),
    [
        (["g0.9"], "'g0.9': .*no such group"),
        (["g2.0", "g2.1"], "all groups of class C"),
        (["g1.0"], "all groups of class B"),
    ],
)
def test_groups_that_cannot_be_left_out_are_refused(left_out, reason):
    labels, groups = in_groups([[5, 4, 3], [7], [2, 2]])
    with pytest.raises(InputError, match=reason):
        split_leaving_out(labels, groups, ["A", "B", "C"], left_out)
