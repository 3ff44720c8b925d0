"""Read text files of users: UTF-8, with or without a byte order mark, packed or not."""

from __future__ import annotations

import bz2
import codecs
import csv
import errno
import gzip
import lzma
import re
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

from escala.core.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

#: The usual endings of packed files. The first bytes of a file decide how it is read.
PACKED_ENDINGS = (".gz", ".bz2", ".xz")
PACKED = ((b"\x1f\x8b", gzip.open), (b"BZh", bz2.open), (b"\xfd7zXZ\x00", lzma.open))
#: The first bytes of archives that the user must unpack, with words for each.
ARCHIVES = (
    (b"PK\x03\x04", "a zip archive or a spreadsheet"),
    (b"\x28\xb5\x2f\xfd", "packed by Zstandard"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (b"Rar!", "a RAR archive"),
)
#: Where the format of tar has its magic bytes (POSIX.1-1988).
_TAR = slice(257, 262)
#: Byte order marks. UTF-32 comes first, because its mark begins with the mark of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32"),
    (codecs.BOM_UTF32_BE, "UTF-32"),
    (codecs.BOM_UTF16_LE, "UTF-16"),
    (codecs.BOM_UTF16_BE, "UTF-16"),
)
#: How many first bytes are examined, and the bytes that no text holds.
_HEAD = 512
_CONTROL = bytes([*range(9), *range(14, 27), *range(28, 32)])
#: Bytes that are letters in Windows' encoding, and control characters in Latin-1.
_WINDOWS = range(0x80, 0xA0)
#: The errors of unpacking a damaged file, and the numbers of errors of reading an open file. An
#: OSError of unpacking by bzip2 has no number.
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)
_READ_ERRORS = (None, errno.EIO, errno.ESTALE)

#: Reasons and remedies of the errors of `open`.
_REMEDIES = {
    FileNotFoundError: ("no such file", "name an existing file"),
    IsADirectoryError: ("is a directory", "name a file in it"),
    PermissionError: ("may not be read", "change its permissions"),
}


