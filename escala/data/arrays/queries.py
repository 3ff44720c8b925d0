"""A user's arrays, row by row, in the form of those that a model was trained on."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from escala.core.errors import InputError
from escala.data.arrays.headers import Named, header, members
from escala.data.base import Query, Spec, specs


def queries(path: Path, description: Mapping[str, Any]) -> Iterator[Query]:
    """Yield the rows of a `.npz` file with an array for each input, or of one `.npy` file.

    The column of a row is its number `row`, from 0 as in NumPy.
    """
    wanted = specs(description)
    arrays = [_array(path, spec, len(wanted) == 1) for spec in wanted]
    rows = {spec.name: len(array) for spec, array in zip(wanted, arrays, strict=True)}
    if len(set(rows.values())) > 1:
        reason = "have different numbers of rows"
        raise InputError(path, rows, reason, "save arrays with a row for each row of the others")
    for row in range(len(arrays[0])):
        yield Query({"row": row}, tuple(array[row : row + 1] for array in arrays))


def _array(path: Path, spec: Spec, only: bool) -> np.ndarray:
    """Return the array of an input, in its dtype."""
    archive = path.suffix.lower() == ".npz"
    if not archive and not only:
        remedy = f"save np.savez('new.npz', {spec.name}=..., ...)"
        raise InputError(path, None, "is one array, and the model has several inputs", remedy)
    named = Named(path, spec.name if archive and spec.name in members(path, str(path)) else None)
    shape, dtype = header(named, str(path))
    if shape[1:] != spec.shape or not np.can_cast(dtype, spec.dtype, "same_kind"):
        reason = f"has rows of {dtype.name} of shape {shape[1:]}, and the model takes "
        reason += f"{spec.dtype} of shape {spec.shape}"
        raise InputError(path, spec.name, reason, "save it in that form")
    if not archive:
        return np.load(path, mmap_mode="r", allow_pickle=False).astype(spec.dtype, copy=False)
    with np.load(path, allow_pickle=False) as arrays:
        return arrays[named.member or arrays.files[0]].astype(spec.dtype, copy=False)
