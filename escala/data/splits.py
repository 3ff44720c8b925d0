"""Divide rows among the sides of a split, and write its arrays, whole or in blocks."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.lib.format import dtype_to_descr, write_array_header_1_0
from numpy.typing import DTypeLike

from escala.core.errors import InputError
from escala.core.files import atomic, sha256_file, write_json

FORMAT = 1
#: The file of digests of acquired files, which shows whether the data changed.
LOCK = "lock.tsv"
INPUT, TARGETS = "{side}_{name}.npy", "{side}_labels.npy"
_COUNTED_AT_ONCE = 2**22


class Side(NamedTuple):
    """The rows of one side of a split: arrays of shape (rows, …).

    The inputs are by name, in the order of the model's inputs. An array may be computed while it is
    written (`Blocks`). `write_split` does not check the limits of the numbers in such an array.
    """

    inputs: Mapping[str, np.ndarray | Blocks]
    targets: np.ndarray | Blocks


def write_split(
    output: Path,
    sides: Mapping[str, Side],
    *,
    kind: str,
    name: str,
    seed: int,
    provenance: str,
    classes: list[str] | None = None,
    below: Mapping[str, int] = MappingProxyType({}),
    names: tuple[str, str] = (INPUT, TARGETS),
    **more: Any,
) -> dict:
    """Write the arrays of a split, then `dataset.json`; return the content of `dataset.json`.

    Parameters
    ----------
    sides : `train`, `test`, perhaps `validation`, with equal names, row shapes and dtypes of
        arrays.
    kind, name, provenance : of the dataset; the provenance is the origin of the data in one word.
    classes : their names in the order of their numbers; None if the targets are no classes.
    below : exclusive upper limits of the whole numbers of inputs, by name. A workload gets the
        limit as `below` of the input's spec. A number outside the limits is a ValueError.
    names : of the files of an input and of the targets.
    more : further entries of the description, as JSON values.
    """
    for side, (inputs, _) in sides.items():
        for key, limit in below.items():
            array = inputs[key]
            if isinstance(array, Blocks) or not array.size:
                continue
            # An embedding table of a model has no row for a number outside the limits.
            if not 0 <= int(array.min()) <= int(array.max()) < limit:
                raise ValueError(
                    f"{key} of {side} holds numbers from {array.min()} to {array.max()}, "
                    f"and its limit is {limit}"
                )
    input_file, targets_file = names
    digests, targets_paths = {}, {}
    with ExitStack() as files:
        for side, (inputs, targets) in sides.items():
            arrays = {input_file.format(side=side, name=key): inputs[key] for key in inputs}
            arrays[targets_file.format(side=side)] = targets
            for file, array in arrays.items():
                path = files.enter_context(atomic(output / file))
                if array is targets:
                    targets_paths[side] = path
                if isinstance(array, Blocks):
                    write_blocks(path, array.shape[1:], array.dtype, array.blocks)
                else:
                    np.save(path, array, allow_pickle=False)
                digests[file] = sha256_file(path)
        counts = {"classes": classes, "counts": _counts(targets_paths, classes)} if classes else {}
    first = sides["train"]
    described_inputs = [
        array_entry(key, array.shape[1:], array.dtype, input_file.format(side="{side}", name=key))
        | ({"below": below[key]} if key in below else {})
        for key, array in first.inputs.items()
    ]
    shape, dtype = first.targets.shape[1:], first.targets.dtype
    description = {
        "format": FORMAT,
        "kind": kind,
        "dataset": name,
        "provenance": provenance,
        "leaky": False,
        "split_seed": seed,
        "inputs": described_inputs,
        "targets": array_entry("labels", shape, dtype, targets_file),
        "rows": {side: rows.targets.shape[0] for side, rows in sides.items()},
        **counts,
        **more,
        "sha256": digests,
    }
    write_json(output / "dataset.json", description)
    return description


def array_entry(name: str, shape: tuple[int, ...], dtype: DTypeLike, file: str) -> dict:
    """Return the entry in `dataset.json` of an array with rows of a shape."""
    return {"name": name, "shape": list(shape), "dtype": np.dtype(dtype).name, "file": file}


def stratify(
    labels: np.ndarray,
    settings: Mapping[str, float],
    classes: list[str],
    seed: int,
    if_one: str = "",
) -> dict[str, np.ndarray]:
    """Divide rows among the sides, each class in proportion.

    `labels` are int64 (rows,), and `settings` hold `test_fraction` and `validation_fraction`. The
    result has the row numbers, int64 and ascending, of `train` and of each side whose fraction is
    above 0. A class with too few rows is refused. `if_one` is a further remedy for a class with a
    single row.
    """
    # Imported here, because reading a split needs no scikit-learn.
    from sklearn.model_selection import train_test_split

    fractions = {side: settings[f"{side}_fraction"] for side in ("test", "validation")}
    fractions = {side: fraction for side, fraction in fractions.items() if fraction}
    train, sides = np.arange(len(labels)), {}
    for side, fraction in fractions.items():
        size = max(1, round(fraction * len(labels)))
        try:
            train, taken = train_test_split(
                train, test_size=size, stratify=labels[train], random_state=seed
            )
        except ValueError as error:
            counts = np.bincount(labels, minlength=len(classes))
            # A class without any row can be divided, too.
            present = np.flatnonzero(counts)
            fewest = int(present[counts[present].argmin()])
            value = f"{classes[fewest]}: {counts[fewest]} rows"
            reason = f"are too few to divide among {len(fractions) + 1} sides by these fractions"
            remedy = "give more rows of each class, leave a class out, or use other fractions"
            remedy += f"; {if_one}" if if_one and counts[fewest] == 1 else ""
            raise InputError("split", value, reason, remedy) from error
        sides[side] = np.sort(taken)
    return {"train": np.sort(train)} | sides


def _counts(paths: Mapping[str, Path], classes: list[str]) -> dict[str, dict[str, int]]:
    """Return the rows of each class on every side; `balanced` repeats the number of `train`.

    `paths` are the files of the targets of each side, which are read in blocks.
    """
    counted = {side: np.zeros(len(classes), np.int64) for side in paths}
    for side, path in paths.items():
        targets = np.load(path, mmap_mode="r", allow_pickle=False).reshape(-1)
        for begin in range(0, len(targets), _COUNTED_AT_ONCE):
            block = targets[begin : begin + _COUNTED_AT_ONCE]
            counted[side] += np.bincount(block, minlength=len(classes))
    return {
        name: {"balanced": int(counted["train"][label])}
        | {side: int(count[label]) for side, count in counted.items()}
        for label, name in enumerate(classes)
    }


class ArrayWriter:
    """Writes an array, some rows at a time, to a binary file that is still empty."""

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
        # NumPy pads the header, so that it keeps its size for any number of rows.
        shape, descr = (self._rows, *self._shape), dtype_to_descr(self._dtype)
        header = {"descr": descr, "fortran_order": False, "shape": shape}
        write_array_header_1_0(self._handle, header)


def take_blocks(array: np.ndarray, rows: np.ndarray, size: int) -> Iterator[np.ndarray]:
    """Yield the numbered rows of an array, which may be mapped from a file, `size` at a time."""
    for begin in range(0, len(rows), size):
        yield np.asarray(array[rows[begin : begin + size]])


class Blocks(NamedTuple):
    """An array of a shape, the rows first, that is computed while it is written.

    `blocks` are rows, of shape (some rows, …) and the array's dtype, in order. They can be read
    only once.
    """

    shape: tuple[int, ...]
    dtype: np.dtype
    blocks: Iterator[np.ndarray]


@contextmanager
def open_array(path: Path, shape: Sequence[int], dtype: DTypeLike) -> Iterator[ArrayWriter]:
    """Yield a writer of rows of a shape at `path`; the file is complete when the block ends."""
    with open(path, "wb") as handle:
        writer = ArrayWriter(handle, shape, dtype)
        yield writer
        writer.flush()


def write_blocks(
    path: Path, shape: Sequence[int], dtype: DTypeLike, blocks: Iterable[np.ndarray]
) -> None:
    """Write blocks of rows to one `.npy` file."""
    with open_array(path, shape, dtype) as writer:
        for block in blocks:
            writer.append(block)


def write_lock(folder: Path) -> None:
    """Write `lock.tsv` into a folder, with a row for each file in the folder, by name."""
    paths = sorted(p for p in folder.rglob("*") if p.is_file() and p.name != LOCK)
    rows = [(p.relative_to(folder).as_posix(), p.stat().st_size, sha256_file(p)) for p in paths]
    write_tsv(folder / LOCK, [("file", "bytes", "sha256"), *rows])


def write_tsv(path: Path, rows: Iterable[Sequence[object]]) -> None:
    """Write rows, the first of them the head, as tab-separated values, atomically."""
    with atomic(path) as temporary, open(temporary, "w", newline="", encoding="utf-8") as handle:
        csv.writer(handle, delimiter="\t", lineterminator="\n").writerows(rows)
