"""Checks of a workload's contract where a violation would go unnoticed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType

import tensorflow as tf

from escala.workloads.graphs import function_of


def losses_of_rows(work: ModuleType, settings: Mapping) -> Callable:
    """Return a function of targets and outputs that returns the loss of every row, shape (rows,).

    A mean over the rows, or a loss for each place in a row, would be broadcast over the weights of
    the rows, so that training would minimise another quantity.

    Parameters
    ----------
    work : the module `model` of the workload. If its `row_losses` returns another shape, a
        ValueError names its file and line.
    settings : of the workload.
    """

    row_losses = function_of(work, "row_losses")

    def checked(targets: tf.Tensor, outputs: tf.Tensor) -> tf.Tensor:
        losses = tf.convert_to_tensor(row_losses(targets, outputs, settings))
        if not of_rows(losses, targets):
            code = work.row_losses.__code__
            raise ValueError(
                f"row_losses gives the shape {losses.shape} in place of (rows,), a loss for each "
                f'row: File "{code.co_filename}", line {code.co_firstlineno}'
            )
        return losses

    return checked


def of_rows(losses: tf.Tensor, targets: tf.Tensor) -> bool:
    """Return whether losses can be one number for each row, as far as their shape is known."""
    if losses.shape.rank is None:
        return True
    return losses.shape.rank == 1 and losses.shape[0] in (None, targets.shape[0])
