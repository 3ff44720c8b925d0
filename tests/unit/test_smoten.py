"""SMOTEN against imbalanced-learn, and against all that the definition allows under ties."""

from __future__ import annotations

import tracemalloc
from itertools import combinations

import numpy as np
import pytest
import scipy.stats
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from imblearn.metrics.pairwise import ValueDifferenceMetric
from imblearn.over_sampling import SMOTEN as Reference
from sklearn.preprocessing import OrdinalEncoder

from escala.core.errors import InputError
from escala.data.genomes.prepare.smoten import (
    SMOTEN,
    Columns,
    Metric,
    neighbours,
    rough_distances,
    value_counts,
    within_reach,
)

MIB = 2**20


def random_rows(seed: int, counts: list[int], positions: int, codes: int):
    """Independent rows, each class with its own share of every code at every position."""
    random = np.random.default_rng(seed)
    labels = random.permutation(np.repeat(np.arange(len(counts)), counts))
    shares = random.dirichlet(np.ones(codes), (len(counts), positions)).cumsum(axis=2)
    drawn = random.random((len(labels), positions, 1))
    return (drawn > shares[labels]).sum(axis=2).clip(max=codes - 1).astype(np.uint8), labels


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


def assert_same(ours, theirs) -> None:
    assert ours[0].dtype == np.uint8
    assert ours[1].dtype == theirs[1].dtype
    np.testing.assert_array_equal(ours[0], theirs[0])
    np.testing.assert_array_equal(ours[1], theirs[1])


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
    options = {"random_state": random_state, "k_neighbors": k}
    assert_same(
        SMOTEN(**options).fit_resample(X, y),
        Reference(**options).fit_resample(X, y),
    )


def test_defaults_are_those_of_imbalanced_learn():
    ours, theirs = vars(SMOTEN()), vars(Reference())
    assert {name: ours[name] for name in ours if name != "block_bytes"} == {
        name: theirs[name] for name in theirs if name != "categorical_encoder"
    }


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
    options = {"sampling_strategy": wanted, "k_neighbors": k, "random_state": seed}
    ours, labels = SMOTEN(**options).fit_resample(X, y)
    theirs, their_labels = Reference(**options).fit_resample(X, y)
    np.testing.assert_array_equal(labels, their_labels)
    np.testing.assert_array_equal(ours[: len(X)], X)
    for label, count in enumerate(counts):
        allowed = allowed_rows(X[y == label], reference_distances(X, y, label), k + 1)
        drawn = np.random.RandomState(seed).choice(np.arange(count), size=15, replace=True)
        start = len(X) + 15 * label
        for base, our, their in zip(drawn, ours[start:], theirs[start:], strict=False):
            assert our.tobytes() in allowed[base]
            assert their.tobytes() in allowed[base]


def allowed_rows(rows, distances, votes: int) -> list[set[bytes]]:
    """Return, for each row, what it gives with each set of rows that are `votes` nearest to it."""
    result = []
    for distance in distances:
        last = np.sort(distance)[votes - 1]
        nearer, at_last = np.flatnonzero(distance < last), np.flatnonzero(distance == last)
        sets = combinations(at_last, votes - len(nearer))
        chosen = np.array([[*nearer, *some] for some in sets])
        winners = scipy.stats.mode(rows[chosen], axis=1).mode
        result.append({winner.tobytes() for winner in winners})
    return result


@given(
    seed=st.integers(0, 2**32 - 1),
    counts=st.lists(st.integers(6, 60), min_size=2, max_size=3),
    positions=st.sampled_from([1, 40, 700]),
    ancestors=st.integers(1, 4),
    rate=st.sampled_from([0.0, 0.005, 0.05, 1.0]),
)
@settings(max_examples=12)
def test_neighbours_are_the_nearest_by_the_distances_of_imbalanced_learn(
    seed, counts, positions, ancestors, rate
):
    X, y = clones(seed, counts, positions, ancestors, rate)
    votes, metric = 6, Metric(X, y, MIB)
    for label, count in enumerate(counts):
        members, bases = np.flatnonzero(y == label), np.arange(0, count, 2)
        found = neighbours(X, members, bases, votes, metric, MIB)
        distances = reference_distances(X, y, label)
        for base, rows in zip(bases, found, strict=True):
            places = np.searchsorted(members, rows)
            np.testing.assert_array_equal(members[places], rows)
            assert len(set(places)) == votes
            assert base in places
            np.testing.assert_array_equal(distances[base][places], np.sort(distances[base])[:votes])


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
    options = {"sampling_strategy": {0: 60}, "random_state": 0}
    ours, theirs = (kind(**options).fit_resample(X, y) for kind in (SMOTEN, Reference))
    assert_same(ours, theirs)
    # What code 40's row gives: the smallest of its five neighbours' codes, and of its own.
    assert (ours[0][len(X) :, 100] == 8).any()


