"""Description and reader of the arrays of one split of a dataset; a user's items to predict.

A split is a folder. Its `dataset.json` names the arrays of every side:

    "inputs": [{"name": "codes", "shape": [1000], "dtype": "uint8", "file": "{side}.npy"}],
    "targets": {"name": "labels", "shape": [], "dtype": "int64", "file": "{side}_labels.npy"},
    "rows": {"train": 161, "test": 69}

`shape` is the shape of one row. `file` is relative to the folder, with the side's name for
`{side}`. `rows` names the sides of the split; `validation` may be absent. If the targets are
numbers of classes, one or several in a row, `classes` lists the classes' names in the order of the
numbers. An array of whole numbers may also give `below`, an exclusive upper limit of its numbers.
`baselines` is optional: for each baseline by name, its scores on the test rows by name. A baseline
needs no model.
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


#: The inputs of some rows, and the targets of these rows.
Rows = tuple[tuple[np.ndarray, ...], np.ndarray]


class Spec(NamedTuple):
    """The name, shape, dtype and limit of one array; `shape` is the shape of one row.

    `below` is an exclusive upper limit of whole numbers from 0, such as the size of a vocabulary.
    It is None if no limit is known.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    below: int | None = None


class Arrays:
    """Reader of a split whose sides are `.npy` files, mapped into memory read-only.

    An array that is missing or differs from its description is refused. `description` is the
    content of `dataset.json`. `inputs` and `targets` are the specs of the model's inputs and of the
    targets. `sides` are the sides of the split, in the order of `SIDES`.
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
        """Read every page once, so that training finds the arrays in the ranks' common memory."""
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
    """Return the content of a split's `dataset.json`; refuse a file that is missing or damaged."""
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
    """Return the entries of all arrays in a description; none for data that a program reads."""
    return [*description["inputs"], *filter(None, [description["targets"]])]


def specs(description: dict) -> tuple[Spec, ...]:
    """Return the specs of the inputs, from a description."""
    return tuple(map(_spec, description["inputs"]))


def output_shape(description: dict) -> tuple[int, ...]:
    """Return the shape of a model's output for one row.

    If the dataset has `classes`, the targets are numbers of classes, and the model gives a
    probability for each class: `(classes,)` for labels, `(words, classes)` for sequences. Otherwise
    the output has the shape of the target. A model may add further axes.
    """
    shape = tuple(description["targets"]["shape"])
    classes = description.get("classes")
    return (*shape, len(classes)) if classes else shape


def is_class_name(text: str) -> bool:
    """Return whether a text can name a class: 1 to 64 printable characters that are no formula.

    A spreadsheet takes a cell that begins with `=`, `+`, `-` or `@` for a formula, unless the cell
    is a number.
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
    """Refuse a text that cannot name a class; `remedy` says how to correct its source."""
    for name in names:
        if not is_class_name(name):
            reason = "is not a valid name of a class: too long, not printable, or a formula"
            remedy += f", with {LONGEST_CLASS} characters at most and none of =+-@ first"
            raise InputError(where, name[:LONGEST_CLASS], reason, remedy)


def _spec(entry: dict) -> Spec:
    """Return the spec that an entry describes; a wrong entry raises an error of Python's own."""
    below = entry.get("below")
    if below is not None and (type(below) is not int or below < 1):
        raise ValueError(f"below: {below!r} is not a limit of whole numbers")
    return Spec(entry["name"], tuple(entry["shape"]), np.dtype(entry["dtype"]).name, below)


class Query(NamedTuple):
    """One item to predict.

    `columns` are its cells in the table of predictions, by column. The first cell is its name. A
    column `class` holds the true class, if the file gives the class; then the predictions are
    scored. `inputs` has an array of shape (pieces, …) for each input of the model. The predictions
    of the pieces are averaged, unless the workload offers `columns`. Familiarity is computed from
    `evidence`, which is None for a kind without familiarity.
    """

    columns: Mapping[str, Any]
    inputs: tuple[np.ndarray, ...]
    evidence: Any = None


def invalid(key: str, wrong: str) -> InputError:
    """Return the error about a key of `model.json`, a file that may come from an unknown source."""
    remedy = "get the model's folder again, or train the model again"
    return InputError("model.json", key, f"is missing, or {wrong}", remedy)
