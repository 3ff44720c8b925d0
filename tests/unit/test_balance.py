"""Oversampling against imbalanced-learn called directly."""

from __future__ import annotations

import numpy as np
import pytest
from imblearn.over_sampling import SMOTEN

from escala.core.errors import InputError
from escala.data.genomes.prepare.balance import more_rows, synthetic, wanted
from escala.data.genomes.prepare.windows import ROW

CLASSES = ["A", "B", "C"]
COUNTS = [30, 9, 14]
LENGTH = 12


@pytest.fixture
def data() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes, labels in mixed order, and genomes; class B holds one genome twice."""
    random = np.random.default_rng(0)
    labels = random.permutation(np.repeat([0, 1, 2], COUNTS))
    roots = random.integers(0, 5, (3, LENGTH))
    codes = np.where(
        random.random((len(labels), LENGTH)) < 0.3,
        random.integers(0, 5, (len(labels), LENGTH)),
        roots[labels],
    ).astype(np.uint8)
    genomes = np.array([f"genome{row}" for row in range(len(labels))])
    first, second = np.flatnonzero(labels == 1)[:2]
    codes[second], genomes[second] = codes[first], genomes[first]
    return codes, labels, genomes


def balanced(data, **changes) -> tuple[np.ndarray, np.ndarray]:
    """Put together what was given and what is added, as the arrays of a dataset are."""
    codes, labels, genomes = data
    oversample = {
        "method": "smoten",
        "features": "positions",
        "implementation": "imbalanced-learn",
        "neighbours": 5,
        "seed": 3,
    } | changes
    rows = np.zeros(len(codes), ROW)
    rows["genome"] = np.arange(len(codes))
    letters, identities = np.full(len(codes), LENGTH), np.unique(genomes, return_inverse=True)[1]
    strategy = wanted(labels, CLASSES, oversample)
    added = more_rows(rows, labels, letters, identities, strategy, oversample, LENGTH)
    made = list(synthetic(codes, labels, strategy, oversample))
    return (
        np.concatenate([codes, codes[added["genome"]], *(block for _, block in made)]),
        np.concatenate(
            [labels, labels[added["genome"]], *(np.full(len(b), label) for label, b in made)]
        ),
    )


def test_positions_are_what_imbalanced_learn_makes_of_the_codes(data):
    codes, labels = balanced(data)
    expected, expected_labels = SMOTEN(k_neighbors=5, random_state=3).fit_resample(*data[:2])
    assert codes.dtype == np.uint8
    np.testing.assert_array_equal(codes, expected)
    np.testing.assert_array_equal(labels, expected_labels)
    assert np.bincount(labels).tolist() == [30, 30, 30]


def test_either_implementation_makes_the_same_rows_where_no_neighbours_are_tied():
    random = np.random.default_rng(1)
    codes = random.integers(0, 5, (60, 400), dtype=np.uint8)
    data = codes, random.permutation(np.repeat([0, 1, 2], [30, 12, 18])), np.arange(60)
    for one, other in zip(balanced(data), balanced(data, implementation="escala"), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("features", ["positions", "sequence"])
def test_the_rows_given_stay_first_in_their_order(data, features):
    codes, labels = balanced(data, features=features)
    np.testing.assert_array_equal(codes[: len(data[0])], data[0])
    np.testing.assert_array_equal(labels[: len(data[1])], data[1])


def test_sequence_adds_only_copies_of_rows_of_the_same_class(data):
    codes, labels = balanced(data, features="sequence")
    assert np.bincount(labels).tolist() == [30, 30, 30]
    for row, label in zip(codes[len(data[0]) :], labels[len(data[0]) :], strict=True):
        assert (data[0][data[1] == label] == row).all(axis=1).any()


def test_positions_add_rows_that_no_record_has(data):
    codes, _ = balanced(data)
    known = set(map(bytes, data[0]))
    assert any(bytes(row) not in known for row in codes[len(data[0]) :])


@pytest.mark.parametrize("features", ["positions", "sequence"])
def test_only_classes_named_and_below_their_target_grow(data, features):
    _, labels = balanced(data, features=features, rows={"A": 20, "B": 17})
    assert np.bincount(labels).tolist() == [30, 17, 14]


@pytest.mark.parametrize("rows", [{"A": 29, "C": 3}, {}])
def test_nothing_to_enlarge_gives_back_the_rows(data, rows):
    codes, labels = balanced(data, rows=rows)
    np.testing.assert_array_equal(codes, data[0])
    np.testing.assert_array_equal(labels, data[1])


def test_the_seed_decides_what_is_added(data):
    one, again, other = (balanced(data, seed=s)[0] for s in (3, 3, 4))
    assert (one == again).all()
    assert (one != other).any()


@pytest.mark.parametrize("features", ["positions", "sequence"])
def test_a_class_needs_more_rows_than_neighbours(data, features):
    balanced(data, features=features, neighbours=8)
    with pytest.raises(InputError) as caught:
        balanced(data, features=features, neighbours=9)
    assert (caught.value.where, caught.value.value) == ("class B", 9)
    assert "9 neighbours" in caught.value.reason
    assert "oversample.neighbours" in caught.value.remedy


def test_a_class_left_alone_may_be_smaller_than_the_neighbours(data):
    _, labels = balanced(data, neighbours=10, rows={"C": 20})
    assert np.bincount(labels).tolist() == [30, 9, 20]
