"""Text files of users: each encoding is read, or named with its line."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile

import pytest

from escala.core.errors import InputError
from escala.core.text import opened, read_text

TEXT = "one\ntwo – three\n"


#: Without the time of the packing, which would be in the names of tests.
PACKED = gzip.compress(TEXT.encode() * 99, mtime=0)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
@pytest.mark.parametrize("packed", [bytes, gzip.compress, bz2.compress, lzma.compress])
@pytest.mark.parametrize("name", ["t.txt", "t.txt.gz"])
def test_a_file_is_what_its_first_bytes_say(tmp_path, encoding, packed, name):
    (tmp_path / name).write_bytes(packed(TEXT.encode(encoding)))
    assert read_text(tmp_path / name) == TEXT


def test_lines_end_as_the_file_has_them_or_in_a_line_feed(tmp_path):
    path = tmp_path / "t"
    path.write_bytes(b"a\r\nb\rc\n")
    assert read_text(path) == "a\nb\nc\n"
    with opened(path, newline="") as text:
        assert text.read() == "a\r\nb\rc\n"
    path.write_bytes(b"")
    assert read_text(path) == ""


def zipped(content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("t.txt", content)
    return file.getvalue()


def tarred(content: bytes) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        member = tarfile.TarInfo("t.txt")
        member.size = len(content)
        archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def damaged(packed: bytes) -> bytes:
    return packed[:20] + bytes(byte ^ 0xFF for byte in packed[20:])


@pytest.mark.parametrize(
    ("content", "value", "reason", "remedy"),
    [
        (TEXT.encode("utf-16"), "line 1", "but in UTF-16", "iconv -f UTF-16 -t UTF-8 t.txt"),
        (TEXT.encode("utf-16-le"), "line 1", "but in UTF-16", "iconv"),
        (TEXT.encode("utf-16-be"), "line 1", "but in UTF-16", "iconv"),
        (TEXT.encode("utf-32"), "line 1", "but in UTF-32", "iconv -f UTF-32"),
        (gzip.compress(TEXT.encode("utf-16"), mtime=0), "line 1", "but in UTF-16", "iconv"),
        ("one\ntwo\nfür\n".encode("latin1"), "line 3, column 2", "LATIN1, it seems: the byte FC is",
         "iconv -f LATIN1"),
        (TEXT.encode("cp1252"), "line 2, column 5", "WINDOWS-1252, it seems: the byte 96 is –",
         "iconv -f WINDOWS-1252"),
        ("é\n".encode() + b"\xe9\n", "line 2, column 1", "the byte E9 is é", "iconv"),
        (("a" * 99 + "\n").encode() * 999 + b"\xe9", "line 1000, column 1", "E9", "iconv"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0", "line 1, column 1", "the byte 89", "a text file"),
        (zipped(b"x"), "t.txt", "is a zip archive or a spreadsheet", "unpack"),
        (tarred(b"x"), "t.txt", "is a tar archive", "unpack"),
        (b"\x28\xb5\x2f\xfd\x04\0", "t.txt", "is packed by Zstandard", "unpack"),
        (PACKED[:-9], "t.txt", "damaged or truncated", "copy"),
        (lzma.compress(TEXT.encode() * 99)[:-9], "t.txt", "damaged or truncated", "copy"),
        (bz2.compress(TEXT.encode() * 99)[:-9], "t.txt", "damaged or truncated", "copy"),
        (damaged(bz2.compress(TEXT.encode() * 99)), "t.txt", "damaged or truncated", "copy"),
        (damaged(lzma.compress(TEXT.encode() * 99)), "t.txt", "damaged or truncated", "copy"),
        (damaged(PACKED), "t.txt", "damaged or truncated", "copy"),
    ],
    # Packed content has the time in it, and the name of a test must not.
    ids=lambda value: "" if isinstance(value, bytes) else value,
)  # fmt: skip
def test_what_is_no_text_in_utf_8_is_refused_with_its_line_and_a_remedy(
    tmp_path, content, value, reason, remedy
):
    path = tmp_path / "t.txt"
    path.write_bytes(content)
    with pytest.raises(InputError) as refused:
        read_text(path)
    assert (refused.value.where, refused.value.value) == (path, value)
    assert reason in refused.value.reason and remedy in refused.value.remedy


@pytest.mark.parametrize(("name", "reason"), [("none", "no such file"), (".", "is a directory")])
def test_what_is_no_file_is_refused(tmp_path, name, reason):
    with pytest.raises(InputError, match=reason):
        read_text(tmp_path / name)
