"""Division of rows among sides, and writer of splits."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from escala.core.errors import InputError
from escala.core.files import atomic, sha256_file, write_json
from escala.data.writer import Blocks, save

FORMAT = 1
INPUT, TARGETS = "{side}_{name}.npy", "{side}_labels.npy"
_COUNTED_AT_ONCE = 2**22


class Side(NamedTuple):
    """The rows of one side of a split: arrays of shape (rows, …).

    The inputs are by name, in the order of the model's inputs. Arrays may be computed while they
    are written; who computes an input keeps it below its limit.
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
    """Write the arrays of a split, and `dataset.json` last; return the description in it.

    Parameters
    ----------
    sides : `train`, `test`, perhaps `validation`; with arrays of the same names, shapes, dtypes.
    kind, name, provenance : of the dataset, and where its data come from, in one word.
    classes : their names in the order of their numbers; None if the targets are no classes.
    below : exclusive upper limits of the whole numbers of inputs, by name. A workload gets the
        limit as `below` of the input's spec; other numbers are a ValueError.
    names : of the files of an input and of the targets.
    more : further entries of the description, as JSON values.
    """
    _check_limits(sides, below)
    first, (input_file, targets_file) = sides["train"], names
    digests, written = {}, {}
    with ExitStack() as files:
        for side, (inputs, targets) in sides.items():
            arrays = {input_file.format(side=side, name=key): inputs[key] for key in inputs}
            for file, array in (arrays | {targets_file.format(side=side): targets}).items():
                path = files.enter_context(atomic(output / file))
                save(path, array)
                digests[file] = sha256_file(path)
            written[side] = path
        counts = {"classes": classes, "counts": _counts(written, classes)} if classes else {}
    described = [
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
        "inputs": described,
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


def stratified(
    labels: np.ndarray,
    settings: Mapping[str, float],
    classes: list[str],
    seed: int,
    if_one: str = "",
) -> dict[str, np.ndarray]:
    """Divide rows among the sides, each class in proportion.

    `labels` are int64 (rows,). The result are row numbers of each side, int64, ascending;
    `validation` where its fraction is not 0. A class with too few rows for every side is refused;
    `if_one` is what else may help if it has a single row.
    """
    # Reading a split takes no scikit-learn.
    from sklearn.model_selection import train_test_split

    fractions = {side: settings[f"{side}_fraction"] for side in ("test", "validation")}
    fractions = {side: fraction for side, fraction in fractions.items() if fraction}
    rest, sides = np.arange(len(labels)), {}
    for side, fraction in fractions.items():
        size = max(1, round(fraction * len(labels)))
        try:
            rest, taken = train_test_split(
                rest, test_size=size, stratify=labels[rest], random_state=seed
            )
        except ValueError as error:
            counts = np.bincount(labels, minlength=len(classes))
            # A class may have no rows at all, which is no obstacle.
            present = np.flatnonzero(counts)
            fewest = int(present[counts[present].argmin()])
            value = f"{classes[fewest]}: {counts[fewest]} rows"
            reason = f"are too few to divide among {len(fractions) + 1} sides by these fractions"
            remedy = "give more rows of each class, leave a class out, or use other fractions"
            remedy += f"; {if_one}" if if_one and counts[fewest] == 1 else ""
            raise InputError("split", value, reason, remedy) from error
        sides[side] = np.sort(taken)
    return {"train": np.sort(rest)} | sides


def _check_limits(sides: Mapping[str, Side], below: Mapping[str, int]) -> None:
    """Refuse inputs with numbers outside their limits, which a model would look up in no row."""
    for side, rows in sides.items():
        for name, limit in below.items():
            array = rows.inputs[name]
            if isinstance(array, Blocks) or not array.size:
                continue
            if not 0 <= int(array.min()) <= int(array.max()) < limit:
                raise ValueError(
                    f"{name} of {side} holds numbers from {array.min()} to {array.max()}, "
                    f"and its limit is {limit}"
                )


def _counts(written: Mapping[str, Path], classes: list[str]) -> dict[str, dict[str, int]]:
    """Return the number of rows of each class on each side; nothing is oversampled.

    `written` is the file of the targets of each side, which is read in blocks.
    """
    counted = {side: np.zeros(len(classes), np.int64) for side in written}
    for side, path in written.items():
        targets = np.load(path, mmap_mode="r", allow_pickle=False).reshape(-1)
        for begin in range(0, len(targets), _COUNTED_AT_ONCE):
            block = targets[begin : begin + _COUNTED_AT_ONCE]
            counted[side] += np.bincount(block, minlength=len(classes))
    return {
        name: {"balanced": int(counted["train"][label])}
        | {side: int(count[label]) for side, count in counted.items()}
        for label, name in enumerate(classes)
    }
