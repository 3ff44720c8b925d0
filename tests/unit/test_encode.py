"""Encoding against its definition, one character at a time."""

from __future__ import annotations

import numpy as np
from Bio.Seq import Seq
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.data.nucleotides import encode, letters, nucleotides_only, reverse_complement

CODE = {"a": 1, "c": 2, "g": 3, "t": 4, "u": 4}
IUPAC = set("ACGTUMRWSYKVHDBN-.")

anything = st.text(max_size=40)
#: With full-width A, Cyrillic a and c, and a with an accent, which only look like nucleotides.
mostly_nucleotides = st.text("ACGTUacgtuNnRyKm-.*EFILOPQé\x00\uff21\u0430\u0441\u00e0", max_size=40)


def codes_of(text: str) -> list[int]:
    return [CODE.get(character.lower(), 0) if character.isascii() else 0 for character in text]


@settings(deadline=None)
@given(anything | mostly_nucleotides)
def test_every_letter_has_the_code_of_its_character(text):
    assert list(encode(letters(text))) == codes_of(text)


@settings(deadline=None)
@given(mostly_nucleotides | anything)
def test_nucleotides_are_the_letters_of_iupac(text):
    foreign = {c for c in text if not c.isascii() or c.upper() not in IUPAC}
    assert nucleotides_only(letters(text)) is not bool(foreign)


@settings(deadline=None)
@given(st.text(alphabet="ACGTN", min_size=1, max_size=40))
def test_the_reverse_complement_is_that_of_biopython(text):
    codes = np.frombuffer(encode(letters(text)), np.uint8)
    expected = encode(letters(str(Seq(text).reverse_complement())))
    assert bytes(reverse_complement(codes)) == expected
    assert bytes(reverse_complement(np.stack([codes, codes]))[1]) == expected
