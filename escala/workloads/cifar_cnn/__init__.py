"""The workload `cifar-cnn`: a convolutional network for small colour pictures."""

from __future__ import annotations

from collections.abc import Sequence

from escala.core.errors import InputError

#: Filters of the two convolutions of each block, and neurons of the dense layer.
FILTERS, NEURONS = (32, 64, 64), 512
#: Height and width that the blocks need to leave one number.
SMALLEST = 22


def require_size(shape: Sequence[int]) -> None:
    """Refuse pictures of shape (height, width, colours) that are too small, by an InputError."""
    if min(shape[:2]) < SMALLEST:
        reason = f"is less than {SMALLEST} × {SMALLEST}, which three blocks of cifar-cnn take"
        raise InputError("size", tuple(shape[:2]), reason, "set the dataset's size")
