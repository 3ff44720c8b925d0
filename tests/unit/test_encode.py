"""Encoding against its definition, one character at a time."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from escala.prepare.encode import ambiguous, encode, foreign_letters, letters

CODE = {"a": 1, "c": 2, "g": 3, "t": 4, "u": 4}
IUPAC = set("ACGTUMRWSYKVHDBN-.")

anything = st.text(max_size=40)
mostly_nucleotides = st.text(alphabet="ACGTUacgtuNnRyKm-.*EFILOPQé\x00", max_size=40)


def codes_of(text: str) -> list[int]:
    return [CODE.get(character.lower(), 0) if character.isascii() else 0 for character in text]


@settings(deadline=None)
@given(anything | mostly_nucleotides, st.integers(1, 60))
def test_codes_are_those_of_each_character_cut_and_padded(text, length):
    expected = (codes_of(text) + [0] * length)[:length]
    codes = encode(letters(text), length)
    assert codes.dtype == np.uint8
    assert codes.tolist() == expected


def test_both_cases_and_both_alphabets():
    assert encode(letters("ACGTUacgtu"), 12).tolist() == [1, 2, 3, 4, 4, 1, 2, 3, 4, 4, 0, 0]


def test_letters_that_only_look_or_fold_like_nucleotides_have_no_code():
    # Full-width A, Cyrillic a and c, a with an accent.
    assert encode(letters("\uff21\u0430\u0441\u00e0N*"), 6).tolist() == [0] * 6


@settings(deadline=None)
@given(mostly_nucleotides | anything)
def test_a_letter_is_ambiguous_unless_it_has_a_code(text):
    assert ambiguous(letters(text)) == sum(code == 0 for code in codes_of(text))


@settings(deadline=None)
@given(mostly_nucleotides | anything)
def test_foreign_letters_are_those_outside_iupac(text):
    foreign = {c if c.isascii() else "?" for c in text if not c.isascii() or c.upper() not in IUPAC}
    assert foreign_letters(letters(text)) == "".join(sorted(foreign))
