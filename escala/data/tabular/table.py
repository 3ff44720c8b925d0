"""Tables of numbers with a class: CSV files, what their fields mean, and samples."""

import csv
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Context, Decimal, InvalidOperation
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from escala.core.errors import InputError
from escala.core.text import open_text
from escala.data.base import LONGEST_CLASS, require_class_names

#: Rows that are read at a time, and numbers in them at most.
BLOCK_ROWS, BLOCK_NUMBERS = 65_536, 2**24
#: Delimiters that users write in place of commas, by their names.
OTHER_DELIMITERS = {";": "semicolons", "\t": "tabs", "|": "bars", " ": "spaces"}
#: Names that pandas gives to columns without one.
_UNNAMED = re.compile(r"(?:Unnamed: \d+)?")
#: Names of a column that is the class, in small letters.
_CLASS = ("class", "label", "labels", "target")
#: What begins a line that is no row; `@` that of ARFF, the format of Weka.
_COMMENTS = "#%@"
_DECIMAL = re.compile(r"[+-]?\d+(?:[.,]\d+)?")
_NUL = "holds a NUL character", "give a text file, or remove the character"
#: What stands for a missing value, in small letters: words; what pandas, Stata and SAS, MySQL and C
#: write; and the errors of spreadsheets.
MISSING = frozenset(
    ["", "na", "n/a", "n.a.", "nan", "-nan", "null", "(null)", "<null>", "none", "nil", "?",
     "<na>", "#na", "#n/a", "#n/a n/a", ".", r"\n", "1.#qnan", "-1.#qnan", "1.#ind", "-1.#ind",
     "#div/0!", "#value!", "#ref!", "#num!", "#name?", "#null!"]
)  # fmt: skip
BOOLEANS = ("true", "false")
#: Digits of numbers that name classes. Longer ones stay as they are written.
_DIGITS = LONGEST_CLASS
_EXACT = Context(prec=_DIGITS)
#: More classes than this with one row each, or of numbers that are not whole, are no classes.
_MOST_SINGLE = 10
Header = Literal["auto", "yes", "no"]


@dataclass(frozen=True)
class Columns:
    """The columns of a table: the names of its features, in order, and whether a line holds them.

    Without a header they are `feature-1`, `feature-2`, …. `labelled` is whether a class stands
    behind the features.
    """

    features: tuple[str, ...]
    header: bool
    labelled: bool = True

    @property
    def count(self) -> int:
        """The columns of a row."""
        return len(self.features) + self.labelled


class Block(NamedTuple):
    """Some rows of a table: features, float64 (rows, features), NaN where a value is missing.

    `labels` are names of classes, object (rows,), an empty text where the class is missing; and
    `lines` those of the file at which the rows begin, counted from 1, int64 (rows,).
    """

    features: np.ndarray
    labels: np.ndarray
    lines: np.ndarray


def columns(path: Path, header: Header) -> Columns:
    """Return the columns of a CSV file, plain or packed, whose last one is the class.

    `header: auto` takes the first line for a header if it has names in place of features: texts
    that are no number, no truth value, and do not stand for a missing value. A first line that may
    be a header or a sample, and columns without a name of their own, are refused.
    """
    line, fields = _first_row(path)
    if len(fields) < 2:
        remedy = "separate columns by commas: features first, the class last"
        raise InputError(path, fields[0], "has one column only", remedy)
    names = [field.strip() for field in fields]
    texts = [name for name in names[:-1] if not _is_value(name)]
    numbers = list(filter(is_number, names[:-1]))
    if header == "auto" and texts and numbers:
        reason = f"may be a header or a sample: {numbers[0]} is a number, and {texts[0]} is none"
        raise InputError(path, f"line {line}", reason, "set header: yes or no, or correct the line")
    if header == "no" or (header == "auto" and not texts):
        return Columns(tuple(f"feature-{n}" for n in range(1, len(names))), False)
    repeated = {name for name, count in Counter(names).items() if count > 1}
    for place, name in enumerate(names, start=1):
        if _UNNAMED.fullmatch(name):
            reason = "has no name, as a column of row numbers or behind a comma too many"
            remedy = "leave it out (pandas: index=False, R: row.names=FALSE), or name it"
            raise InputError(path, f"line {line}, column {place}", reason, remedy)
        if name in repeated:
            raise InputError(path, name, "names two columns", "give each column its own name")
    if names[0].lower() in _CLASS and names[-1].lower() not in _CLASS:
        reason = f"stands first, and the last column, {names[-1]}, would be the class"
        remedy = "move the class into the last column, or rename it"
        raise InputError(path, names[0], reason, remedy)
    return Columns(tuple(names[:-1]), True)