@pytest.mark.parametrize("rate", [0.01, 1.0])
def test_distances_from_products_keep_to_their_error(rate):
    X, y = clones(12, [200, 150], 900, 3, rate)
    metric, members = Metric(X, y, MIB), np.flatnonzero(y == 0)
    columns = Columns.of(metric, value_counts(X, members, metric.alphabet, MIB))
    rough = np.array(list(rough_distances(X, members, members, columns, metric, MIB)))
    exact = reference_distances(X, y, 0)
    assert rough.dtype == np.float32
    assert (np.abs(rough - exact) <= columns.relative_error * exact).all()
    assert columns.relative_error < 1e-4


@given(
    seed=st.integers(0, 2**32 - 1),
    rows=st.integers(1, 60),
    count=st.integers(1, 8),
    apart=st.sampled_from([0.0, 0.5, 3.0]),
)
def test_the_nearest_are_within_reach_whatever_the_errors(seed, rows, count, apart):
    random, error = np.random.default_rng(seed), 1e-4
    exact = 7 * (1 + error * apart * random.random(rows))
    rough = (exact * random.choice([1 - error, 1 + error], rows)).astype(np.float32)
    # Leave room for the rounding to float32 itself.
    reach = within_reach(rough, count, error + 2**-23)
    assert set(np.argsort(exact)[:count]) <= set(reach)


@pytest.mark.parametrize(
    ("counts", "strategy"),
    [
        ([30, 9, 14], "auto"),
        ([30, 9, 14], "all"),
        ([30, 9, 14], "minority"),
        ([30, 9, 14], "not minority"),
        ([30, 9, 14], "not majority"),
        ([30, 9, 14], {2: 33, 0: 31}),
        ([30, 9, 14], {1: 9, 2: 15}),
        ([30, 9, 14], lambda y: {1: (y == 0).sum() + 7}),
        ([14, 30], 0.8),
        ([30, 30], "auto"),
    ],
)
def test_strategies_are_those_of_imbalanced_learn(counts, strategy):
    X, y = random_rows(1, counts, 40, 5)
    assert not any(tied(X, y, label, 6) for label in range(len(counts)))
    options = {"sampling_strategy": strategy, "random_state": 5}
    ours, theirs = SMOTEN(**options), Reference(**options)
    assert_same(ours.fit_resample(X, y), theirs.fit_resample(X, y))
    assert list(ours.sampling_strategy_.items()) == list(theirs.sampling_strategy_.items())


def test_labels_may_be_text_and_keep_their_type():
    X, y = random_rows(2, [20, 9, 11], 40, 5)
    names = np.array(["SARS", "MERS", "EBOLA"])[y]
    options = {"sampling_strategy": {"MERS": 25, "EBOLA": 12}, "random_state": 5}
    assert_same(
        SMOTEN(**options).fit_resample(X, names), Reference(**options).fit_resample(X, names)
    )


def test_a_generator_is_drawn_from_class_after_class():
    X, y = random_rows(3, [30, 9, 14], 40, 5)
    one, other = np.random.RandomState(8), np.random.RandomState(8)
    for _ in range(2):
        assert_same(
            SMOTEN(random_state=one).fit_resample(X, y),
            Reference(random_state=other).fit_resample(X, y),
        )
    # None is the generator of all of NumPy.
    np.random.seed(4)
    ours = SMOTEN().fit_resample(X, y)
    np.random.seed(4)
    assert_same(ours, Reference().fit_resample(X, y))


def test_all_is_drawn_before_the_first_block():
    X, y = random_rows(3, [30, 9, 14], 40, 5)
    random = np.random.RandomState(8)
    blocks = SMOTEN(random_state=random).new_rows(X, y)
    random.randint(9, size=1000)
    expected, _ = Reference(random_state=np.random.RandomState(8)).fit_resample(X, y)
    np.testing.assert_array_equal(np.concatenate([b for _, b in blocks]), expected[len(X) :])


@pytest.mark.parametrize("alphabet", [[0, 255], [7, 100, 101, 254], range(255), range(256)])
def test_any_codes_of_one_byte_will_do(alphabet):
    alphabet = np.array(alphabet, np.uint8)
    X, y = random_rows(6, [700, 60], 60, len(alphabet))
    X = alphabet[X]
    assert set(X.ravel()) == set(alphabet)
    assert not tied(X, y, 1, 6)
    options = {"sampling_strategy": {1: 120}, "random_state": 5}
    assert_same(SMOTEN(**options).fit_resample(X, y), Reference(**options).fit_resample(X, y))


@pytest.mark.parametrize("k", [1, 11, 300])
def test_neighbours_may_be_all_the_others_and_more_than_a_byte_counts(k):
    X, y = random_rows(7, [k + 9, k + 1], 40, 3)
    options = {"random_state": 5, "k_neighbors": k}
    assert not tied(X, y, 1, k + 1)
    assert_same(SMOTEN(**options).fit_resample(X, y), Reference(**options).fit_resample(X, y))


