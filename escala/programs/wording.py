"""What words mean in the lines that a program prints, and in the names of its numbers."""

from __future__ import annotations

import re
from typing import NamedTuple

#: After the word for an epoch or a step, its number: whole, and without a unit.
_AND_NUMBER = (
    r"[\W_]{0,4}(\d{1,3}(?:,\d{3})+|\d+)(?![.,]?\d|[kmg]\b|e\d)"
    r"(?!\s*((m?s|secs?|seconds?|mins?|h)\b|%))"
)
#: Not that of the best epoch, and not the number of all.
_OF_OTHERS = "".join(rf"(?<!{word}[ _-])" for word in ("best", "max", "num", "total", "last"))
#: In a dictionary, as of Transformers, it is a part of an epoch as well.
_EPOCH = re.compile(
    rf"(?i)['\"]epoch['\"]: ?(?P<part>\d+\.\d+)|{_OF_OTHERS}(?<![a-z0-9])epoch{_AND_NUMBER}"
)
_STEP = re.compile(
    rf"(?i){_OF_OTHERS}(?<![a-z0-9])(?:step|iter|iteration|it|batch|update){_AND_NUMBER}"
)
#: An epoch and a step, as PyTorch's first tutorial prints them: `[1,  2000] loss: 2.2`.
_STEP_OF_EPOCH = re.compile(r"\s*\[\d+,\s+(\d+)\]")
#: The number of an epoch and of all of them, which are no parts of a bar.
_PART_OF_EPOCHS = re.compile(r"(?i)(?<![a-z0-9])epoch[\W_]{0,4}\d+(\s*/\s*\d+)?")
#: The part of a bar: `3/10 [00:01<00:03`, `3/10 ━━━`, `3/10 |██`, `[ 3/10]`, `[64/60000 (1%)]`.
_BAR = re.compile(
    r"(?<![\d/.:-])(\d+)\s*/\s*\d+(?=\s*[\[|━╸])|\[\s*(\d+)\s*/\s*\d+(?=\]|\s+\(\d+%\)\])"
)
#: Words in a name, by which its lower or its higher value is the better one.
_LOWER = re.compile(
    r"loss|error|cost|perplexity|\b(err|ppl|r?mse|mae|mape|nll|[wc]er|fid|deviance)\b"
)
_HIGHER = re.compile(
    r"accura|precision|recall|correct|reward|score|\b(acc\w{0,2}|top ?\d|f1|auc|auroc|m?ap|bleu"
    r"|rouge|m?iou|dice|mcc|kappa|r2|psnr|ssim|ndcg|mrr|sensitivity|specificity)\b"
)
#: Words in the name of a number that is a time, a speed or a count, and no score.
_MEASURE = re.compile(
    r"\b(times?|seconds?|secs?|m?s|us|ns|minutes?|hours?|duration|elapsed|eta|took|per|throughput"
    r"|speed|lr|learning rate|steps?|iters?|iterations?|it|batch|batches|epochs?|rows?|ranks?|n|num"
    r"|counts?|samples|examples|images|tokens|memory|mem|[mg]i?b|left|parameters)\b"
)
#: Words in the name of a duration or a speed, which is known when what it tells of has ended.
_LENGTH = re.compile(r"\b(seconds?|secs?|m?s|minutes?|duration|took|per|speed|throughput)\b")
#: Words in the name of a duration that is not that of an epoch.
_OF_A_PART = re.compile(r"\b(per|steps?|iters?|iterations?|it|batch|eval\w*|val\w*|test\w*|left)\b")


class Numbered(NamedTuple):
    """What a line tells of its place in a training; None of what it does not tell.

    `epoch` and `step` are the numbers that stand after these words; `bar` is the part of a bar that
    is done, which counts steps, or rows.
    """

    epoch: float | None
    step: float | None
    bar: float | None


def numbered(line: str) -> Numbered:
    """Return what a line tells of its place in a training."""
    rest = _PART_OF_EPOCHS.sub("", line)
    found = _EPOCH.search(line), _STEP_OF_EPOCH.match(line) or _STEP.search(rest), _BAR.search(rest)
    return Numbered(*map(_value, found))


def _value(match: re.Match | None) -> float | None:
    return float(next(filter(None, match.groups())).replace(",", "")) if match else None


def is_score(name: str) -> bool:
    """Return whether the name of a number is that of a score: of no time, speed or count."""
    words = _words(name)
    return bool(_LOWER.search(words) or _HIGHER.search(words) or not _MEASURE.search(words))


def is_length(name: str) -> bool:
    """Return whether a number of this name is a duration or a speed."""
    return bool(_LENGTH.search(_words(name)))


def is_seconds(name: str) -> bool:
    """Return whether a number of this name is a duration in seconds, and not of a part alone."""
    words = _words(name)
    return bool(re.search(r"\b(seconds?|secs?)\b", words) and not _OF_A_PART.search(words))


def better(name: str) -> bool | None:
    """Return whether the higher value of a score is the better one; None if it is not known."""
    words = _words(name)
    return False if _LOWER.search(words) else bool(_HIGHER.search(words)) or None


def _words(name: str) -> str:
    """Return the words of a name such as `valLoss` or `val_loss`: `val loss`."""
    return re.sub(r"[\W_]+", " ", re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name)).lower()
