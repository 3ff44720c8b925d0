"""SMOTEN against imbalanced-learn, and against all that the definition allows under ties."""

from __future__ import annotations

import hashlib
import tracemalloc
from itertools import combinations

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from imblearn.metrics.pairwise import ValueDifferenceMetric
from imblearn.over_sampling import SMOTEN
from sklearn.preprocessing import OrdinalEncoder

from escala.core.errors import InputError
from escala.data.genomes.smoten import new_rows


def random_rows(seed: int, counts: list[int], positions: int, codes: int):
    """Independent rows; each class has each code in another proportion at every position."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(len(counts)), counts))
    limits = random.dirichlet(np.ones(codes), (len(counts), positions)).cumsum(axis=2)
    drawn = random.random((len(labels), positions, 1))
    return (drawn > limits[labels]).sum(axis=2).clip(max=codes - 1).astype(np.uint8), labels


def clones(seed: int, counts: list[int], positions: int, ancestors: int, rate: float):
    """Mutated copies of few ancestors in every class, many of them equal."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(len(counts)), counts))
    roots = random.integers(0, 5, (len(counts), ancestors, positions))
    copies = roots[labels, random.integers(0, ancestors, len(labels))]
    mutated = random.random(copies.shape) < rate
    return np.where(mutated, random.integers(0, 5, copies.shape), copies).astype(np.uint8), labels


def reference_distances(X, y, label) -> np.ndarray:
    """Return imbalanced-learn's distances between the rows of a class, to the last bit."""
    encoder = OrdinalEncoder(dtype=np.int32)
    encoded = encoder.fit_transform(X)
    metric = ValueDifferenceMetric(n_categories=[len(c) for c in encoder.categories_])
    return metric.fit(encoded, y).pairwise(encoded[y == label])


def tied(X, y, label, votes: int) -> bool:
    """Whether any row of the class has as its last neighbour and its next one equally far ones."""
    ordered = np.sort(reference_distances(X, y, label), axis=1)
    return votes < len(ordered) and bool((ordered[:, votes - 1] == ordered[:, votes]).any())


def to_largest(y) -> dict[int, int]:
    """Return the rows wanted if every class is enlarged to the largest."""
    counts = np.bincount(y)
    return {label: int(counts.max()) for label, count in enumerate(counts) if count < counts.max()}


def ours(X, y, wanted: dict[int, int], k: int = 5, seed: int = 5):
    """Return the new rows and their labels."""
    blocks = list(new_rows(X, y, wanted, k, seed))
    assert all(block.dtype == np.uint8 for _, block in blocks)
    labels = [np.full(len(block), label) for label, block in blocks]
    empty = np.empty((0, X.shape[1]), np.uint8)
    return np.concatenate([empty, *(block for _, block in blocks)]), np.concatenate([[], *labels])


def theirs(X, y, wanted: dict[int, int], k: int = 5, seed: int = 5):
    smoten = SMOTEN(sampling_strategy=wanted, k_neighbors=k, random_state=seed)
    rows, labels = smoten.fit_resample(X, y)
    return rows[len(X) :], labels[len(X) :]


def assert_same(X, y, wanted: dict[int, int], k: int = 5, seed: int = 5) -> np.ndarray:
    for one, other in zip(ours(X, y, wanted, k, seed), theirs(X, y, wanted, k, seed), strict=True):
        np.testing.assert_array_equal(one, other)
    return ours(X, y, wanted, k, seed)[0]


@given(
    seed=st.integers(0, 2**32 - 1),
    counts=st.lists(st.integers(8, 40), min_size=2, max_size=4),
    positions=st.sampled_from([30, 60, 250]),
    codes=st.integers(2, 7),
    k=st.integers(1, 7),
    random_state=st.integers(0, 2**32 - 1),
)
@settings(max_examples=12)
def test_without_ties_rows_are_those_of_imbalanced_learn(
    seed, counts, positions, codes, k, random_state
):
    X, y = random_rows(seed, counts, positions, codes)
    assume(not any(tied(X, y, label, k + 1) for label in range(len(counts))))
    assert_same(X, y, to_largest(y), k, random_state)


@given(
    seed=st.integers(0, 2**32 - 1),
    counts=st.lists(st.integers(5, 11), min_size=2, max_size=3),
    positions=st.integers(1, 25),
    ancestors=st.integers(1, 3),
    rate=st.sampled_from([0.0, 0.02, 0.1]),
    k=st.integers(1, 4),
)
@settings(max_examples=30)
def test_under_ties_every_row_is_one_that_the_definition_allows(
    seed, counts, positions, ancestors, rate, k
):
    X, y = clones(seed, counts, positions, ancestors, rate)
    wanted = {label: count + 15 for label, count in enumerate(counts)}
    made, labels = ours(X, y, wanted, k, seed)
    expected, their_labels = theirs(X, y, wanted, k, seed)
    np.testing.assert_array_equal(labels, their_labels)
    for label, count in enumerate(counts):
        allowed = allowed_rows(X[y == label], reference_distances(X, y, label), k + 1)
        drawn = np.random.RandomState(seed).choice(np.arange(count), size=15, replace=True)
        start = 15 * label
        for base, our, their in zip(drawn, made[start:], expected[start:], strict=False):
            assert our.tobytes() in allowed[base]
            assert their.tobytes() in allowed[base]


