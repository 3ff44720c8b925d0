"""Turn captions into words, words into numbers, and compare captions by BLEU.

K. Papineni, S. Roukos, T. Ward, W.-J. Zhu, "BLEU: a Method for Automatic Evaluation of Machine
Translation", ACL 2002. The scores equal those of `nltk.translate.bleu_score.corpus_bleu`, which
takes a whole corpus at once.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence

import numpy as np

PADDING, START, END, UNKNOWN = range(4)
#: Names of the numbers that stand for no word. A word consists of letters only, so it cannot equal
#: such a name.
SPECIAL = ("", "<start>", "<end>", "<unknown>")
#: Numbers that a model never writes. Padding and the start token are no words, and the unknown
#: token stands for many words.
NEVER_WRITTEN = (PADDING, START, UNKNOWN)
DTYPE = np.uint16
#: Longest n-grams: BLEU-4.
LONGEST = 4
#: The length of a result of `counts`.
COUNTS = 2 * LONGEST + 2

Words = Sequence[Hashable]


def words_of(caption: str) -> list[str]:
    """Return the words of a caption in lower case.

    A word is a text between spaces, without its punctuation. A word with a digit, and a single
    letter other than `a`, are left out. So `"A t-shirt's No. 4."` gives `a`, `tshirts` and `no`.
    """
    letters = ("".join(filter(str.isalnum, part)) for part in caption.lower().split())
    return [word for word in letters if word.isalpha() and (len(word) > 1 or word == "a")]


def vocabulary(captions: Iterable[Sequence[str]], most: int | None) -> list[str]:
    """Return `SPECIAL` and the words of captions; the number of a word is its place in this list.

    The most frequent words come first, and equally frequent ones in alphabetical order. `most` is
    the number of words; None takes all.
    """
    counts = Counter(word for words in captions for word in words)
    return [*SPECIAL, *sorted(counts, key=lambda word: (-counts[word], word))[:most]]


def word_numbers(caption: np.ndarray) -> list[int]:
    """Return the words of a caption, as numbers, without its end and the padding."""
    return [number for number in caption.tolist() if number not in (PADDING, END)]


def references(captions: np.ndarray) -> list[list[int]]:
    """Return the word numbers of each caption with words; one empty caption if none has words."""
    return [words for words in map(word_numbers, captions) if words] or [[]]


def number_words(
    captions: Sequence[Sequence[str]], numbers: Mapping[str, int], length: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return the words that a model reads of captions, and the next word at each position.

    Both arrays are uint16 (captions, length). A row of the first array is `START` and the numbers
    of at most `length` - 1 words of a caption. A row of the second array is the same numbers and
    `END`. `UNKNOWN` stands for a word without a number. Rows of both arrays are filled up with
    `PADDING`. So position k of the second array is the word after the first k + 1 numbers of the
    first array.
    """
    read, following = (np.full((len(captions), length), PADDING, DTYPE) for _ in range(2))
    for row, words in enumerate(captions):
        known = [numbers.get(word, UNKNOWN) for word in words]
        read[row, : len(known) + 1] = [START, *known]
        following[row, : len(known) + 1] = [*known, END]
    return read, following


def counts(references: Sequence[Words], candidate: Words) -> np.ndarray:
    """Return the counts of one candidate; `bleu` takes the sums of counts over a corpus.

    The counts are int64 (10,). Four are, for n from 1 to 4, the n-grams of the candidate that are
    in the references; an n-gram counts at most as often as it occurs in a single reference. Four
    are, for n from 1 to 4, all n-grams of the candidate, and at least 1, as in nltk. The ninth is
    the words of the candidate. The tenth is the words of the reference of closest length, or of the
    shorter of two such references.
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

    BLEU-N is the geometric mean of the precisions of n-grams of 1 to N words, times a brevity
    penalty. This penalty is exp(1 - r/c) if the c words of the candidates are fewer than the r
    words of the closest references, otherwise 1. BLEU-N is 0 if a precision is 0, or without any
    word.
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
