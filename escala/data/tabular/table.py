"""Tables of numbers with a class: CSV files read in blocks of rows, and samples of scikit-learn."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd

from escala.core.errors import InputError
from escala.data.base import LONGEST_CLASS, is_class_name

#: Rows that are read at a time.
BLOCK_ROWS = 65_536
#: Delimiters that users write in place of commas, by their names.
OTHER_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
#: What stands for a missing value.
MISSING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "?")
Header = Literal["auto", "yes", "no"]
#: What reading a file raises, besides ValueError.
UNREADABLE = (UnicodeDecodeError, csv.Error, OSError, EOFError, zlib.error)
#: Errors with the reason and the remedy of each.
CAUSES = (
    (FileNotFoundError, "no such file", "name a CSV file that exists"),
    (IsADirectoryError, "is a directory", "name a CSV file in it"),
    (PermissionError, "may not be read", "change its permissions"),
    (gzip.BadGzipFile, "is not valid gzip", "compress it again, or remove .gz from its name"),
    ((EOFError, zlib.error), "is gzip that is damaged or ends early", "copy the file again"),
    (
        UnicodeDecodeError,
        "is not text in UTF-8",
        "save it as UTF-8, or end the name of a gzipped file in .gz",
    ),
    (csv.Error, "cannot be read as CSV: a quote is not closed or stands in a field", "mend it"),
)
NUL = "holds a NUL character", "remove it"


@dataclass(frozen=True)
class Columns:
    """The columns of a table: the names of its features, in order, and whether a line holds them.

    Attributes
    ----------
    features : from the header, or `feature-1`, `feature-2`, ….
    header : whether the first line of the file is one.
    labelled : whether a class stands behind the features.
    """

    features: tuple[str, ...]
    header: bool
    labelled: bool = True

    @property
    def count(self) -> int:
        """The columns of a row."""
        return len(self.features) + self.labelled


def columns(path: Path, header: Header) -> Columns:
    """Return the columns of a CSV file, whose last one is the class.

    Parameters
    ----------
    path : plain or gzipped, separated by commas; fields may be quoted.
    header : `auto` takes the first line for a header if one of its features is no number and not
        missing.

    Raises
    ------
    InputError : the file is missing, empty, not text, or has fewer than two columns.
    """
    first = _first_line(path)
    if len(first) < 2:
        raise InputError(path, first[0], *_one_column(first[0]))
    names = [name.strip() for name in first[:-1]]
    is_header = header == "yes" or (header == "auto" and not all(map(_is_number, names)))
    if not is_header:
        return Columns(tuple(f"feature-{number}" for number in range(1, len(first))), False)
    repeated = sorted({name for name in names if names.count(name) > 1})
    if repeated:
        raise InputError(path, repeated[0], "names two columns", "give each column its own name")
    return Columns(tuple(names), True)


def columns_like(path: Path, names: Sequence[str]) -> Columns:
    """Return the columns of a file with the features of another table, with or without a class.

    Raises
    ------
    InputError : as `columns`; or it has fewer or more features, or other names of them.
    """
    first = _first_line(path)
    if len(first) not in (len(names), len(names) + 1):
        raise InputError(
            path,
            f"{len(first)} columns",
            f"the model reads {len(names)} features",
            "give these features in their order, with or without the class behind them",
        )
    fields = [field.strip() for field in first[: len(names)]]
    header = not all(map(_is_number, fields))
    if header and fields != list(names):
        unlike = next(pair for pair in zip(fields, names, strict=True) if pair[0] != pair[1])
        raise InputError(
            path, unlike[0], f"stands where the model reads {unlike[1]}", "put the columns in order"
        )
    return Columns(tuple(names), header, labelled=len(first) > len(names))


def blocks(path: Path, of: Columns) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the rows of a CSV file, `BLOCK_ROWS` at a time.

    Yields
    ------
    Features, float64 (rows, features), NaN where a value is missing; and the classes as they are
    written, without spaces around them, object (rows,), of a file without them empty texts.

    Raises
    ------
    InputError : there is no row; or a row has more or fewer columns than the first, a feature is no
        finite number, a class is missing, or a field holds a NUL character. The message names the
        row, counted from 1 without the header.
    """
    places, start = list(range(of.count)), 0
    numbers, last = places[: len(of.features)], places[len(of.features) :]
    try:
        with _opened(path) as text:
            reader = pd.read_csv(
                text,
                header=0 if of.header else None,
                names=places,
                # A row with more fields would otherwise become an index and the rest.
                index_col=False,
                dtype=dict.fromkeys(numbers, np.float64) | dict.fromkeys(last, str),
                na_values=dict.fromkeys(numbers, MISSING),
                keep_default_na=False,
                float_precision="round_trip",
                skipinitialspace=True,
                chunksize=BLOCK_ROWS,
            )
            for block in reader:
                features = block[numbers].to_numpy(np.float64)
                # pandas fills a row that is too short; of others the class is text.
                classes = block[len(numbers)] if of.labelled else pd.Series("-", block.index)
                labels = classes.str.strip().to_numpy(object)
                if np.isinf(features).any() or classes.isna().any() or (labels == "").any():
                    raise ValueError(f"row {start + 1} or a later one is not complete")
                yield features, labels if of.labelled else np.full(len(labels), "", object)
                start += len(block)
    except (ValueError, *UNREADABLE) as error:
        # pandas names neither the row nor the cell.
        raise _fault(path, of, start) or _unreadable(path, error) from error
    if not start:
        raise _no_rows(path)


