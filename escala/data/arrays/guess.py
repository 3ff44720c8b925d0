"""Guess from the names of arrays which are inputs, which are targets, and of which side."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from escala.core.errors import InputError
from escala.data.arrays.headers import Named, members, named, opened

_TARGETS = {"y", "label", "labels", "target", "targets", "class", "classes", "output", "outputs"}
_SIDES = {"train": "train", "training": "train", "tr": "train"}
_SIDES |= dict.fromkeys(("test", "testing", "te"), "test")
_SIDES |= dict.fromkeys(("val", "valid", "validation", "dev"), "validation")
#: More different numbers than these are a quantity, and no classes.
MOST_CLASSES = 1000


def settings_of(path: Path, data: str) -> dict[str, Any] | None:
    """Return the settings of a dataset from a `.npz` file or a folder of `.npy` files.

    They are `train`, `test` and `validation` as far as they are there, and `classes` if the targets
    are the whole numbers from 0 to their largest. None if the path is no such file or folder; names
    of which the targets cannot be told are refused.
    """
    if path.is_file() and path.suffix.lower() == ".npz":
        found = {name: f"{data}:{name}" for name in members(path, "data")}
    elif path.is_dir():
        folder = data.rstrip("/")
        found = {file.stem: f"{folder}/{file.name}" for file in sorted(path.glob("*.npy"))}
    else:
        found = {}
    if not found:
        return None
    sides = _divided(found, data)
    classes = _classes(path, sides["train"]["targets"])
    return sides | ({"classes": classes} if classes else {})


def _divided(found: dict[str, str], data: str) -> dict[str, dict[str, Any]]:
    """Return inputs and targets of each side, by the words in the names of arrays."""
    sides: dict[str, dict[str, Any]] = {}
    for name, place in found.items():
        # `Xtrain`, `ytest` and the like are two words.
        spaced = re.sub(r"\b([XxYy])(train|test|val|valid)\b", r"\1-\2", name.replace("_", "-"))
        words = re.findall(r"[A-Za-z0-9]+", spaced)
        side = next((_SIDES[w.lower()] for w in words if w.lower() in _SIDES), "train")
        rest = [w for w in words if w.lower() not in _SIDES]
        group = sides.setdefault(side, {"inputs": {}, "targets": []})
        if _TARGETS & {w.lower() for w in rest}:
            group["targets"].append(place)
        else:
            key = "-".join(rest)[:64] or "x"
            if other := group["inputs"].get(key):
                reason = f"{other} and {place} would both be the input {key} of {side}"
                remedy = "save each array once, or name them x_train, x_test and so on"
                raise InputError("data", data, reason, remedy)
            group["inputs"][key] = place
    for side in sides.values():
        if len(side["targets"]) != 1 or not side["inputs"]:
            raise _unclear(found, data)
        [side["targets"]] = side["targets"]
    if "train" not in sides:
        raise _unclear(found, data)
    return sides


def _unclear(found: Iterable[str], data: str) -> InputError:
    names = ", ".join(found)
    reason = (
        f"holds the arrays {names}, and their names do not show what is input and what is target"
    )
    remedy = "save them as x and y, or x_train, y_train, x_test, y_test; or write the experiment "
    return InputError("data", data, reason, f"{remedy}by hand: docs/how-to/own-table.md")


def _classes(path: Path, place: str) -> int | None:
    """Return the number of classes if targets are all the numbers from 0, each at least once."""
    member = named(place).member
    where = path if member else path / Path(place).name
    with opened(Named(where, member), "data") as (handle, _):
        try:
            targets = np.lib.format.read_array(handle, allow_pickle=False)
        except ValueError:
            return None
    if targets.dtype.kind not in "iub" or targets.shape[1:] not in ((), (1,)) or not targets.size:
        return None
    largest = int(targets.max())
    whole = targets.min() == 0 and 0 < largest < MOST_CLASSES
    return largest + 1 if whole and len(np.unique(targets)) == largest + 1 else None
