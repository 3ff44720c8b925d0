"""Tables of numbers with a class: CSV and TSV files, the meaning of fields, and samples."""

import csv
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from escala.core.errors import InputError
from escala.core.text import csv_rows, delimiter, no_csv, open_text
from escala.data.base import LONGEST_CLASS, require_class_names

#: Rows that are read at a time, and the most numbers in these rows.
BLOCK_ROWS, BLOCK_NUMBERS = 65_536, 2**24
#: Names that pandas gives to columns without a name.
_UNNAMED = re.compile(r"(?:Unnamed: \d+)?")
#: Usual names of the column of classes, in small letters.
_CLASS = ("class", "label", "labels", "target")
#: Signs at the start of a line that is no row. `@` is the sign of ARFF, the format of Weka.
_COMMENTS = "#%@"
_DECIMAL = re.compile(r"[+-]?\d+,\d+")
_NUL = "holds a NUL character", "give a text file, or remove the character"
#: Texts for a missing value, in small letters: words; the texts of pandas, Stata and SAS, MySQL and
#: C; and the errors of spreadsheets.
MISSING = frozenset(
    ["", "na", "n/a", "n.a.", "nan", "-nan", "null", "(null)", "<null>", "none", "nil", "?",
     "<na>", "#na", "#n/a", "#n/a n/a", ".", r"\n", "1.#qnan", "-1.#qnan", "1.#ind", "-1.#ind",
     "#div/0!", "#value!", "#ref!", "#num!", "#name?", "#null!"]
)  # fmt: skip
BOOLEANS = ("true", "false")
#: Maximum digits of a number that names a class. A longer number stays as it is written.
_DIGITS = LONGEST_CLASS
_EXACT = Context(prec=_DIGITS)
#: A column with more values than this is no class if most occur in one row or some are not whole.
_MOST_SINGLE = 10
#: Fewer values than this may be consecutive numbers by accident.
_COUNTED = 10
Header = Literal["auto", "yes", "no"]


@dataclass(frozen=True)
class Columns:
    """The columns of a table that are read.

    Attributes
    ----------
    features : the names of the features, in the order of the file. Without a header, they are
        `feature-1`, `feature-2`, ….
    places : the column of each feature, from 0.
    label, class_place : the name and the column of the class; None if the file has no class.
    count : the number of columns of a row, also those that are left out.
    header : whether the first line names the columns.
    delimiter : the sign between fields.
    """

    features: tuple[str, ...]
    places: tuple[int, ...]
    label: str | None
    class_place: int | None
    count: int
    header: bool
    delimiter: str


class Block(NamedTuple):
    """Some rows of a table: features, float64 (rows, features), NaN where a value is missing.

    `labels` are names of classes, object (rows,), an empty text where the class is missing.
    `lines`, int64 (rows,), are the lines of the file at which the rows begin, from 1.
    """

    features: np.ndarray
    labels: np.ndarray
    lines: np.ndarray


