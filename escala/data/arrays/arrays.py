"""A user's arrays to those that a model trains on and is tested with, block by block."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from escala.core.errors import InputError
from escala.core.progress import progress
from escala.core.readable import size
from escala.data.arrays.headers import Named, header, opened
from escala.data.arrays.settings import SIDES, TARGETS
from escala.data.splits import Side, stratified, write_split
from escala.data.writer import Blocks

KIND = "arrays"
NAMES = ("{side}/{name}.npy", "{side}_targets.npy")
#: Bytes of the rows that are in memory at a time.
BLOCK_BYTES = 2**25

Check = Callable[[np.ndarray, np.ndarray], None]


def prepare(
    name: str, preparation: Mapping[str, Any], seed: int, inputs: Mapping[str, Path], output: Path
) -> dict:
    """Divide arrays among the sides, check their numbers, and write them.

    Memory holds a block of rows, and a few numbers for each row. Arrays of a `.npz` file are first
    written beside the others, as they stand in the way of reading single rows.

    Parameters
    ----------
    name : of the dataset.
    preparation : as `escala.data.arrays.settings.preparation` gives it.
    seed : of the split.
    inputs : the user's files.
    output : folder that receives `{side}/{input}.npy`, `{side}_targets.npy` and `dataset.json`.

    Returns
    -------
    The description that `dataset.json` holds.

    Raises
    ------
    InputError : a file is no array of numbers, a number is not finite or no class, or a side would
        have no rows.
    """
    where = f"datasets.{name}"
    for side in SIDES:
        shutil.rmtree(output / side, ignore_errors=True)
    files = list(inputs.values())
    with TemporaryDirectory(dir=output, prefix=".") as folder:
        arrays = {
            side: {
                key: _mapped(
                    Named(files[number], member), Path(folder), _where(f"{where}.{side}", key)
                )
                for key, (number, member) in given.items()
            }
            for side, given in preparation["sides"].items()
        }
        classes = preparation["classes"]
        if classes:
            for of_side in arrays.values():
                of_side[TARGETS] = _one_class_a_row(of_side[TARGETS])
        rows = {side: np.arange(len(given[TARGETS])) for side, given in arrays.items()}
        divided = _divided(name, arrays["train"][TARGETS], preparation, seed)
        rows |= divided
        origin = {side: side for side in arrays} | dict.fromkeys(divided, "train")
        sides = {
            side: _side(arrays[origin[side]], rows[side], preparation, f"{where}.{origin[side]}")
            for side in SIDES
            if side in rows
        }
        return write_split(
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


def _where(side: str, key: str) -> str:
    return f"{side}.targets" if key == TARGETS else f"{side}.inputs.{key}"


def _mapped(array: Named, folder: Path, where: str) -> np.ndarray:
    """Return an array mapped into memory, from a copy in `folder` if it is in an archive."""
    header(array, where)
    path = array.path
    if path.suffix.lower() == ".npz":
        path = folder / f"{len(list(folder.iterdir()))}.npy"
        with opened(array, where) as (reading, whole), open(path, "wb") as writing:
            say = progress(f"{where}: %s of {size(whole)} unpacked")
            while block := reading.read(BLOCK_BYTES):
                writing.write(block)
                say(size(writing.tell()))
    return np.load(path, mmap_mode="r", allow_pickle=False)


def _one_class_a_row(targets: np.ndarray) -> np.ndarray:
    """Return numbers of classes as int64 (rows,) if each row has one; others as they are."""
    if targets.shape[1:] in ((), (1,)):
        return np.asarray(targets).reshape(-1).astype(np.int64)
    return targets


def _divided(
    name: str, targets: np.ndarray, preparation: Mapping[str, Any], seed: int
) -> dict[str, np.ndarray]:
    """Return the rows of `train` that each side without files gets, ascending."""
    classes, split = preparation["classes"], preparation["split"]
    if classes and targets.ndim == 1:
        _classes_of(classes, f"datasets.{name}.train.targets")(targets, np.arange(len(targets)))
        return stratified(targets, split, classes, seed)
    rest = np.random.default_rng(seed).permutation(len(targets))
    found = {}
    for side in ("test", "validation"):
        if split[f"{side}_fraction"]:
            taken = max(1, round(split[f"{side}_fraction"] * len(targets)))
            found[side], rest = np.sort(rest[:taken]), rest[taken:]
    if not len(rest):
        raise InputError(
            f"datasets.{name}.split",
            f"{len(targets)} rows",
            "are too few to divide by these fractions",
            "give more rows, or files for the other sides",
        )
    return {"train": np.sort(rest)} | found


def _side(
    arrays: Mapping[str, np.ndarray], rows: np.ndarray, preparation: Mapping[str, Any], where: str
) -> Side:
    """Return rows of the arrays of a side, whose numbers are checked while they are written."""
    blocks = {}
    for key, array in arrays.items():
        place = _where(where, key)
        checks = []
        if array.dtype.kind == "f" and preparation["missing"] == "refuse":
            checks.append(_finite(place))
        if key == TARGETS and preparation["classes"]:
            checks.append(_classes_of(preparation["classes"], place))
        if key in preparation["below"]:
            checks.append(_below(preparation["below"][key], place))
        native = array.dtype.newbyteorder("=")
        shape = (len(rows), *array.shape[1:])
        blocks[key] = Blocks(shape, native, _blocks(array, rows, checks, native, place))
    targets = blocks.pop(TARGETS)
    return Side(blocks, targets)


def _blocks(
    array: np.ndarray, rows: np.ndarray, checks: list[Check], dtype: np.dtype, place: str
) -> Iterator[np.ndarray]:
    at_once = max(1, BLOCK_BYTES // (math.prod(array.shape[1:]) * array.dtype.itemsize))
    say = progress(f"{place}: %d of {len(rows)} rows written")
    for begin in range(0, len(rows), at_once):
        say(begin)
        some = rows[begin : begin + at_once]
        block = array[some]
        for check in checks:
            check(block, some)
        yield block.astype(dtype, order="C", copy=False)


def _finite(place: str) -> Check:
    def check(block: np.ndarray, rows: np.ndarray) -> None:
        if (wrong := ~np.isfinite(block)).any():
            row, number = _first(block, wrong, rows)
            remedy = "mend it, leave the row out, or set missing: keep"
            raise InputError(place, row, f"holds {number}", remedy)

    return check


def _classes_of(classes: list[str], place: str) -> Check:
    last = len(classes) - 1

    def check(block: np.ndarray, rows: np.ndarray) -> None:
        if (wrong := (block < 0) | (block > last)).any():
            row, number = _first(block, wrong, rows)
            reason = f"holds {number}, and the {last + 1} classes have the numbers 0 to {last}"
            remedy = "number them from 0" if number == last + 1 else "mend it, or mend classes"
            raise InputError(place, row, reason, remedy)

    return check


def _below(limit: int, place: str) -> Check:
    def check(block: np.ndarray, rows: np.ndarray) -> None:
        if (wrong := (block < 0) | (block >= limit)).any():
            row, number = _first(block, wrong, rows)
            reason = f"holds {number}, and its numbers are from 0 to below {limit}"
            raise InputError(place, row, reason, "mend it, or raise below")

    return check


def _first(block: np.ndarray, wrong: np.ndarray, rows: np.ndarray) -> tuple[str, object]:
    """Return the first wrong row, and the first wrong number in it."""
    row = int(np.argwhere(wrong)[0][0])
    return f"row {rows[row]} of 0, 1, …", np.asarray(block[row])[wrong[row]].flat[0]
