"""Checks of a workload that is trained by gradient steps."""

from __future__ import annotations

from typing import Any

import numpy as np

from escala.training.process import not_finite
from escala.workload_check.subject import BATCH, NAME, ROWS_TOLERANCE, Refused, Subject, kept_model
from escala.workloads import WORKLOADS, models, scores_module
from escala.workloads.models import given

STEPS = 50
#: Largest relative difference of the loss of two ranks from that of one, after a few steps.
RANKS_TOLERANCE = 3e-3


def _build(subject: Subject) -> str:
    from escala.engines.tensorflow import building

    subject.require("build", "optimizer", "row_losses")
    again = subject.built()
    first, second = ([(tuple(v.shape), v.dtype) for v in m.weights] for m in (subject.model, again))
    if first != second:
        raise Refused(
            "two calls of build with the same arguments give different variables",
            "let shapes and order depend on the arguments and on nothing else",
        )
    building.refuse_ignored(subject.module, subject.model, subject.optimizer())
    wanted = subject.form[1]
    shape = tuple(subject.outputs().shape)[1:]
    has_classes = bool(subject.arrays.description.get("classes"))
    if (shape if has_classes else shape[: len(wanted)]) != wanted:
        raise Refused(
            f"the model gives the shape {shape} for a row, and the argument outputs is {wanted}",
            "let the last layer give the shape outputs",
        )
    models.require(subject.module, subject.arrays.description, WORKLOADS[NAME].scores)
    return f"{len(first)} variables, {subject.model.count_params()} parameters, twice the same"


def _row_losses(subject: Subject) -> str:
    inputs, targets = subject.rows
    outputs = subject.outputs()
    row_losses, settings = subject.module.row_losses, subject.settings
    losses = np.asarray(row_losses(targets, outputs, settings))
    cause = _broadcast(subject, outputs)
    if losses.shape != (BATCH,):
        raise Refused(
            f"row_losses gives the shape {losses.shape} for {BATCH} rows{cause}",
            "give one number for each row, shape (rows,), and no mean over them; Keras's losses "
            "take the mean over the last axis",
        )
    if not np.allclose(outputs, subject.outputs(), ROWS_TOLERANCE, 1e-5, equal_nan=True):
        raise Refused(
            "two calls of the model with the same rows and training=False give different outputs",
            "draw random numbers only in training, and keep no state between calls; give noise as "
            "an input of the dataset. A generator that is trained against another network cannot "
            "be measured as a workload",
        )
    for row in range(BATCH):
        one = slice(row, row + 1)
        by_itself = np.asarray(row_losses(targets[one], outputs[one], settings))
        if not np.allclose(by_itself, losses[one], ROWS_TOLERANCE, 1e-6):
            raise Refused(
                f"the loss of row {row} is {losses[row]:g} among {BATCH} rows, and "
                f"{float(by_itself.flat[0]):g} by itself{cause}",
                "compute each row's loss from this row only; a training whose loss compares the "
                "rows of a batch, such as a contrastive one, cannot be measured as a workload",
            )
        single = subject.model(given([array[one] for array in inputs]), training=False)
        if not np.allclose(single, outputs[one], ROWS_TOLERANCE, 1e-5):
            raise Refused(
                f"what the model gives for row {row} depends on the other rows",
                "let no layer mix rows, neither by a sum or a mean over them nor by a shape that "
                "joins them",
            )
    note = "; in training, its normalisation depends on the rows together"
    return f"one for each row, of this row only{note if subject.updates_itself else ''}"


def _broadcast(subject: Subject, outputs: Any) -> str:
    """Return how targets and outputs of unlike shapes are combined, as the cause of a wrong loss.

    It is empty where the shapes are equal, or the targets number classes.
    """
    shapes = tuple(subject.rows[1].shape), tuple(outputs.shape)
    if subject.arrays.description.get("classes") or shapes[0] == shapes[1]:
        return ""
    try:
        result = np.broadcast_shapes(*shapes)
    except ValueError:
        return f"; targets are {shapes[0]} and outputs {shapes[1]}"
    return (
        f"; the likely cause is that targets are {shapes[0]} and outputs {shapes[1]}, so their "
        f"difference is {result}: reshape the outputs to the argument outputs, {subject.form[1]}"
    )


def _gradients(subject: Subject) -> str:
    import tensorflow as tf

    with tf.GradientTape() as tape:
        loss = tf.add_n([tf.reduce_sum(subject.losses(training=True)), *subject.model.losses])
    variables = subject.model.trainable_variables
    gradients = tape.gradient(loss, variables)
    without = [v.name for v, g in zip(variables, gradients, strict=True) if g is None]
    if without or not variables:
        raise Refused(
            f"no gradient for {', '.join(without)}" if without else "nothing is trainable",
            "let the loss depend on every trainable variable, or set trainable=False",
        )
    if not all(np.isfinite(tf.convert_to_tensor(gradient)).all() for gradient in gradients):
        raise Refused(
            "a gradient is infinite or not a number", "correct the loss or its logarithms"
        )
    return f"for all {len(variables)} trainable variables"


def _falls(subject: Subject) -> str:
    import tensorflow as tf

    optimizer = subject.optimizer()
    variables = subject.model.trainable_variables
    before = float(tf.reduce_mean(subject.losses(training=False)))
    for _ in range(STEPS):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(subject.losses(training=True))
        gradients = tape.gradient(loss, variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
    after = float(tf.reduce_mean(subject.losses(training=False)))
    if not after < before:
        raise Refused(
            f"the loss of one batch is {before:.4g}, and {after:.4g} after {STEPS} steps on it",
            "correct the loss, or change the learning rate with --settings",
        )
    return f"from {before:.4g} to {after:.4g} in {STEPS} steps on one batch"


def _ranks(subject: Subject) -> str:
    one, two = subject.measured("single", "1x1"), subject.measured("horovod-mpi", "1x2")
    # A run whose ranks end with different weights does not end ok.
    equal = "both ranks end with equal weights"
    if subject.updates_itself or subject.draws:
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
    from escala.workloads.models import SUMMED

    names: set[str] = set()
    if hasattr(subject.module, "row_scores"):
        names = {*subject.module.row_scores(subject.rows[1], subject.outputs())}
    if taken := names.intersection(SUMMED):
        raise Refused(
            f"row_scores gives the score {min(taken)}, which is a name of the run's own",
            "rename this score",
        )
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
    if twice := found.keys() & names:
        reason = f"score {min(twice)} is given by row_scores and by scores_of"
        raise Refused(reason, "rename one of them")
    return f"{', '.join(found)} from {whole.shape[1]} sums over rows"


STEPS_CHECKS = {
    "build": _build,
    "row losses": _row_losses,
    "gradients": _gradients,
    "loss falls": _falls,
    "two ranks": _ranks,
    "kept model": kept_model,
    "scores": _scores,
}
