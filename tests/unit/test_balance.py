"""Oversampling: which classes grow, by how much, and by what."""

from __future__ import annotations

import numpy as np
import pytest

from escala.core.errors import InputError
from escala.data.genomes.windows import ROW, class_sizes, more_rows, synthetic

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


def added(data, **changes) -> tuple[np.ndarray, np.ndarray]:
    """Return the codes and labels of the rows that are added."""
    codes, labels, genomes = data
    oversample = {"method": "smoten", "features": "positions", "neighbours": 5, "seed": 3} | changes
    rows = np.zeros(len(codes), ROW)
    rows["genome"] = np.arange(len(codes))
    letters, identities = np.full(len(codes), LENGTH), np.unique(genomes, return_inverse=True)[1]
    enlarged = class_sizes(labels, CLASSES, oversample)
    copied = more_rows(rows, labels, letters, identities, enlarged, oversample, LENGTH)["genome"]
    made = list(synthetic(codes, labels, enlarged, oversample))
    return (
        np.concatenate([codes[copied], *(block for _, block in made)]),
        np.concatenate([labels[copied], *(np.full(len(b), label) for label, b in made)]),
    )


def test_sequence_adds_copies_of_rows_and_positions_rows_that_no_record_has(data):
    copies, labels = added(data, features="sequence")
    made, same_labels = added(data)
    assert np.bincount(labels).tolist() == np.bincount(same_labels).tolist() == [0, 21, 16]
    for row, label in zip(copies, labels, strict=True):
        assert (data[0][data[1] == label] == row).all(axis=1).any()
    assert set(map(bytes, made)) - set(map(bytes, data[0]))


@pytest.mark.parametrize("features", ["positions", "sequence"])
def test_only_classes_named_and_below_their_target_grow(data, features):
    for rows, counts in (({"A": 20, "B": 17}, [0, 8]), ({"A": 29, "C": 3}, []), ({}, [])):
        assert np.bincount(added(data, features=features, rows=rows)[1]).tolist() == counts


def test_the_seed_decides_what_is_added(data):
    one, same, other = (added(data, seed=s)[0] for s in (3, 3, 4))
    assert (one == same).all()
    assert (one != other).any()


@pytest.mark.parametrize("features", ["positions", "sequence"])
def test_a_class_that_grows_needs_more_rows_than_neighbours(data, features):
    added(data, features=features, neighbours=8)
    with pytest.raises(InputError, match=r"class B: 9: .*9 neighbours.*oversample\.neighbours"):
        added(data, features=features, neighbours=9)
    _, labels = added(data, features=features, neighbours=10, rows={"C": 20})
    assert np.bincount(labels).tolist() == [0, 0, 6]
