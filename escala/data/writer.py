"""`.npy` arrays that are written block by block, with one block in memory at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.lib.format import dtype_to_descr, write_array_header_1_0
from numpy.typing import DTypeLike


class ArrayWriter:
    """An array of rows of one shape and dtype, written to a binary file at its start."""

    def __init__(self, handle: BinaryIO, shape: Sequence[int], dtype: DTypeLike):
        self._handle, self._rows = handle, 0
        self._shape, self._dtype = tuple(shape), np.dtype(dtype)
        self._write_header()

    def append(self, block: np.ndarray) -> None:
        """Add rows, of shape (some rows, …) and the array's dtype."""
        self._handle.write(np.ascontiguousarray(block, self._dtype))
        self._rows += len(block)

    def flush(self) -> None:
        """Update the header, so that the rows written so far can be mapped."""
        end = self._handle.tell()
        self._handle.seek(0)
        self._write_header()
        self._handle.seek(end)
        self._handle.flush()

    def _write_header(self) -> None:
        # NumPy pads the header, so that any number of rows fits.
        shape, descr = (self._rows, *self._shape), dtype_to_descr(self._dtype)
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        write_array_header_1_0(self._handle, header)


class Blocks(NamedTuple):
    """An array of a shape, the rows first, that is computed while it is written.

    `blocks` are rows, of shape (some rows, …) and the array's dtype, in their order. They can be
    read once.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    blocks: Iterator[np.ndarray]


@contextmanager
def written(path: Path, shape: Sequence[int], dtype: DTypeLike) -> Iterator[ArrayWriter]:
    """Yield a writer of rows of a shape at `path`; the file is complete when the block ends."""
    with open(path, "wb") as handle:
        writer = ArrayWriter(handle, shape, dtype)
        yield writer
        writer.flush()


def save(path: Path, array: np.ndarray | Blocks) -> None:
    """Write an array as a `.npy` file."""
    if not isinstance(array, Blocks):
        np.save(path, array, allow_pickle=False)
        return
    with written(path, array.shape[1:], array.dtype) as writer:
        for block in array.blocks:
            writer.append(block)
