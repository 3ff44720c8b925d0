"""BLEU of captions, and a control in which pictures get the captions of other pictures."""

from __future__ import annotations

import numpy as np

from escala.data.captions import words


def score(targets, predictions, description) -> dict[str, float]:
    """Return BLEU-1 to BLEU-4 of the captions, and `shuffled_…`: the same scores in a control.

    In the control, each picture gets the caption of the picture before it. A network that ignores
    the pictures has equal scores with and without the control. For a single picture there is no
    control. Targets and predictions are as in `counts`, in the order of the dataset.
    """
    scores = scores_of(counts(targets, predictions).sum(axis=0))
    if len(predictions) < 2:
        return scores
    control = scores_of(counts(targets, np.roll(predictions, 1, axis=0)).sum(axis=0))
    return scores | {f"shuffled_{name}": value for name, value in control.items()}


def counts(targets, predictions) -> np.ndarray:
    """Return the counts of n-grams that BLEU is computed from, int64 (rows, 10).

    `escala.data.captions.words.counts` describes them. `targets` are the next words of each
    reference caption, (rows, captions, length), and `predictions` a caption for each picture,
    (rows, length).
    """
    row_counts = [
        words.counts(words.references(captions), words.word_numbers(written))
        for captions, written in zip(targets, predictions, strict=True)
    ]
    return np.array(row_counts, np.int64).reshape(-1, words.COUNTS)


def scores_of(sums) -> dict[str, float]:
    """Return BLEU-1 to BLEU-4 of a corpus, from the sum of the counts of its rows."""
    return words.bleu(sums)


def columns(predictions, description) -> dict[str, str]:
    """Return the captions of a user's picture as the text `predicted`."""
    vocabulary = description["vocabulary"]
    captions = [
        " ".join(vocabulary[number] for number in words.word_numbers(caption))
        for caption in predictions
    ]
    return {"predicted": "; ".join(captions)}
