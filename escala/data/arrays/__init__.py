"""The kind `arrays`: a user's arrays, as files of NumPy. Their headers serve to check settings.

NumPy is imported where headers are read, so that other datasets do not wait for the import.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from escala.core.errors import InputError
from escala.data.paths import expand_path
from escala.data.settings import (
    SIDES,
    Settings,
    Size,
    require_training_rows,
    split_of,
    training_rows,
)

if TYPE_CHECKING:
    from escala.data.arrays.headers import Header, Named

#: The name of the targets among the arrays of a side; no input has such a name.
TARGETS = "targets:"


def check(settings: Settings) -> None:
    """Refuse arrays whose headers do not fit together."""
    headers = _headers(settings)
    train = headers["train"]
    for side, arrays in headers.items():
        if list(arrays) != list(train):
            # The targets are the last array.
            of_side, of_train = (", ".join(list(names)[:-1]) for names in (arrays, train))
            reason = f"differ from the inputs of train: {of_train}"
            raise InputError(f"{side}.inputs", of_side, reason, "give every side the same inputs")
        rows = arrays[TARGETS].shape[0]
        for key, header in arrays.items():
            in_side, in_train = _describe(header), _describe(train[key])
            if header.shape[0] == rows and in_side == in_train:
                continue
            reason = f"has {header.shape[0]} rows of {in_side}; needed are {rows} rows of "
            reason += f"{in_train}, for the rows of the targets and the arrays of train"
            text = settings[side]["targets"] if key == TARGETS else settings[side]["inputs"][key]
            raise InputError(key_of(side, key), text, reason, "save it with this dtype and shape")
    names, targets = class_names(settings), train[TARGETS]
    if names is not None:
        from escala.data.base import require_class_names

        require_class_names(names, "classes", "use letters and digits")
        if targets.dtype.kind == "f":
            reason = f"holds {_describe(targets)}, and classes are numbered by whole numbers"
            remedy = "save y.astype('int64'), or y.argmax(axis=-1) of a column for each class; or "
            remedy += "leave classes out"
            raise InputError("train.targets", settings["train"]["targets"], reason, remedy)
    for key in settings["below"]:
        if key not in train or train[key].dtype.kind not in "iu":
            whole = [k for k, form in train.items() if k != TARGETS and form.dtype.kind in "iu"]
            remedy = f"name one of {', '.join(whole)}" if whole else "leave below out"
            reason = "is not an input of whole numbers"
            raise InputError(f"below.{key}", settings["below"][key], reason, remedy)
    require_training_rows(_split(settings))


def preparation(settings: Settings) -> dict:
    """Return the settings that the arrays depend on, with a number in place of each file's path."""
    files = list(_files(settings))
    sides: dict[str, dict] = {}
    for side, key, array in _arrays(settings):
        sides.setdefault(side, {})[key] = [files.index(array.path), array.member]
    return {
        "sides": sides,
        "classes": class_names(settings),
        **{key: settings[key] for key in ("below", "missing")},
        "split": _split(settings),
    }


def preparation_inputs(settings: Settings, folder: Path) -> dict[str, Path]:
    """Return the user's files, each once."""
    return {f"file{number}": path for number, path in enumerate(_files(settings))}


def size(settings: Settings) -> Size:
    """Return the size that the headers give, or an unknown size if they cannot be read."""
    try:
        train = _headers(settings)["train"]
    except InputError:
        return Size()
    rows = train.pop(TARGETS).shape[0]
    numbers = sum(prod(form.shape[1:]) for form in train.values())
    return Size(training_rows(rows, _split(settings)), numbers)


def class_names(settings: Settings) -> list[str] | None:
    """Return the names of the classes, or None if the targets are not numbers of classes."""
    classes = settings.get("classes")
    return [str(number) for number in range(classes)] if isinstance(classes, int) else classes


def key_of(side: str, key: str) -> str:
    """Return the key of an array in the settings."""
    return f"{side}.targets" if key == TARGETS else f"{side}.inputs.{key}"


def _split(settings: Settings) -> dict[str, Any]:
    """Return the split of `train`, with the fraction 0 for each side that has its own files."""
    sides = [side for side in SIDES if side != "train" and side in settings]
    return split_of(settings) | {f"{side}_fraction": 0 for side in sides}


def _arrays(settings: Settings) -> Iterator[tuple[str, str, Named]]:
    """Yield side and name of every array, and its file; the targets last."""
    from escala.data.arrays.headers import Named, parse_name

    for side in (name for name in SIDES if name in settings):
        texts = settings[side]["inputs"] | {TARGETS: settings[side]["targets"]}
        for key, text in texts.items():
            path, member = parse_name(expand_path(text, key_of(side, key)))
            yield side, key, Named(path.absolute(), member)


def _files(settings: Settings) -> dict[Path, None]:
    """Return the files of the arrays, each once, in their order."""
    return dict.fromkeys(array.path for _, _, array in _arrays(settings))


def _headers(settings: Settings) -> dict[str, dict[str, Header]]:
    """Return the header of every array, by side and name."""
    from escala.data.arrays.headers import header

    headers: dict[str, dict[str, Header]] = {}
    for side, key, array in _arrays(settings):
        headers.setdefault(side, {})[key] = header(array, key_of(side, key))
    return headers


def _describe(header: Header) -> str:
    """Return the dtype and the shape of a row, as text."""
    return f"{header.dtype.name} of shape {header.shape[1:]}"
