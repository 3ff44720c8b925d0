"""K-mers of codes against their definition on text, with Biopython's reverse complement."""

from __future__ import annotations

import numpy as np
from Bio.Seq import Seq
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.data.nucleotides import encode, letters
from escala.data.nucleotides import kmers as found_in

sequences = st.text(alphabet="ACGTN", max_size=40)


def number(kmer: str) -> int:
    return int("".join(str("ACGT".index(letter)) for letter in kmer), 4)


def codes_of(text: str) -> np.ndarray:
    return np.frombuffer(encode(letters(text)), np.uint8)


@settings(deadline=None)
@given(sequences, st.integers(1, 12))
def test_each_kmer_is_the_smaller_of_itself_and_its_reverse_complement(text, k):
    kmers = [text[start : start + k] for start in range(len(text) - k + 1)]
    expected = [
        min(number(kmer), number(str(Seq(kmer).reverse_complement())))
        for kmer in kmers
        if "N" not in kmer
    ]
    assert found_in(codes_of(text), k, True).tolist() == expected


def test_the_largest_kmer_that_fits_is_exact():
    assert found_in(codes_of("T" * 31), 31, True).tolist() == [0]
    assert found_in(codes_of("C" * 31), 31, True).tolist() == [number("C" * 31)]
