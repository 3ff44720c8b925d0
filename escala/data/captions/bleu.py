"""Compute BLEU of generated text from counts that can be summed over any parts of a corpus.

K. Papineni, S. Roukos, T. Ward, W.-J. Zhu, "BLEU: a Method for Automatic Evaluation of Machine
Translation", ACL 2002. The numbers are those of `nltk.translate.bleu_score.corpus_bleu`, which
takes a whole corpus at once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np

#: Longest n-grams: BLEU-4.
LONGEST = 4
#: Numbers that `counts` returns.
COUNTS = 2 * LONGEST + 2

Words = Sequence[Hashable]


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
