"""The workload `tal1-cnn`: a small convolutional network that finds a motif in DNA."""

from __future__ import annotations

from escala.core.errors import InputError


def require_width(width: int, length: int) -> None:
    """Refuse filters that are wider than a sequence of `length` letters, by an InputError."""
    if width > length:
        reason = f"is more than the {length} letters of a sequence"
        raise InputError("width", width, reason, "set a smaller one, or the dataset's length")
