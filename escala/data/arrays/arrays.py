"""Make the arrays of a split, to train and test on, from a user's arrays, block by block."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from escala.core.console import progress
from escala.core.errors import InputError
from escala.core.readable import size
from escala.data.arrays import settings
from escala.data.arrays.headers import Named, header, open_bytes
from escala.data.arrays.settings import SIDES, TARGETS
from escala.data.splits import Blocks, Side, stratify, write_split

KIND = "arrays"
NAMES = ("{side}/{name}.npy", "{side}_targets.npy")
#: Bytes of the rows that are in memory at a time.
BLOCK_BYTES = 2**25


def prepare(
    name: str, preparation: Mapping[str, Any], seed: int, inputs: Mapping[str, Path], output: Path
) -> dict:
    """Divide arrays among the sides, check their numbers, and write them.

    Memory holds a block of rows, and a few numbers for each row. Arrays of a `.npz` file are first
    written alongside the others, as they stand in the way of reading single rows. `output` receives
    `{side}/{input}.npy` and `{side}_targets.npy`.
    """
    where, files, classes = f"datasets.{name}", list(inputs.values()), preparation["classes"]
    with TemporaryDirectory(dir=output, prefix=".") as folder:
        arrays = {
            side: {
                key: _map(Named(files[number], member), Path(folder), _place(where, side, key))
                for key, (number, member) in given.items()
            }
            for side, given in preparation["sides"].items()
        }
        for group in arrays.values():
            targets = group[TARGETS]
            if classes and targets.shape[1:] in ((), (1,)):  # One class in each row.
                group[TARGETS] = np.asarray(targets).reshape(-1).astype(np.int64)
        rows = {side: np.arange(len(given[TARGETS])) for side, given in arrays.items()}
        divided = _divide(where, arrays["train"][TARGETS], preparation, seed)
        rows |= divided
        origin = {side: side for side in arrays} | dict.fromkeys(divided, "train")
        sides = {
            side: _side(arrays[origin[side]], rows[side], preparation, where, origin[side])
            for side in SIDES
            if side in rows
        }
        described = write_split(
            output,
            sides,
            kind=KIND,
            name=name,
            seed=seed,
            provenance="arrays",
            classes=classes,
            below=preparation["below"],
            names=NAMES,
            split=preparation["split"],
        )
    # What an earlier preparation left, of other inputs or sides.
    for file in [path for side in SIDES for path in (output / side).glob("*.npy")]:
        if str(file.relative_to(output)) not in described["sha256"]:
            file.unlink()
    return described


def _place(where: str, side: str, key: str) -> str:
    return f"{where}.{settings.place(side, key)}"


def _map(array: Named, folder: Path, where: str) -> np.ndarray:
    """Return an array mapped into memory, from a copy in `folder` if it is in an archive."""
    header(array, where)
    path = array.path
    if path.suffix.lower() == ".npz":
        path = folder / f"{len(list(folder.iterdir()))}.npy"
        with open_bytes(array, where) as (reading, whole), open(path, "wb") as writing:
            say = progress(f"{where}: %s of {size(whole)} unpacked")
            while block := reading.read(BLOCK_BYTES):
                writing.write(block)
                say(size(writing.tell()))
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _divide(
    where: str, targets: np.ndarray, preparation: Mapping[str, Any], seed: int
) -> dict[str, np.ndarray]:
    """Return the rows of `train` that each side without files gets, ascending."""
    classes, split = preparation["classes"], preparation["split"]
    if classes and targets.ndim == 1:
        place = _place(where, "train", TARGETS)
        _require_below(targets, np.arange(len(targets)), len(classes), place)
        return stratify(targets, split, classes, seed)
    rest = np.random.default_rng(seed).permutation(len(targets))
    divided = {}
    for side in ("test", "validation"):
        if split[f"{side}_fraction"]:
            taken = max(1, round(split[f"{side}_fraction"] * len(targets)))
            divided[side], rest = np.sort(rest[:taken]), rest[taken:]
    if not len(rest):
        value, reason = f"{len(targets)} rows", "are too few to divide by these fractions"
        remedy = "give more rows, or files for the other sides"
        raise InputError(f"{where}.split", value, reason, remedy)
    return {"train": np.sort(rest)} | divided


def _side(
    arrays: Mapping[str, np.ndarray],
    rows: np.ndarray,
    preparation: Mapping[str, Any],
    where: str,
    side: str,
) -> Side:
    """Return rows of the arrays of a side, whose numbers are checked while they are written."""
    limits, blocks = dict(preparation["below"]), {}
    if preparation["classes"]:
        limits[TARGETS] = len(preparation["classes"])
    for key, array in arrays.items():
        finite = preparation["missing"] == "refuse" and array.dtype.kind == "f"
        shape, native = (len(rows), *array.shape[1:]), array.dtype.newbyteorder("=")
        place = _place(where, side, key)
        checked = _blocks(array, rows, limits.get(key), finite, native, place)
        blocks[key] = Blocks(shape, native, checked)
    targets = blocks.pop(TARGETS)
    return Side(blocks, targets)


def _blocks(
    array: np.ndarray,
    rows: np.ndarray,
    below: int | None,
    finite: bool,
    dtype: np.dtype,
    place: str,
) -> Iterator[np.ndarray]:
    at_once = max(1, BLOCK_BYTES // (math.prod(array.shape[1:]) * array.dtype.itemsize))
    say = progress(f"{place}: %d of {len(rows)} rows written")
    for begin in range(0, len(rows), at_once):
        say(begin)
        some = rows[begin : begin + at_once]
        block = array[some]
        if finite:
            remedy = "correct it, leave the row out, or set missing: keep"
            _refuse(block, ~np.isfinite(block), some, place, "", remedy)
        if below is not None:
            _require_below(block, some, below, place)
        yield block.astype(dtype, order="C", copy=False)


def _require_below(block: np.ndarray, rows: np.ndarray, below: int, place: str) -> None:
    reason = f", and its numbers are from 0 to {below - 1}"
    remedy = "correct it, or the limit: `classes` of targets, `below` of an input"
    _refuse(block, (block < 0) | (block >= below), rows, place, reason, remedy)


def _refuse(
    block: np.ndarray, wrong: np.ndarray, rows: np.ndarray, place: str, reason: str, remedy: str
) -> None:
    """Refuse the first wrong number of a block, if there is one."""
    if wrong.any():
        row = int(np.argwhere(wrong)[0][0])
        number = np.asarray(block[row])[wrong[row]].flat[0]
        raise InputError(place, f"row {rows[row]} of 0, 1, …", f"holds {number}{reason}", remedy)
