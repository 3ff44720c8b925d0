"""Description and reader of the arrays of one split of a dataset, and a user's items to predict.

A split is a folder. Its `dataset.json` names the arrays of every side:

    "inputs": [{"name": "codes", "shape": [1000], "dtype": "uint8", "file": "{side}.npy"}],
    "targets": {"name": "labels", "shape": [], "dtype": "int64", "file": "{side}_labels.npy"},
    "rows": {"train": 161, "test": 69}

`shape` is the shape of one row. `file` is relative to the folder, with the side's name for
`{side}`. `rows` names the sides of the split; `validation` may be absent. If the targets are
numbers of classes, one or several in a row, `classes` lists their names in this order. An array of
whole numbers may also give `below`, an exclusive upper limit of its numbers. `baselines` may hold,
by name, scores that are reached on the test rows without any model, each by its own name.
"""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from escala.core.errors import InputError
from escala.core.files import read_json
from escala.data.settings import SIDES

DESCRIPTION = "dataset.json"
#: `Arrays.touch` reads one byte in each block of this size: at least one in each page of memory.
_PAGE_BYTES = 4096
#: Maximum length of the name of a class, in characters.
LONGEST_CLASS = 64


#: The inputs of some rows, and their targets.
Rows = tuple[tuple[np.ndarray, ...], np.ndarray]


class Spec(NamedTuple):
    """The form of one array: `shape` is that of one row.

    `below` is an exclusive upper limit of the whole numbers from 0 that it holds, such as the size
    of a vocabulary; None if none is known.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    below: int | None = None


class Arrays:
    """Reader of a split whose sides are `.npy` files, mapped into memory read-only.

    An array that is missing or differs from its description is refused. `description` is the
    content of `dataset.json`; `inputs` and `targets` are the specs of the model's inputs and of
    what it predicts, and `sides` those of the split, in the order of `SIDES`.
    """

    def __init__(self, folder: str | Path):
        self._folder = Path(folder)
        self.description = description(self._folder)
        if self.description["targets"] is None:
            reason = "describes files that a program reads itself, and no arrays"
            where = self._folder / DESCRIPTION
            raise InputError(where, None, reason, "name a dataset of another kind")
        self.inputs = specs(self.description)
        self.targets = _spec(self.description["targets"])
        self.sides = tuple(side for side in SIDES if side in self.description["rows"])
        self._arrays = {side: [*self._map(side)] for side in self.sides}

    def rows(self, side: str) -> int:
        """Return the number of rows of a side."""
        return self.description["rows"][side]

    def gather(self, side: str, rows: np.ndarray | slice) -> Rows:
        """Return the inputs and the targets of some rows of a side, in the dtypes of the specs."""
        *inputs, targets = (array[rows] for array in self._arrays[side])
        return tuple(inputs), targets

    def touch(self) -> None:
        """Read every page once, so that training finds the arrays in memory that ranks share."""
        for array in (array for arrays in self._arrays.values() for array in arrays):
            array.reshape(-1).view(np.uint8)[::_PAGE_BYTES].max(initial=0)

    def _map(self, side: str) -> Iterator[np.ndarray]:
        """Yield the inputs and the targets of a side."""
        for entry in _entries(self.description):
            path, spec = self._folder / entry["file"].format(side=side), _spec(entry)
            shape = (self.rows(side), *spec.shape)
            try:
                array = np.load(path, mmap_mode="r", allow_pickle=False)
            except (OSError, ValueError) as error:
                raise self._error(path.name, f"cannot be read: {error}") from error
            if (array.shape, array.dtype) != (shape, spec.dtype) or not array.flags.c_contiguous:
                reason = f"is {array.dtype} of shape {array.shape}; {DESCRIPTION} describes "
                raise self._error(path.name, f"{reason}{spec.dtype} of shape {shape}")
            yield array

    def _error(self, value: str, reason: str) -> InputError:
        return InputError(self._folder, value, reason, f"remove {self._folder} and run again")


def description(folder: Path) -> dict:
    """Return the content of a split's `dataset.json`; refuse one that describes no arrays."""
    try:
        content = read_json(folder / DESCRIPTION)
        usable = {"train", "test"} <= content["rows"].keys() <= set(SIDES)
        usable &= all(_spec(entry) and entry["file"] for entry in _entries(content))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        usable = False
    if not usable:
        reason = "is missing, damaged, or of an older version"
        raise InputError(folder, DESCRIPTION, reason, f"remove {folder} and run again")
    return content


def files(description: dict) -> list[str]:
    """Return the names of the files that training reads, from a description."""
    entries = _entries(description)
    sides = [side for side in SIDES if side in description["rows"]]
    return [entry["file"].format(side=side) for side in sides for entry in entries]


def _entries(description: dict) -> list[dict]:
    """Return the entries of all arrays in a description; data that a program reads have none."""
    return [*description["inputs"], *filter(None, [description["targets"]])]


def specs(description: dict) -> tuple[Spec, ...]:
    """Return the specs of the inputs, from a description."""
    return tuple(map(_spec, description["inputs"]))


def output_shape(description: dict) -> tuple[int, ...]:
    """Return the shape of a model's output for one row.

    If the dataset has `classes`, the targets are numbers of classes, and the model gives a
    probability for each class: `(classes,)` for labels, `(words, classes)` for sequences. Otherwise
    the output has the shape of the target, which the shape of the model may continue.
    """
    shape = tuple(description["targets"]["shape"])
    classes = description.get("classes")
    return (*shape, len(classes)) if classes else shape


def is_class_name(text: str) -> bool:
    """Return whether a text can name a class: 1 to 64 printable characters, and no formula.

    A spreadsheet takes a cell that begins with `=`, `+`, `-` or `@` for a formula, unless it is a
    number.
    """
    if not 0 < len(text) <= LONGEST_CLASS or not text.isprintable():
        return False
    if text[0] not in "=+-@＝＋－＠":
        return True
    try:
        float(text)
    except ValueError:
        return False
    return True


def require_class_names(names: Iterable[str], where: object, remedy: str) -> None:
    """Refuse a text that can name no class; `remedy` is what its source can do about it."""
    for name in names:
        if not is_class_name(name):
            reason = "is not a valid name of a class: too long, not printable, or a formula"
            remedy += f", with {LONGEST_CLASS} characters at most and none of =+-@ first"
            raise InputError(where, name[:LONGEST_CLASS], reason, remedy)


def _spec(entry: dict) -> Spec:
    """Return the spec that an entry describes; raise one of Python's own errors if it does not."""
    below = entry.get("below")
    if below is not None and (type(below) is not int or below < 1):
        raise ValueError(f"below: {below!r} is not a limit of whole numbers")
    return Spec(entry["name"], tuple(entry["shape"]), np.dtype(entry["dtype"]).name, below)


class Query(NamedTuple):
    """One item to predict.

    `columns` are its cells in the table of predictions, by column; its name comes first. If the
    file gives the true class, this is the column `class`, and the predictions are scored. `inputs`
    has an array for each input of the model, of shape (pieces, …). The predictions of the pieces
    are averaged, unless the workload offers `columns`. From `evidence` its familiarity is computed;
    None if the kind has no such measure.
    """

    columns: Mapping[str, Any]
    inputs: tuple[np.ndarray, ...]
    evidence: Any = None


def invalid(key: str, wrong: str) -> InputError:
    """Return the error about a key of `model.json`, which may be of an unknown source."""
    remedy = "get the model's folder again, or train the model again"
    return InputError("model.json", key, f"is missing, or {wrong}", remedy)