def columns(
    path: Path, header: Header, label: str | None = None, drop: Collection[str] = ()
) -> Columns:
    """Return the columns of a CSV or TSV file, plain or packed.

    `header: auto` takes the first line for a header if it has names in place of features, or the
    names in `label` and `drop`. A name is a text that is no number, truth value or missing value. A
    first line that may be a header or a sample is refused. A column without a name, and two columns
    with one name, are also refused, unless they are left out.

    Parameters
    ----------
    label : the column of the class; None for the last one that is not in `drop`.
    drop : columns to leave out.
    """
    line, fields, delimiter = _first_row(path)
    if len(fields) < 2:
        remedy = "separate columns by commas or tabs"
        raise InputError(path, fields[0], "has one column only", remedy)
    names = [field.strip() for field in fields]
    chosen = {*drop, *filter(None, [label])}
    if header == "auto" and chosen and chosen <= {*names}:
        header = "yes"
    texts = [name for name in names[:-1] if not _is_value(name)]
    numbers = list(filter(is_number, names[:-1]))
    if header == "auto" and texts and numbers:
        reason = f"may be a header or a sample: {numbers[0]} is a number, and {texts[0]} is none"
        raise InputError(path, f"line {line}", reason, "set header: yes or no, or correct the line")
    has_header = header == "yes" or (header == "auto" and bool(texts))
    if not has_header:
        names = [*(f"feature-{n}" for n in range(1, len(names))), "class"]
    if unknown := sorted(chosen - {*names}):
        remedy = f"name one of the columns {', '.join(names)}"
        raise InputError(path, unknown[0], "is not a column of the table", remedy)
    kept = {place: name for place, name in enumerate(names) if name not in drop}
    repeated = {name for name, count in Counter(kept.values()).items() if count > 1}
    for place, name in kept.items():
        if _UNNAMED.fullmatch(name):
            reason = "has no name, as a column of row numbers or behind a comma too many"
            remedy = f"leave it out (drop: [{name!r}], or --drop {name!r}; pandas: index=False, R: "
            remedy += "row.names=FALSE), or name it"
            raise InputError(path, f"line {line}, column {place + 1}", reason, remedy)
        if name in repeated:
            raise InputError(path, name, "names two columns", "give each column its own name")
    first, *_, last = kept.values() if len(kept) > 1 else (None, None)
    if last is None or label in drop:
        raise InputError("drop", [*drop], "leaves no feature and class", "keep two columns or more")
    if label is None and first.lower() in _CLASS and last.lower() not in _CLASS:
        reason = f"stands first, and the last column, {last}, would be the class"
        remedy = f"name the column of the class (label: {first}, or label: {last})"
        raise InputError(path, first, reason, remedy)
    class_place = names.index(label or last)
    places = tuple(place for place in kept if place != class_place)
    return Columns(
        tuple(names[place] for place in places), places, names[class_place], class_place,
        len(names), has_header, delimiter,
    )  # fmt: skip


def columns_like(path: Path, names: Sequence[str], label: str | None) -> Columns:
    """Return the columns of a file with features of these names, with or without a class.

    If the first line has all these names, features are read by name and other columns are left out.
    The class is the column `label`, or else a single column behind the features. A file without a
    header has the features in order, with or without the class behind them. Other files are
    refused.
    """
    line, fields, delimiter = _first_row(path)
    first = [field.strip() for field in fields]
    header = {*names} <= {*first}
    places = tuple(map(first.index, names)) if header else tuple(range(len(names)))
    in_order = len(first) - len(names) in (0, 1) and all(map(_is_value, first[: len(names)]))
    if not (header or in_order):
        missing = next(name for name in names if name not in first)
        reason = f"has no column {missing}, and the model reads {len(names)} features"
        remedy = "name the columns in the first line, as in the model's table; or, if that table "
        remedy += "had no names, give the features in order, with or without the class behind them"
        raise InputError(path, f"line {line}, {len(fields)} columns", reason, remedy)
    class_place = None
    if header and label in first:
        class_place = first.index(label)
    elif len(first) == len(names) + 1 and len(names) not in places:
        class_place = len(names)
    return Columns(tuple(names), places, label, class_place, len(fields), header, delimiter)