def sample(name: Literal["breast_cancer", "digits"]) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return a data set that comes with scikit-learn.

    Returns
    -------
    Features, float64 (rows, features); classes as text, object (rows,); the features' names.
    """
    from sklearn import datasets

    found = getattr(datasets, f"load_{name}")()
    labels = np.array([str(found.target_names[number]) for number in found.target], object)
    names = [str(feature).replace(" ", "-") for feature in found.feature_names]
    return found.data.astype(np.float64), labels, names


def ordered(classes: Iterable[str], origin: object) -> list[str]:
    """Return classes in the order of their numbers.

    Classes that are all numbers are in the order of their values, others in that of the alphabet.

    Parameters
    ----------
    origin : of the table, for messages.

    Raises
    ------
    InputError : there are fewer than two, or a name is longer than 64 characters or not printable.
    """
    distinct = set(classes)
    if len(distinct) < 2:
        raise InputError(
            origin,
            next(iter(distinct), None),
            "fewer than two classes: there is nothing to tell apart",
            "give rows of two classes at least",
        )
    for name in sorted(distinct):
        if not is_class_name(name):
            raise InputError(
                origin,
                name[:LONGEST_CLASS],
                "is no name of a class: too long, not printable, or a formula",
                f"put the class into the last column, with {LONGEST_CLASS} characters at most",
            )
    if all(map(_is_number, distinct)) and distinct.isdisjoint(MISSING):
        return sorted(distinct, key=lambda label: (float(label), label))
    return sorted(distinct)


def _fault(path: Path, of: Columns, start: int) -> InputError | None:
    """Return what is wrong with the first faulty row behind row `start`."""
    lines = _lines(path)
    if of.header:
        next(lines, None)
    for row, fields in enumerate(lines, start=1):
        if row <= start:
            continue
        where = f"row {row}"
        if place := _nul(fields):
            return InputError(path, f"{where}, {place}", *NUL)
        if len(fields) != of.count:
            reason = f"has {len(fields)} columns, and the first row has {of.count}"
            return InputError(path, where, reason, "give every row the same columns")
        for name, value in zip(of.features, fields, strict=False):
            if not _is_number(value.strip()) or math.isinf(_number(value)):
                reason = f"is no finite number: {value[:40]!r} in {where}"
                remedy = "write features as numbers, and the class in the last column"
                return InputError(path, name, reason, remedy)
        if of.labelled and not fields[-1].strip():
            return InputError(path, where, "has no class", "write the class in the last column")
    return None


def _first_line(path: Path) -> list[str]:
    """Return the fields of the first line that is not empty.

    Raises
    ------
    InputError : as `_lines`; or there is no line, or it holds a NUL character.
    """
    first = next(_lines(path), None)
    if first is None:
        raise _no_rows(path)
    if place := _nul(first):
        raise InputError(path, f"first line, {place}", *NUL)
    return first


def _no_rows(path: Path) -> InputError:
    return InputError(path, None, "holds no rows", "give a CSV file with a row per sample")


def _one_column(line: str) -> tuple[str, str]:
    """Return the reason and the remedy for a first line without commas."""
    reason = "has one column only"
    if line.startswith("#"):
        return f"{reason}: it is a comment", "remove the lines that begin with #"
    for delimiter, name in OTHER_DELIMITERS.items():
        if delimiter in line:
            return f"{reason}: {name} separate its fields", "write commas between fields"
    return reason, "separate columns by commas: features first, the class last"


def _nul(fields: Sequence[str]) -> str | None:
    """Return the column of a field with a NUL character, counted from 1, or None."""
    return next((f"column {n}" for n, field in enumerate(fields, start=1) if "\0" in field), None)


def _lines(path: Path) -> Iterator[list[str]]:
    """Yield the fields of every line that is not empty.

    Raises
    ------
    InputError : the file is missing or is no text.
    """
    try:
        with _opened(path) as text:
            yield from filter(None, csv.reader(text, skipinitialspace=True, strict=True))
    except UNREADABLE as error:
        raise _unreadable(path, error) from error


class _Text(io.TextIOWrapper):
    """A text that refuses to `read` a NUL character, at which pandas would end a field."""

    def read(self, size: int | None = -1) -> str:
        text = super().read(size)
        if "\0" in text:
            raise ValueError(NUL[0])
        return text


def _opened(path: Path) -> _Text:
    opened = gzip.open if path.suffix == ".gz" else open
    return _Text(opened(path, "rb"), encoding="utf-8-sig", newline="")


def _unreadable(path: Path, error: Exception) -> InputError:
    """Return the reason and the remedy for a file that cannot be read."""
    for causes, reason, remedy in CAUSES:
        if isinstance(error, causes):
            return InputError(path, None, reason, remedy)
    return InputError(path, None, f"cannot be read as CSV: {error}", "mend what the reason names")


def _number(text: str) -> float:
    if text.strip() in MISSING:
        return math.nan
    # Python reads these as numbers, and pandas does not.
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return float(text)


def _is_number(text: str) -> bool:
    """Return whether a text is a number or stands for a missing one."""
    try:
        _number(text)
    except ValueError:
        return False
    return True