def test_positions_that_do_not_vary_and_classes_without_any_distance():
    X, y = random_rows(8, [20, 9], 30, 4)
    X[:, 5], X[y == 1, 9] = 3, 2
    assert_same(*(kind(random_state=5).fit_resample(X, y) for kind in (SMOTEN, Reference)))
    # No position tells the classes apart: all rows are at distance 0, and each base is followed by
    # the next of its class.
    X = np.arange(4, dtype=np.uint8)[:, None].repeat(3, axis=1)
    X, y = np.concatenate([X, X]), np.repeat([0, 1], 4)
    rows, _ = SMOTEN(sampling_strategy={0: 40}, random_state=0, k_neighbors=1).fit_resample(X, y)
    drawn = np.random.RandomState(0).choice(4, size=36)
    np.testing.assert_array_equal(rows[8:, 0], np.minimum(drawn, (drawn + 1) % 4))


@pytest.mark.parametrize("block_bytes", [64 * 1024, 300_000, 4 * MIB])
def test_blocks_change_nothing_but_their_size(block_bytes, tmp_path):
    X, y = clones(9, [500, 90, 40], 300, 3, 0.05)
    np.save(tmp_path / "codes.npy", X)
    mapped = np.load(tmp_path / "codes.npy", mmap_mode="r", allow_pickle=False)
    expected, labels = SMOTEN(random_state=5).fit_resample(X, y)
    blocks = list(SMOTEN(random_state=5, block_bytes=block_bytes).new_rows(mapped, y))
    np.testing.assert_array_equal(np.concatenate([b for _, b in blocks]), expected[len(X) :])
    told = np.concatenate([np.full(len(b), label) for label, b in blocks])
    np.testing.assert_array_equal(told, labels[len(X) :])
    assert max(b.nbytes for _, b in blocks) <= block_bytes
    assert len(blocks) > 2 or block_bytes == 4 * MIB


@pytest.mark.parametrize("block_bytes", [MIB, 4 * MIB])
def test_memory_is_bounded(block_bytes, tmp_path):
    X, y = clones(10, [700, 700], 1000, 4, 0.2)
    np.save(tmp_path / "codes.npy", X)
    mapped = np.load(tmp_path / "codes.npy", mmap_mode="r", allow_pickle=False)
    smoten = SMOTEN(sampling_strategy={1: 2300}, random_state=5, block_bytes=block_bytes)
    tracemalloc.start()
    try:
        rows = sum(len(block) for _, block in smoten.new_rows(mapped, y))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert rows == 1600
    assert block_bytes / 4 < peak < block_bytes + 100 * len(X) + 8 * 1000 * 5 * 5


def test_codes_are_counted_where_a_byte_would_not_hold_the_count():
    X, _ = random_rows(11, [1000], 7, 3)
    counts = value_counts(X, np.arange(1, 1000), np.arange(4, dtype=np.uint8), MIB)
    expected = [np.bincount(column, minlength=4) for column in X[1:].T]
    np.testing.assert_array_equal(counts, expected)


CODES, LABELS = np.zeros((20, 3), np.uint8), np.repeat([0, 1], [14, 6])


@pytest.mark.parametrize(
    ("X", "y", "options", "where", "reason"),
    [
        (CODES, LABELS, {"k_neighbors": 6}, "class 1", "too few for 6 neighbours"),
        (CODES.astype(int), LABELS, {}, "X", "no table of codes"),
        (CODES.tolist(), LABELS, {}, "X", "no table of codes"),
        (CODES[:, 0], LABELS, {}, "X", "no table of codes"),
        (CODES[:0], LABELS[:0], {}, "X", "no table of codes"),
        (CODES, LABELS[1:], {}, "y", "labels for 20 rows"),
        (CODES, LABELS, {"k_neighbors": 0}, "k_neighbors", "no number"),
        (CODES, LABELS, {"k_neighbors": 2.5}, "k_neighbors", "no number"),
        (CODES, LABELS, {"block_bytes": 23}, "block_bytes", "take 24 bytes"),
    ],
)
def test_what_cannot_be_used_is_refused_before_anything_is_made(X, y, options, where, reason):
    with pytest.raises(InputError) as caught:
        SMOTEN(**options).new_rows(X, y)
    assert caught.value.where == where
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("y", "strategy"),
    [
        (LABELS, {2: 30}),
        (LABELS, {0: 3}),
        (LABELS, 0.1),
        (np.zeros(20, int), "auto"),
        (np.linspace(0, 1, 20), "auto"),
    ],
)
def test_what_imbalanced_learn_refuses_is_refused_in_its_words(y, strategy):
    words = []
    for kind in (SMOTEN, Reference):
        with pytest.raises(ValueError) as caught:
            kind(sampling_strategy=strategy).fit_resample(CODES, y)
        words.append(str(caught.value))
    assert words[0] == words[1]


def test_the_majority_is_nothing_to_enlarge():
    with pytest.raises(ValueError, match="majority"):
        SMOTEN(sampling_strategy="majority").fit_resample(CODES, LABELS)
