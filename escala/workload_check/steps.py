"""Checks of a workload that is trained by gradient steps, by short runs of it."""

from __future__ import annotations

import numpy as np

from escala.core.errors import Refused
from escala.training.process import not_finite
from escala.workload_check.subject import NAME, Subject, kept_model
from escala.workloads import scores_module

#: Largest relative difference of the loss of two ranks from that of one, after a few steps.
RANKS_TOLERANCE = 3e-3


def _ranks(subject: Subject) -> str:
    one, two = subject.measured(subject.alone, "1x1"), subject.measured(subject.together, "1x2")
    # A run whose ranks end with different weights does not end ok.
    equal = "both ranks end with equal weights"
    if not subject.told["follows"]:
        return f"{equal}; with batch normalisation or dropout, they do not follow one rank exactly"
    for first, second in zip(one["epochs"], two["epochs"], strict=True):
        if not np.isclose(first["loss"], second["loss"], RANKS_TOLERANCE, 0):
            raise Refused(
                f"the loss of epoch {first['epoch']} is {first['loss']:.6g} on one rank and "
                f"{second['loss']:.6g} on two",
                "let the loss of a row depend on nothing but this row",
            )
    return f"{equal}, and their loss is that of one rank"


def _scores(subject: Subject) -> str:
    scores = scores_module(NAME)
    offered = [name for name in ("counts", "scores_of") if hasattr(scores, name)]
    if not offered:
        return "those of a classification" if scores is None else "computed from all rows at once"
    if len(offered) < 2:
        raise Refused(f"scores.py has only {offered[0]}", "offer both counts and scores_of")
    (_, targets), predictions = subject.arrays.gather("test", slice(None)), subject.predictions

    def counts(rows: slice) -> np.ndarray:
        return np.asarray(scores.counts(targets[rows], predictions[rows]))

    whole, rows = counts(slice(None)), len(targets)
    if whole.ndim != 2 or len(whole) != rows or counts(slice(0, 0)).shape != (0, whole.shape[1]):
        raise Refused(
            f"counts gives the shape {whole.shape} for {rows} rows and "
            f"{counts(slice(0, 0)).shape} for none",
            "give the shape (rows, n), with the same n for any rows",
        )
    if not np.allclose(np.concatenate([counts(slice(r, r + 1)) for r in range(rows)]), whole):
        raise Refused(
            "the counts of a row depend on the other rows",
            "compute each row's counts from this row only",
        )
    found = scores.scores_of(whole.sum(axis=0, dtype=np.float64))
    if problem := not_finite(found):
        raise Refused(problem, "let scores_of leave out a score that these rows do not define")
    if twice := found.keys() & subject.told["row_scores"]:
        reason = f"score {min(twice)} is given by row_scores and by scores_of"
        raise Refused(reason, "rename one of them")
    return f"{', '.join(found)} from {whole.shape[1]} sums over rows"


STEPS_CHECKS = {
    "two ranks": _ranks,
    "kept model": kept_model,
    "scores": _scores,
}
