"""Turn captions into words, words into numbers, and compare captions by BLEU.

K. Papineni, S. Roukos, T. Ward, W.-J. Zhu, "BLEU: a Method for Automatic Evaluation of Machine
Translation", ACL 2002. The numbers are those of `nltk.translate.bleu_score.corpus_bleu`, which
takes a whole corpus at once.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

PADDING, START, END, UNKNOWN = range(4)
#: Names of the numbers that are no words. Words hold only letters, so no word has such a name.
SPECIAL = ("", "<start>", "<end>", "<unknown>")
#: Numbers that a model never writes: padding and the start token are no words, and the unknown
#: token stands for many words.
NEVER_WRITTEN = (PADDING, START, UNKNOWN)
DTYPE = np.uint16
#: Longest n-grams: BLEU-4.
LONGEST = 4
#: Numbers that `counts` returns.
COUNTS = 2 * LONGEST + 2

Words = Sequence[Hashable]


def words_of(caption: str) -> list[str]:
    """Return the words of a caption in lower case.

    A word is what stands between spaces, without its punctuation. One that holds a digit is left
    out, and so is a single letter other than `a`. So `"A t-shirt's No. 4."` gives `a`, `tshirts`
    and `no`.
    """
    letters = ("".join(filter(str.isalnum, part)) for part in caption.lower().split())
    return [word for word in letters if word.isalpha() and (len(word) > 1 or word == "a")]


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


def number_words(
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


def counts(references: Sequence[Words], candidate: Words) -> np.ndarray:
    """Return the counts of one candidate, from whose sums `bleu` computes the score of a corpus.

    They are int64 (10,): for n-grams of 1 to 4 words, how many of the candidate are in the
    references, each counted at most as often as in the reference that holds it most often; for 1 to
    4 words, how many n-grams the candidate has, at least 1, also if it is shorter than n words, as
    in nltk; the words of the candidate; and the words of the reference whose length is closest, the
    shorter of two.
    """
    matches, totals = [], []
    for n in range(1, LONGEST + 1):
        most: Counter = Counter()
        for reference in references:
            most |= _ngrams(reference, n)
        matches.append((_ngrams(candidate, n) & most).total())
        totals.append(max(1, len(candidate) - n + 1))
    closest = min(map(len, references), key=lambda length: (abs(length - len(candidate)), length))
    return np.array([*matches, *totals, len(candidate), closest], np.int64)


def bleu(sums: np.ndarray) -> dict[str, float]:
    """Return `bleu_1` to `bleu_4` of a corpus, from the sums of `counts` over its candidates.

    BLEU-N is the geometric mean of the precisions of n-grams of 1 to N words, times the brevity
    penalty exp(1 - r/c) if the c words of the candidates are fewer than the r words of the closest
    references. It is 0 if a precision is 0, and for no words at all.
    """
    matches, totals = np.asarray(sums, np.float64)[: 2 * LONGEST].reshape(2, LONGEST)
    words, closest = (float(length) for length in sums[2 * LONGEST :])
    brevity = np.exp(min(0.0, 1 - closest / words)) if words else 0.0
    precisions = matches / np.maximum(totals, 1)
    return {
        f"bleu_{n}": float(brevity * np.prod(precisions[:n] ** (1 / n)))
        for n in range(1, LONGEST + 1)
    }


def _ngrams(words: Words, n: int) -> Counter:
    return Counter(zip(*(words[start:] for start in range(n)), strict=False))