def blocks(path: Path, columns: Columns) -> Iterator[Block]:
    """Yield the rows of a CSV or TSV file, some at a time.

    A row with more or fewer columns than the first row, a feature that is not a finite number, and
    a NUL character are refused. The message gives the line.
    """
    rows, width = csv_rows(path, columns.delimiter), len(columns.features)
    if columns.header:
        next(rows)
    most = max(1, min(BLOCK_ROWS, BLOCK_NUMBERS // width))
    empty = True
    while True:
        features, labels, lines = np.empty((most, width)), [], []
        for line, fields in islice(rows, most):
            features[len(lines)] = _features(path, columns, line, fields)
            place = columns.class_place
            labels.append("" if place is None else class_name(fields[place]))
            lines.append(line)
        if not lines:
            break
        empty = False
        yield Block(features[: len(lines)], np.array(labels, object), np.array(lines, np.int64))
    if empty:
        raise _no_rows(path)


def sample(name: Literal["breast_cancer", "digits"]) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return a dataset that comes with scikit-learn.

    The result is features, float64 (rows, features); classes as text, object (rows,); and the
    features' names.
    """
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    labels = np.array([str(bunch.target_names[number]) for number in bunch.target], object)
    names = [str(feature).replace(" ", "-") for feature in bunch.feature_names]
    return bunch.data.astype(np.float64), labels, names


def _features(path: Path, columns: Columns, line: int, fields: list[str]) -> list[float]:
    """Return the numbers of a row, NaN where a value is missing; refuse a row as `blocks` does."""
    text = "".join(fields)
    if "\0" in text:
        place = next(n for n, field in enumerate(fields, start=1) if "\0" in field)
        raise InputError(path, f"line {line}, column {place}", *_NUL)
    if len(fields) != columns.count:
        reason = f"has {len(fields)} columns, and the first has {columns.count}"
        remedy = "give every row the same columns"
        if len(fields) > columns.count:
            remedy = "put fields that hold a delimiter into quotes, remove one at the end, and "
            remedy += "leave out names of rows (R: row.names=FALSE)"
        raise InputError(path, f"line {line}", reason, remedy)
    features = [fields[place] for place in columns.places]
    text = "".join(features)
    # Most other programs do not read digits of other scripts and 1_000, and `float` does.
    if text.isascii() and "_" not in text:
        try:
            numbers = list(map(float, features))
        except ValueError:
            numbers = [math.inf]
        # The sum is finite only if all numbers are finite.
        if math.isfinite(sum(numbers)) or not any(map(math.isinf, numbers)):
            return numbers
    numbers = []
    for name, place, value in zip(columns.features, columns.places, features, strict=True):
        try:
            numbers.append(number(value))
        except ValueError:
            where = f"line {line}, column {place + 1}, {name}"
            remedy = (
                "write 1.5 for 1,5, no signs between thousands, 1 and 0 for true and false, the "
                f"value of a formula, and nothing for a missing value; or leave it out: drop: "
                f"[{name}]; the class is the last column, or that of label"
            )
            reason = f"is not a finite number: {value[:40]!r}"
            raise InputError(path, where, reason, remedy) from None
    return numbers


def _is_value(field: str) -> bool:
    """Return whether a field is no name of a column.

    No name is a number, a truth value, a missing value, or a text without letters such as `5,3`.
    """
    text = field.strip().lower()
    known = is_number(field) or is_missing(field) or text in BOOLEANS
    return known or not any(map(str.isalpha, field))


def _first_row(path: Path) -> tuple[int, list[str], str]:
    """Return the line and the fields of the first row, and the delimiter.

    Refused are: a file as in `_rows`, a first row in which spaces separate fields or numbers have
    decimal commas, a comment, and a line that names the delimiter for a spreadsheet.
    """
    with open_text(path, newline="") as text:
        line = next((line.strip("\r\n") for line in text if line.strip()), None)
    if line is None:
        raise _no_rows(path)
    if "\0" in line:
        raise InputError(path, "first line", *_NUL)
    if line.lower().startswith("sep="):
        reason = "names the delimiter for a spreadsheet, and is not a row"
        raise InputError(path, line[:80], reason, "remove this line")
    try:
        sign = delimiter(path, line)
    except csv.Error as error:
        raise no_csv(path, 1, error) from error
    number, fields = next(csv_rows(path, sign))
    if len(fields) == 1 and line[0] in _COMMENTS:
        reason = "has one column only: it is a comment, or the head of another format such as ARFF"
        remedy = f"export the table as CSV, or remove the lines that begin with {line[0]}"
        raise InputError(path, line[:80], reason, remedy)
    remedy = "write commas or tabs between fields, and points in numbers (R: write.csv)"
    if len(fields) == 1 and " " in line.strip():
        reason = "has one column only: spaces separate its fields"
        raise InputError(path, line[:80], reason, remedy)
    # The last field may be the class.
    if any(_DECIMAL.fullmatch(field.strip()) for field in fields[:-1]):
        raise InputError(path, line[:80], "has numbers with decimal commas", remedy)
    return number, fields, sign


def _no_rows(path: Path) -> InputError:
    return InputError(path, None, "holds no rows", "give a CSV or TSV file with a row per sample")


def is_missing(text: str) -> bool:
    """Return whether a field stands for a missing value, regardless of case and spaces."""
    return text.strip().lower() in MISSING


def number(text: str) -> float:
    """Return the number in a field, or NaN for a missing value; another text is a ValueError.

    Spaces around the number, also spaces outside ASCII, do not count.
    """
    if is_missing(text):
        return math.nan
    text = text.strip()
    # Most other programs do not read these texts as numbers, and Python does.
    if "_" in text or not text.isascii() or math.isinf(float(text)):
        raise ValueError(text)
    return float(text)


def is_number(text: str) -> bool:
    """Return whether a field is a finite number."""
    try:
        return not math.isnan(number(text))
    except ValueError:
        return False


def numbers_rows(column: np.ndarray) -> bool:
    """Return whether a feature, float (rows,), numbers 10 or more rows, from 0 or 1."""
    if len(column) < _COUNTED or column[0] not in (0, 1) or column[1] != column[0] + 1:
        return False
    return bool((np.diff(column) == 1).all())


@lru_cache(maxsize=65_536)
def class_name(text: str) -> str:
    """Return the name of a class from its field, an empty text if it is missing.

    Equal numbers name one class: `1`, `1.0`, `01` and `1e0` become `1`. Truth values name one class
    in any case: `true` and `TRUE` become `True`. Texts that Unicode calls equal, such as two
    encodings of `é`, name one class.
    """
    text = unicodedata.normalize("NFC", text.strip())
    if is_missing(text):
        return ""
    if text.lower() in BOOLEANS:
        return text.capitalize()
    if not is_number(text):
        return text
    try:
        exact = Decimal(text)
    except InvalidOperation:
        return text
    if not exact:
        return "0"
    if len(exact.as_tuple().digits) > _DIGITS or abs(exact.adjusted()) > _DIGITS:
        return text
    return format(exact.normalize(_EXACT), "f")


def order_classes(classes: Iterable[str], origin: object) -> list[str]:
    """Return classes in numerical order if all are numbers, otherwise in alphabetical order.

    Fewer than two classes, and a text that cannot name a class, are refused. `origin` is the origin
    of the table, for messages.
    """
    distinct = set(classes)
    if len(distinct) < 2:
        reason = "fewer than two classes: there is nothing to distinguish"
        remedy = "give rows of two classes at least, where NA, none and the like stand for a "
        remedy += "missing class; the class is the last column, or that of label"
        raise InputError(origin, next(iter(distinct), None), reason, remedy)
    require_class_names(sorted(distinct), origin, "name the column of the class (label)")
    if all(map(is_number, distinct)):
        return sorted(distinct, key=lambda label: (float(label), label))
    return sorted(distinct)


def require_classes(counts: Mapping[str, int], origin: object) -> None:
    """Refuse classes that are measured numbers, or values that differ in most rows.

    `counts` are the rows of each class, and `origin` is the origin of the table, for messages.
    """
    of_one_row = sum(count == 1 for count in counts.values())
    are_numbers = all(map(is_number, counts))
    has_fractions = are_numbers and any("." in name for name in counts)
    is_quantity = has_fractions and len(counts) > _MOST_SINGLE
    if not (is_quantity or (of_one_row > _MOST_SINGLE and 2 * of_one_row > len(counts))):
        return
    what, remedy = "names of single rows", "name the column of the class (label)"
    if are_numbers:
        what = "numbers to predict (a regression)"
        remedy += ", or divide the numbers into a few classes; if they are names of classes, begin "
        remedy += "each with a letter"
    value = f"{len(counts)} different values in {sum(counts.values())} rows"
    raise InputError(origin, value, f"the column seems to hold {what}, and no class", remedy)