@contextmanager
def open_text(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """Yield the text of a file; a packed file is recognised by its first bytes.

    Parameters
    ----------
    newline : as in `open`.

    Raises
    ------
    InputError : the file is missing, may not be read, is damaged, or is no text in UTF-8. The error
        may arise while the block reads. The message names the line, and the encoding if it is
        recognised. Errors of other files in the block pass unchanged.
    """
    is_open = False
    try:
        with _content(path) as content:
            _require_text(path, content.peek(_HEAD)[:_HEAD])
            with TextIOWrapper(content, encoding="utf-8-sig", newline=newline) as text:
                is_open = True
                yield text
    except UnicodeDecodeError:
        if fault := _not_utf8(path):
            raise fault from None
        raise
    except (*DAMAGED, OSError) as error:
        if is_open and not (isinstance(error, DAMAGED) or error.errno in _READ_ERRORS):
            raise
        if isinstance(error, DAMAGED) or error.errno is None:
            reason, remedy = f"is packed, and damaged or truncated: {error}", "copy the file again"
        else:
            reason, remedy = _REMEDIES.get(
                type(error), (f"cannot be read: {error}", "correct what the reason names")
            )
        raise InputError(path, path.name or str(path), reason, remedy) from error


def delimiter(path: Path, line: str) -> str:
    """Return the sign between the fields of a table whose first row is `line`.

    It is a tab in files that end in `.tsv` or `.tab`. In other files, it is the tab, semicolon,
    comma or bar that gives the row most fields.
    """
    if re.search(r"\.(tsv|tab)(\.\w+)?$", path.name, re.IGNORECASE):
        return "\t"
    fields = {sign: next(csv.reader([line], delimiter=sign), ()) for sign in "\t;,|"}
    best = max(fields, key=lambda sign: len(fields[sign]))
    return best if len(fields[best]) > 1 else ","


def csv_rows(path: Path, sign: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line of each row, from 1, and the fields of the row; skip blank lines.

    Raises
    ------
    InputError : as `open_text`; or the file is no CSV, with the line.
    """
    with open_text(path, newline="") as text:
        reader = csv.reader(text, delimiter=sign, skipinitialspace=True, strict=True)
        line = 1
        try:
            for fields in reader:
                if len(fields) > 1 or (fields and fields[0].strip()):
                    yield line, fields
                line = reader.line_num + 1
        except csv.Error as error:
            raise no_csv(path, line, error) from error


def no_csv(path: Path, line: int, error: csv.Error) -> InputError:
    """Return the error on a file that is no CSV."""
    reason = "a quote is not closed, is inside a field, or is followed by a space"
    if "limit" in str(error):
        reason = f"{error}, so a quote may not be closed"
    return InputError(path, f"line {line}", f"cannot be read as CSV: {reason}", "correct it")


def read_table(path: Path, header: bool = True) -> pd.DataFrame:
    """Return a CSV or TSV file as text without spaces around it; a missing field is empty.

    `header` is whether the first line names the columns; their names are numbers if it does not.

    Raises
    ------
    InputError : as `open_text`; or the file is no such table.
    """
    import pandas as pd

    with open_text(path, newline="") as text:
        sign = delimiter(path, text.readline())
        if sign != "\t":
            deque(csv_rows(path, sign), 0)  # Refuses quotes that pandas would pair otherwise.
        text.seek(0)
        try:
            # A spreadsheet may end lines with a delimiter, and pandas would then take the first
            # column for an index.
            table = pd.read_csv(
                text, sep=sign, header=0 if header else None, index_col=False, dtype=str,
                keep_default_na=False, skipinitialspace=True,
                # In a line with tabs a quote is a character: there, one may stand alone.
                quoting=csv.QUOTE_NONE if sign == "\t" else csv.QUOTE_MINIMAL,
            )  # fmt: skip
        except (pd.errors.ParserError, pd.errors.EmptyDataError) as error:
            reason = f"is not a CSV or TSV file ({str(error).strip()})"
            remedy = "give a line of names, and as many fields in each line below"
            raise InputError(path, path.name, reason, remedy) from None
    table = table.fillna("").apply(lambda column: column.str.strip())
    return table.replace(r'^"(.*)"$', r"\1", regex=True) if sign == "\t" else table


def read_text(path: Path) -> str:
    """Return the text of a file.

    Raises
    ------
    InputError : as `open_text`.
    """
    with open_text(path) as text:
        return text.read()


@contextmanager
def _content(path: Path) -> Iterator[BinaryIO]:
    """Yield the bytes of a file, unpacked."""
    with ExitStack() as files:
        file = files.enter_context(open(path, "rb"))
        begin = file.peek(_HEAD)
        for magic, unpack in PACKED:
            if begin.startswith(magic):
                file = files.enter_context(unpack(file))
        yield file


def _require_text(path: Path, head: bytes) -> None:
    """Refuse a file if its first bytes show another encoding or format."""
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            raise _wrong_encoding(path, "line 1", encoding)
    for magic, name in ARCHIVES:
        if head.startswith(magic):
            raise InputError(path, path.name, f"is {name}, and not text", "unpack or export it")
    if head[_TAR] == b"ustar":
        raise InputError(path, path.name, "is a tar archive, and not text", "unpack it")
    # Text in UTF-16 without a mark has NUL in most even bytes and no odd ones, or the reverse.
    for empty, full in ((head[::2], head[1::2]), (head[1::2], head[::2])):
        if len(full) > 1 and all(full) and 2 * empty.count(0) > len(empty):
            raise _wrong_encoding(path, "line 1", "UTF-16")


def _wrong_encoding(path: Path, place: str, encoding: str, why: str = "") -> InputError:
    return InputError(
        path,
        place,
        f"is not text in UTF-8 but in {encoding}{why}",
        f"write it in UTF-8: iconv -f {encoding} -t UTF-8 {path.name} > NEW",
    )


def _not_utf8(path: Path) -> InputError | None:
    """Return the error for a file that is not in UTF-8, with the first wrong line; else None."""
    number = 0
    with _content(path) as content:
        head = content.peek(_HEAD)[:_HEAD]
        for line in content:
            number += 1
            try:
                line.decode()
            except UnicodeDecodeError as error:
                before, wrong = line[: error.start].decode(), line[error.start]
                break
        else:
            return None
    place = f"line {number}, column {len(before) + 1}"
    if (head + line).translate(None, _CONTROL) != head + line:
        reason = f"is not text in UTF-8: it holds the byte {wrong:02X}, and control characters"
        return InputError(path, place, reason, "give a text file, or copy it again if it was one")
    encoding = "WINDOWS-1252" if any(byte in _WINDOWS for byte in line) else "LATIN1"
    letter = bytes([wrong]).decode("cp1252", "replace")
    return _wrong_encoding(
        path, place, encoding, f", it seems: the byte {wrong:02X} is {letter} there"
    )
