"""Turn captions into words, and words into numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

PADDING, START, END, UNKNOWN = range(4)
#: Names of the numbers that are no words. Words hold only letters, so no word has such a name.
SPECIAL = ("", "<start>", "<end>", "<unknown>")
#: Numbers that a model never writes: padding and the start token are no words, and the unknown
#: token stands for many words.
NEVER_WRITTEN = (PADDING, START, UNKNOWN)
DTYPE = np.uint16
#: The only word of one letter that is kept.
SHORT = "a"


def words_of(caption: str) -> list[str]:
    """Return the words of a caption in lower case.

    A word is what stands between spaces, without its punctuation. One that holds a digit is left
    out, and so is a single letter other than `a`. So `"A t-shirt's No. 4."` gives `a`, `tshirts`
    and `no`.
    """
    letters = ("".join(filter(str.isalnum, part)) for part in caption.lower().split())
    return [word for word in letters if word.isalpha() and (len(word) > 1 or word == SHORT)]


def vocabulary(captions: Iterable[Sequence[str]], most: int | None) -> list[str]:
    """Return `SPECIAL` and the words of captions: a word's number is its place in the list.

    The most frequent words come first, and equally frequent ones in alphabetical order. `most` is
    the number of words; None takes all.
    """
    counts = Counter(word for words in captions for word in words)
    return [*SPECIAL, *sorted(counts, key=lambda word: (-counts[word], word))[:most]]


def word_numbers(caption: np.ndarray) -> list[int]:
    """Return the words of a caption, as numbers, without its end and the padding."""
    return [number for number in caption.tolist() if number not in (PADDING, END)]


def references(captions: np.ndarray) -> list[list[int]]:
    """Return the words of each caption that has any, as numbers, or one reference without words."""
    return [words for words in map(word_numbers, captions) if words] or [[]]


def numbered(
    captions: Sequence[Sequence[str]], numbers: Mapping[str, int], length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return what a model reads of captions, and the next word at each position.

    Both are uint16 (captions, length). In the first, a row is `START` and the numbers of a
    caption's words, at most `length` - 1, or `UNKNOWN`. In the second, it is the words and `END`.
    Both end with `PADDING`. So the second holds, at position k, what follows the first k + 1
    numbers of the first.
    """
    read, following = (np.full((len(captions), length), PADDING, DTYPE) for _ in range(2))
    for row, words in enumerate(captions):
        known = [numbers.get(word, UNKNOWN) for word in words]
        read[row, : len(known) + 1] = [START, *known]
        following[row, : len(known) + 1] = [*known, END]
    return read, following