def allowed_rows(rows, distances, votes: int) -> list[set[bytes]]:
    """Return, for each row, what it gives with each set of rows that are `votes` nearest to it."""
    result = []
    for distance in distances:
        last = np.sort(distance)[votes - 1]
        nearer, at_last = np.flatnonzero(distance < last), np.flatnonzero(distance == last)
        sets = combinations(at_last, votes - len(nearer))
        groups = np.array([[*nearer, *some] for some in sets])
        winners = scipy.stats.mode(rows[groups], axis=1).mode
        result.append({winner.tobytes() for winner in winners})
    return result


def test_distances_closer_than_float32_can_tell_are_told_apart():
    # At the last position codes 1 to 12 stand in the small class once each and in the large one
    # 1500 times and a few more: their distances from code 40 differ by parts in a hundred million.
    copies = np.arange(1500, 1512)[::-1]
    small = np.full((13, 101), 2, np.uint8)
    small[0, :100], small[:, 100] = 1, [40, *range(1, 13)]
    large = np.full((copies.sum(), 101), 2, np.uint8)
    large[:, 100] = np.repeat(np.arange(1, 13), copies)
    X, y = np.concatenate([small, large]), np.repeat([0, 1], [len(small), len(large)])
    distances = reference_distances(X, y, 0)[0, 1:]
    assert len(np.unique(distances)) > len(np.unique(distances.astype(np.float32)))
    made = assert_same(X, y, {0: 60}, seed=0)
    # What code 40's row gives: the smallest of its five neighbours' codes, and of its own.
    assert (made[:, 100] == 8).any()


@pytest.mark.parametrize("k", [1, 300])
def test_neighbours_may_be_all_the_others_and_more_than_a_byte_counts(k):
    X, y = random_rows(7, [k + 9, k + 1], 40, 3)
    assert not tied(X, y, 1, k + 1)
    assert_same(X, y, to_largest(y), k)


def test_positions_that_do_not_vary_and_classes_without_any_distance():
    X, y = random_rows(8, [20, 9], 30, 4)
    X[:, 5], X[y == 1, 9] = 3, 2
    assert_same(X, y, to_largest(y))
    # No position tells the classes apart: all rows are at distance 0, and each base is followed by
    # the next of its class.
    X = np.arange(4, dtype=np.uint8)[:, None].repeat(3, axis=1)
    X, y = np.concatenate([X, X]), np.repeat([0, 1], 4)
    rows, _ = ours(X, y, {0: 40}, k=1, seed=0)
    drawn = np.random.RandomState(0).choice(4, size=36)
    np.testing.assert_array_equal(rows[:, 0], np.minimum(drawn, (drawn + 1) % 4))


def test_blocks_bound_the_memory_and_change_nothing_but_their_size(tmp_path):
    X, y = clones(10, [700, 700], 1000, 4, 0.2)
    np.save(tmp_path / "codes.npy", X)
    mapped = np.load(tmp_path / "codes.npy", mmap_mode="r", allow_pickle=False)
    expected, made, block_bytes = ours(X, y, {1: 2300})[0], hashlib.sha256(), 4 * 2**20
    tracemalloc.start()
    try:
        for label, block in new_rows(mapped, y, {1: 2300}, 5, 5, block_bytes=block_bytes):
            assert label == 1 and block.nbytes <= block_bytes
            made.update(block)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(expected) == 1600 and made.digest() == hashlib.sha256(expected).digest()
    assert block_bytes / 4 < peak < block_bytes + 100 * len(X) + 8 * 1000 * 5 * 5
    X, y = random_rows(1, [9, 9], 100, 4)
    with pytest.raises(InputError, match="4 codes at 100 positions take 12800 bytes"):
        next(new_rows(X, y, {1: 12}, 5, 5, block_bytes=12799))
    assert next(new_rows(X, y, {1: 12}, 5, 5, block_bytes=12800))[0] == 1
    # The default, as docs/decisions/genomes.md has it, is 256 MiB; a position takes half a MiB.
    X, y = np.arange(256, dtype=np.uint8)[:, None].repeat(513, axis=1), np.arange(256) % 2
    with pytest.raises(InputError, match=f"block_bytes: {2**28}: tables of 256 codes at 513"):
        next(new_rows(X, y, {0: 200}, 5, 5))