def columns_like(path: Path, names: Sequence[str]) -> Columns:
    """Return the columns of a file with the features of another table, with or without a class.

    A file with fewer or more features, or with other names of them, is refused.
    """
    line, fields = _first_row(path)
    if len(fields) not in (len(names), len(names) + 1):
        reason = f"the model reads {len(names)} features"
        remedy = "give these features in their order, with or without the class behind them"
        raise InputError(path, f"line {line}, {len(fields)} columns", reason, remedy)
    first = [field.strip() for field in fields[: len(names)]]
    header = first == list(names) or not all(map(_is_value, first))
    if header and first != list(names):
        place = next(n for n, name in enumerate(names) if first[n] != name)
        reason = f"{first[place][:40]!r} is where the model reads {names[place]}"
        remedy = "put the columns in order, and leave out others, such as row numbers; and the "
        remedy += "line of names if the model's table had none"
        raise InputError(path, f"line {line}, column {place + 1}", reason, remedy)
    return Columns(tuple(names), header, labelled=len(fields) > len(names))


def blocks(path: Path, form: Columns) -> Iterator[Block]:
    """Yield the rows of a CSV file, some at a time.

    A row with more or fewer columns than the first, a feature that is not a finite number, and a
    NUL character are refused with the line.
    """
    rows, width = _rows(path), len(form.features)
    if form.header:
        next(rows)
    most = max(1, min(BLOCK_ROWS, BLOCK_NUMBERS // width))
    empty = True
    while True:
        features, labels, lines = np.empty((most, width)), [], []
        for line, fields in islice(rows, most):
            features[len(lines)] = _features(path, form, line, fields)
            labels.append(class_name(fields[-1]) if form.labelled else "")
            lines.append(line)
        if not lines:
            break
        empty = False
        yield Block(features[: len(lines)], np.array(labels, object), np.array(lines, np.int64))
    if empty:
        raise _no_rows(path)


def sample(name: Literal["breast_cancer", "digits"]) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return a data set that comes with scikit-learn.

    It is features, float64 (rows, features); classes as text, object (rows,); the features' names.
    """
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    labels = np.array([str(bunch.target_names[number]) for number in bunch.target], object)
    names = [str(feature).replace(" ", "-") for feature in bunch.feature_names]
    return bunch.data.astype(np.float64), labels, names


def _features(path: Path, form: Columns, line: int, fields: list[str]) -> list[float]:
    """Return the numbers of a row, NaN where a value is missing; refuse a row as `blocks` does."""
    text = "".join(fields)
    if "\0" in text:
        place = next(n for n, field in enumerate(fields, start=1) if "\0" in field)
        raise InputError(path, f"line {line}, column {place}", *_NUL)
    if len(fields) != form.count:
        reason = f"has {len(fields)} columns, and the first has {form.count}"
        remedy = "give every row the same columns"
        if len(fields) > form.count:
            remedy = "put fields that hold a comma into quotes, remove a comma at the end, and "
            remedy += "leave out names of rows (R: row.names=FALSE)"
        raise InputError(path, f"line {line}", reason, remedy)
    features = fields[: len(form.features)]
    # `float` reads these, and most other programs do not: digits of other scripts, and 1_000.
    if text.isascii() and "_" not in text:
        try:
            numbers = list(map(float, features))
        except ValueError:
            numbers = [math.inf]
        # The sum is finite if all are.
        if math.isfinite(sum(numbers)) or not any(map(math.isinf, numbers)):
            return numbers
    numbers = []
    for place, value in enumerate(features):
        try:
            numbers.append(number(value))
        except ValueError:
            where = f"line {line}, column {place + 1}, {form.features[place]}"
            remedy = (
                "write 1.5 for 1,5, no signs between thousands, 1 and 0 for true and false, the "
                "value of a formula, and nothing for a missing value; the class stands last"
            )
            reason = f"is not a finite number: {value[:40]!r}"
            raise InputError(path, where, reason, remedy) from None
    return numbers


def _is_value(field: str) -> bool:
    """Return whether a field is no name of a column.

    It is a number, a truth value, a missing one, or a text without letters such as `5,3` or `-`.
    """
    text = field.strip().lower()
    known = is_number(field) or is_missing(field) or text in BOOLEANS
    return known or not any(map(str.isalpha, field))


def _first_row(path: Path) -> tuple[int, list[str]]:
    """Return the line and the fields of the first row.

    It is refused as by `_rows`, and without commas, as a comment, and if it names the delimiter for
    a spreadsheet.
    """
    with open_text(path, newline="") as text:
        line = next((line.strip("\r\n") for line in text if line.strip()), None)
    if line is None:
        raise _no_rows(path)
    if "\0" in line:
        raise InputError(path, "first line", *_NUL)
    if line.lower().startswith("sep="):
        reason = "names the delimiter for a spreadsheet, and is not a row"
        raise InputError(path, line[:80], reason, "remove this line; commas are read")
    fields = {}
    for delimiter in (",", *OTHER_DELIMITERS):
        try:
            fields[delimiter] = next(csv.reader([line], delimiter=delimiter, skipinitialspace=True))
        except csv.Error as error:
            raise _no_csv(path, 1, error) from error
    is_one_column = len(fields[","]) == 1
    if is_one_column and line[0] in _COMMENTS:
        reason = "has one column only: it is a comment, or the head of another format such as ARFF"
        remedy = f"export the table as CSV, or remove the lines that begin with {line[0]}"
        raise InputError(path, line[:80], reason, remedy)
    for delimiter, name in OTHER_DELIMITERS.items():
        # The last field is the class.
        parts = [part.strip() for part in fields[delimiter][:-1]]
        numbers = [part for part in parts if not is_missing(part)]
        are_decimals = delimiter != " " and numbers and all(map(_DECIMAL.fullmatch, numbers))
        if parts and (is_one_column or are_decimals):
            reason = f"has one column only: {name} separate its fields"
            if any("," in part for part in numbers):
                reason += ", and numbers have decimal commas"
            remedy = "write commas between fields, and points in numbers (R: write.csv)"
            raise InputError(path, line[:80], reason, remedy)
    return next(_rows(path))


def _no_rows(path: Path) -> InputError:
    return InputError(path, None, "holds no rows", "give a CSV file with a row per sample")


def _rows(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the line at which each row begins, counted from 1, and its fields; skip blank lines.

    A file that cannot be read, is no text in UTF-8, or is no CSV is refused.
    """
    with open_text(path, newline="") as text:
        reader = csv.reader(text, skipinitialspace=True, strict=True)
        line = 1
        try:
            for fields in reader:
                if len(fields) > 1 or (fields and fields[0].strip()):
                    yield line, fields
                line = reader.line_num + 1
        except csv.Error as error:
            raise _no_csv(path, line, error) from error


def _no_csv(path: Path, line: int, error: csv.Error) -> InputError:
    reason = "a quote is not closed, is inside a field, or is followed by a space"
    if "limit" in str(error):
        reason = f"{error}, so a quote may not be closed"
    return InputError(path, f"line {line}", f"cannot be read as CSV: {reason}", "correct it")


def is_missing(text: str) -> bool:
    """Return whether a field stands for a missing value, whatever its case and spaces."""
    return text.strip().lower() in MISSING


def number(text: str) -> float:
    """Return the number of a field, NaN if it stands for a missing value; else a ValueError.

    Spaces around it, also those outside ASCII, do not count.
    """
    if is_missing(text):
        return math.nan
    text = text.strip()
    # Python reads these as numbers, and most other programs do not.
    if "_" in text or not text.isascii() or math.isinf(float(text)):
        raise ValueError(text)
    return float(text)


def is_number(text: str) -> bool:
    """Return whether a field is a finite number."""
    try:
        return not math.isnan(number(text))
    except ValueError:
        return False


@lru_cache(maxsize=65_536)
def class_name(text: str) -> str:
    """Return the name of a class from its field, an empty text if it is missing.

    Numbers that are equal name one class: `1` for `1`, `1.0`, `01` and `1e0`. So do truth values:
    `True` for `true` and `TRUE`; and texts that Unicode calls equal, such as both forms of `é`.
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
    """Return classes in the order of their values, if all are numbers, or of the alphabet.

    `origin` is the table's, for messages: about fewer than two classes, or what can name none.
    """
    distinct = set(classes)
    if len(distinct) < 2:
        reason = "fewer than two classes: there is nothing to tell apart"
        remedy = "give rows of two classes at least; the class is the last column, where NA, none "
        remedy += "and the like stand for a missing one"
        raise InputError(origin, next(iter(distinct), None), reason, remedy)
    require_class_names(sorted(distinct), origin, "put the class into the last column")
    if all(map(is_number, distinct)):
        return sorted(distinct, key=lambda label: (float(label), label))
    return sorted(distinct)


def require_classes(counts: Mapping[str, int], origin: object) -> None:
    """Refuse a last column that is a number to predict, or differs in most rows.

    `counts` are the rows of each class, and `origin` is the table's, for messages.
    """
    of_one_row = sum(count == 1 for count in counts.values())
    are_numbers = all(map(is_number, counts))
    has_fractions = are_numbers and any("." in name for name in counts)
    is_quantity = has_fractions and len(counts) > _MOST_SINGLE
    if not (is_quantity or (of_one_row > _MOST_SINGLE and 2 * of_one_row > len(counts))):
        return
    what, remedy = "names of single rows", "put the class into the last column"
    if are_numbers:
        what = "numbers to predict (a regression)"
        remedy = "put the class last, or divide the numbers into a few classes; if they are names "
        remedy += "of classes, begin each with a letter"
    value = f"{len(counts)} different values in {sum(counts.values())} rows"
    raise InputError(origin, value, f"the last column seems to hold {what}, and no class", remedy)
