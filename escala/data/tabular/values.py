"""What the fields of a table mean: numbers, missing values, and names of classes."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable, Mapping
from decimal import Context, Decimal, InvalidOperation
from functools import lru_cache

from escala.core.errors import InputError
from escala.data.base import LONGEST_CLASS, require_class_names

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


def ordered(classes: Iterable[str], origin: object) -> list[str]:
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
    single = sum(count == 1 for count in counts.values())
    numbers = all(map(is_number, counts))
    measured = numbers and len(counts) > _MOST_SINGLE and any("." in name for name in counts)
    if not (measured or (single > _MOST_SINGLE and 2 * single > len(counts))):
        return
    what, remedy = "names of single rows", "put the class into the last column"
    if numbers:
        what = "numbers to predict (a regression)"
        remedy = "put the class last, or divide the numbers into a few classes; if they are names "
        remedy += "of classes, begin each with a letter"
    value = f"{len(counts)} different values in {sum(counts.values())} rows"
    raise InputError(origin, value, f"the last column seems to hold {what}, and no class", remedy)
