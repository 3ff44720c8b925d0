"""Division of rows among sides, and writer of splits."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from escala.core.errors import InputError
from escala.core.files import atomic, sha256_file, write_json
from escala.data.writer import Blocks, save

FORMAT = 1
INPUT, TARGETS = "{side}_{name}.npy", "{side}_labels.npy"
_COUNTED_AT_ONCE = 2**22


class Side(NamedTuple):
    """The rows of one side of a split.

    Attributes
    ----------
    inputs : arrays of shape (rows, …) by name, in the order of the model's inputs. Each may be
        computed while it is written; who computes it keeps it below its limit.
    targets : array of shape (rows, …), which may be computed too.
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
    """Write the arrays of a split, and `dataset.json` last.

    Parameters
    ----------
    output : folder that receives the files of `names` and `dataset.json`.
    sides : `train`, `test`, and `validation` if there is one; their arrays agree in names, shapes
        and dtypes.
    kind, name : of the dataset.
    seed : of the split.
    provenance : where the data come from, in one word.
    classes : names of the classes in the order of their numbers; None if the targets are no
        classes.
    below : exclusive upper limits of the whole numbers of inputs, by name. A workload gets the
        limit as `below` of the input's spec.
    names : of the files of an input and of the targets.
    more : further entries of the description, as JSON values.

    Returns
    -------
    The description that `dataset.json` holds.

    Raises
    ------
    ValueError : an input holds a number that is not from 0 to below its limit.
    """
    _check_limits(sides, below)
    first, (input_file, targets_file) = sides["train"], names
    digests, written = {}, {}
    with ExitStack() as files:
        for side, rows in sides.items():
            arrays = {
                input_file.format(side=side, name=key): array for key, array in rows.inputs.items()
            }
            for file, array in (arrays | {targets_file.format(side=side): rows.targets}).items():
                path = files.enter_context(atomic(output / file))
                save(path, array)
                digests[file] = sha256_file(path)
            written[side] = path
        counts = {"classes": classes, "counts": _counts(written, classes)} if classes else {}
    described = [
        _spec(key, array, input_file.format(side="{side}", name=key))
        | ({"below": below[key]} if key in below else {})
        for key, array in first.inputs.items()
    ]
    description = {
        "format": FORMAT,
        "kind": kind,
        "dataset": name,
        "provenance": provenance,
        "leaky": False,
        "split_seed": seed,
        "inputs": described,
        "targets": _spec("labels", first.targets, targets_file),
        "rows": {side: rows.targets.shape[0] for side, rows in sides.items()},
        **counts,
        **more,
        "sha256": digests,
    }
    write_json(output / "dataset.json", description)
    return description


def stratified(
    labels: np.ndarray,
    settings: Mapping[str, float],
    classes: list[str],
    seed: int,
    if_one: str = "",
) -> dict[str, np.ndarray]:
    """Divide rows among the sides, each class in proportion.

    Parameters
    ----------
    labels : int64 (rows,).
    settings : `test_fraction` and `validation_fraction` of the rows.
    seed : of the shuffle.
    if_one : what else may help if a class has a single row.

    Returns
    -------
    Row numbers of each side, int64, ascending; `validation` where its fraction is not 0.

    Raises
    ------
    InputError : a class has too few rows for every side.
    """
    # Reading a split takes no scikit-learn.
    from sklearn.model_selection import train_test_split

    fractions = {
        side: settings[f"{side}_fraction"]
        for side in ("test", "validation")
        if settings[f"{side}_fraction"]
    }
    rest, sides = np.arange(len(labels)), {}
    for side, fraction in fractions.items():
        try:
            rest, taken = train_test_split(
                rest,
                test_size=max(1, round(fraction * len(labels))),
                stratify=labels[rest],
                random_state=seed,
            )
        except ValueError as error:
            counts = np.bincount(labels, minlength=len(classes))
            # A class may have no rows at all, which is no obstacle.
            present = np.flatnonzero(counts)
            fewest = int(present[counts[present].argmin()])
            remedy = "give more rows of each class, leave a class out, or use other fractions"
            raise InputError(
                "split",
                f"{classes[fewest]}: {counts[fewest]} rows",
                f"are too few to divide among {len(fractions) + 1} sides by these fractions",
                f"{remedy}; {if_one}" if if_one and counts[fewest] == 1 else remedy,
            ) from error
        sides[side] = np.sort(taken)
    return {"train": np.sort(rest)} | sides


def _spec(name: str, array: np.ndarray | Blocks, file: str) -> dict:
    """Return the entry of an array in `dataset.json`."""
    return {"name": name, "shape": list(array.shape[1:]), "dtype": array.dtype.name, "file": file}


def _check_limits(sides: Mapping[str, Side], below: Mapping[str, int]) -> None:
    """Refuse inputs with numbers outside their limits, which a model would look up in no row.

    Raises
    ------
    ValueError : with the first such input.
    """
    for side, rows in sides.items():
        for name, limit in below.items():
            array = rows.inputs[name]
            if isinstance(array, Blocks):
                continue
            if array.size and not 0 <= int(array.min()) <= int(array.max()) < limit:
                raise ValueError(
                    f"{name} of {side} holds numbers from {array.min()} to {array.max()}, "
                    f"and its limit is {limit}"
                )


def _counts(written: Mapping[str, Path], classes: list[str]) -> dict[str, dict[str, int]]:
    """Return the number of rows of each class on each side, by class; nothing is oversampled.

    Parameters
    ----------
    written : the file of the targets of each side, which is read in blocks.
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
