"""Make the arrays of a split from a user's arrays, block by block; read rows to predict."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from escala.core.console import progress
from escala.core.errors import InputError
from escala.core.readable import size
from escala.data.arrays import TARGETS, key_of
from escala.data.arrays.headers import Named, header, members, open_bytes
from escala.data.base import Query, specs
from escala.data.settings import SIDES
from escala.data.splits import Blocks, Side, stratify, write_split

KIND = "arrays"
NAMES = ("{side}/{name}.npy", "{side}_targets.npy")
#: Bytes of the rows that are in memory at a time.
BLOCK_BYTES = 2**25


def prepare(
    name: str, preparation: Mapping[str, Any], seed: int, inputs: Mapping[str, Path], output: Path
) -> dict:
    """Divide arrays among the sides, check the numbers in the arrays, and write the arrays.

    Memory holds a block of rows, and a few numbers for each row. Single rows of a `.npz` file
    cannot be read, so its arrays are first unpacked into `output`. `output` receives
    `{side}/{input}.npy` and `{side}_targets.npy`.
    """
    where, files, classes = f"datasets.{name}", list(inputs.values()), preparation["classes"]
    with TemporaryDirectory(dir=output, prefix=".") as folder:
        # Arrays by side and by the name in the settings.
        arrays: dict[str, dict[str, np.ndarray]] = {}
        for side, places in preparation["sides"].items():
            arrays[side] = {
                key: _map(
                    Named(files[number], member), Path(folder), f"{where}.{key_of(side, key)}"
                )
                for key, (number, member) in places.items()
            }
            targets = arrays[side][TARGETS]
            if classes and targets.shape[1:] in ((), (1,)):  # One class in each row.
                arrays[side][TARGETS] = np.asarray(targets).reshape(-1).astype(np.int64)
        divided = _divide(where, arrays["train"][TARGETS], preparation, seed)
        sides = {}
        for side in SIDES:
            if side in divided:  # Its rows are a part of the rows of `train`.
                sides[side] = _side(arrays["train"], divided[side], preparation, where, "train")
            elif side in arrays:
                rows = np.arange(len(arrays[side][TARGETS]))
                sides[side] = _side(arrays[side], rows, preparation, where, side)
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
    # Remove files of an earlier preparation, such as of other inputs or sides.
    for file in [path for side in SIDES for path in (output / side).glob("*.npy")]:
        if str(file.relative_to(output)) not in described["sha256"]:
            file.unlink()
    return described


def _map(array: Named, folder: Path, where: str) -> np.ndarray:
    """Return an array mapped into memory; an array in an archive is first copied to `folder`."""
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
        key = f"{where}.{key_of('train', TARGETS)}"
        _require_below(targets, np.arange(len(targets)), len(classes), key)
        return stratify(targets, split, classes, seed)
    drawn = np.random.default_rng(seed).permutation(len(targets))
    divided = {}
    for side in ("test", "validation"):
        if split[f"{side}_fraction"]:
            count = max(1, round(split[f"{side}_fraction"] * len(targets)))
            divided[side], drawn = np.sort(drawn[:count]), drawn[count:]
    if not len(drawn):
        value, reason = f"{len(targets)} rows", "are too few to divide by these fractions"
        remedy = "give more rows, or files for the other sides"
        raise InputError(f"{where}.split", value, reason, remedy)
    return {"train": np.sort(drawn)} | divided


def _side(
    arrays: Mapping[str, np.ndarray],
    rows: np.ndarray,
    preparation: Mapping[str, Any],
    where: str,
    side: str,
) -> Side:
    """Return some rows of the arrays of `side`; the numbers are checked while they are written."""
    limits, blocks = dict(preparation["below"]), {}
    if preparation["classes"]:
        limits[TARGETS] = len(preparation["classes"])
    for key, array in arrays.items():
        finite = preparation["missing"] == "refuse" and array.dtype.kind == "f"
        shape, native = (len(rows), *array.shape[1:]), array.dtype.newbyteorder("=")
        checked = _blocks(array, rows, limits.get(key), finite, f"{where}.{key_of(side, key)}")
        blocks[key] = Blocks(shape, native, checked)
    targets = blocks.pop(TARGETS)
    return Side(blocks, targets)


def _blocks(
    array: np.ndarray, rows: np.ndarray, below: int | None, finite: bool, where: str
) -> Iterator[np.ndarray]:
    """Yield the rows of these numbers in blocks, in this machine's order of bytes.

    Numbers from `below` on are refused. With `finite`, NaN and infinite numbers are refused, too.
    `where` is the key of the array, for messages.
    """
    at_once = max(1, BLOCK_BYTES // (math.prod(array.shape[1:]) * array.dtype.itemsize))
    say = progress(f"{where}: %d of {len(rows)} rows written")
    for begin in range(0, len(rows), at_once):
        say(begin)
        some = rows[begin : begin + at_once]
        block = array[some]
        if finite:
            remedy = "correct it, leave the row out, or set missing: keep"
            _refuse(block, ~np.isfinite(block), some, where, "", remedy)
        if below is not None:
            _require_below(block, some, below, where)
        yield block.astype(array.dtype.newbyteorder("="), order="C", copy=False)


def _require_below(block: np.ndarray, rows: np.ndarray, below: int, where: str) -> None:
    reason = f", and allowed are numbers from 0 to {below - 1}"
    remedy = "correct it, or the limit: `classes` of targets, `below` of an input"
    _refuse(block, (block < 0) | (block >= below), rows, where, reason, remedy)


def _refuse(
    block: np.ndarray, wrong: np.ndarray, rows: np.ndarray, where: str, reason: str, remedy: str
) -> None:
    """Refuse the first wrong number of a block, if there is one; `rows` number the block's rows."""
    if wrong.any():
        row = int(np.argwhere(wrong)[0][0])
        number = np.asarray(block[row])[wrong[row]].flat[0]
        raise InputError(where, f"row {rows[row]} of 0, 1, …", f"holds {number}{reason}", remedy)


def queries(path: Path, description: Mapping[str, Any]) -> Iterator[Query]:
    """Yield the rows of one `.npy` file, or of a `.npz` file with an array for each input.

    The only column, `row`, is the number of the row, from 0 as in NumPy.
    """
    inputs, arrays = specs(description), []
    is_archive = path.suffix.lower() == ".npz"
    for spec in inputs:
        if not is_archive and len(inputs) > 1:
            remedy = f"save np.savez('new.npz', {spec.name}=..., ...)"
            raise InputError(path, None, "is one array, and the model has several inputs", remedy)
        is_member = is_archive and spec.name in members(path, str(path))
        named = Named(path, spec.name if is_member else None)
        shape, dtype = header(named, str(path))
        if shape[1:] != spec.shape or not np.can_cast(dtype, spec.dtype, "same_kind"):
            reason = f"has rows of {dtype.name} of shape {shape[1:]}, and the model takes "
            reason += f"{spec.dtype} of shape {spec.shape}"
            raise InputError(path, spec.name, reason, "save it with this dtype and shape")
        array = np.load(path, mmap_mode="r", allow_pickle=False)
        if is_archive:
            with array as archive:
                array = archive[named.member or archive.files[0]]
        arrays.append(array.astype(spec.dtype, copy=False))
    rows = {spec.name: len(array) for spec, array in zip(inputs, arrays, strict=True)}
    if len(set(rows.values())) > 1:
        reason = "have different numbers of rows"
        raise InputError(path, rows, reason, "save arrays with equal numbers of rows")
    for row in range(len(arrays[0])):
        yield Query({"row": row}, tuple(array[row : row + 1] for array in arrays))
