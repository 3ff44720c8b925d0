"""k-mer counts against their definition, taken letter by letter."""

from __future__ import annotations

import tracemalloc
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import sparse

from escala.workloads.kmer_logreg import model_fit as model

COMPLEMENT = str.maketrans("ACGT", "TGCA")


def canonical(word: str) -> str:
    return min(word, word.translate(COMPLEMENT)[::-1])


def vocabulary(k: int) -> list[str]:
    return sorted({canonical("".join(letters)) for letters in product("ACGT", repeat=k)})


def brute_force(codes: np.ndarray, k: int) -> np.ndarray:
    columns = {word: number for number, word in enumerate(vocabulary(k))}
    found = np.zeros((len(codes), len(columns)), np.int64)
    for row, sequence in zip(found, codes, strict=True):
        letters = "".join("-ACGT"[code] for code in sequence)
        for start in range(len(letters) - k + 1):
            word = letters[start : start + k]
            if "-" not in word:
                row[columns[canonical(word)]] += 1
    return found


def counted(codes: np.ndarray, k: int) -> np.ndarray:
    return np.concatenate([np.empty((0, model.columns(k)), int), *model.counts(codes, k)])


sequences = arrays.arrays(
    np.uint8,
    st.tuples(st.integers(0, 7), st.integers(0, 30)),
    # Few letters are unknown, so that whole k-mers stand between them.
    elements=st.sampled_from([1, 2, 3, 4] * 6 + [0]),
)


@settings(max_examples=60)
@given(sequences, st.integers(1, 4))
def test_counts_are_those_of_the_definition(codes, k):
    np.testing.assert_array_equal(counted(codes, k), brute_force(codes, k))


@settings(max_examples=30)
@given(sequences, st.integers(1, 8))
def test_a_sequence_and_its_reverse_complement_count_alike(codes, k):
    other = np.where(codes[:, ::-1] > 0, 5 - codes[:, ::-1], 0).astype(np.uint8)
    np.testing.assert_array_equal(counted(codes, k), counted(other, k))


@pytest.mark.parametrize("k", range(1, 7))
def test_there_are_as_many_columns_as_canonical_kmers(k):
    assert model.columns(k) == len(vocabulary(k))
    assert model.letters(model.columns(k)) == k


@pytest.mark.parametrize("k", [0, 9, 10**9])
def test_other_kmers_are_not_counted(k):
    with pytest.raises(ValueError, match="not from 1 to 8"):
        model.columns(k)


@settings(max_examples=30)
@given(sequences, st.integers(1, 3))
def test_blocks_are_put_together_in_order(codes, k):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "BLOCK_LETTERS", 2 * max(1, codes.shape[1]))
        np.testing.assert_array_equal(counted(codes, k), brute_force(codes, k))
        patch.setattr(model, "BLOCK_CELLS", 1)
        assert all(len(block) == 1 for block in model.counts(codes, k))


@settings(max_examples=30)
@given(sequences, st.integers(1, 5))
def test_rows_have_length_1_unless_they_hold_no_kmer(codes, k):
    found = model.frequencies(codes, k)
    assert sparse.issparse(found) == (2 * (codes.shape[1] - k + 1) < model.columns(k))
    dense = found.toarray() if sparse.issparse(found) else found
    assert dense.dtype == np.float32 and dense.shape == (len(codes), model.columns(k))
    counts = brute_force(codes, k)
    lengths = np.linalg.norm(counts, axis=1, keepdims=True)
    np.testing.assert_allclose(dense * np.maximum(lengths, 1), counts, rtol=1e-6)


def test_counting_takes_memory_that_does_not_grow_with_the_rows():
    def peak(rows: int) -> int:
        codes = np.tile(np.arange(1000, dtype=np.uint8) % 5, (rows, 1))
        tracemalloc.start()
        for _ in model.counts(codes, 6):
            pass
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    few, many = peak(4000), peak(16_000)
    assert many < 1.2 * few
