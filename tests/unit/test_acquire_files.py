"""Genomes from the user's folders: every permitted form is read, all else refused with a reason."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escala.core.errors import InputError
from escala.data import nucleotides as fasta
from escala.data.genomes.acquire import acquire
from escala.data.nucleotides import nucleotides, records, write_record
from escala.data.paths import expanded

TWO_LINES = b">A1 first\nACGT\n>A2\nacgtn\n"


@pytest.fixture
def genomes(tmp_path: Path) -> Path:
    folder = tmp_path / "genomes"
    folder.mkdir()
    (folder / "X.fasta").write_bytes(TWO_LINES)
    (folder / "Y.fa").write_bytes(b">B1\nAC\nGT\n")
    return folder


def taken(genomes: Path, classes: tuple[str, ...] = ("X", "Y")) -> Path:
    output = genomes.parent / "sequences"
    source = {"type": "files", "folder": str(genomes)}
    acquire(source, list(classes), output, genomes.parent / "lock.tsv")
    return output


@pytest.mark.parametrize(
    ("suffix", "packed"),
    [
        *((suffix, bytes) for suffix in (".fasta", ".fa", ".fna", ".fas", ".ffn")),
        *((".fa.gz", gzip.compress), (".FASTA.bz2", bz2.compress), (".Fsa.XZ", lzma.compress)),
    ],
)
def test_every_permitted_name_is_read(genomes, suffix, packed):
    (genomes / "X.fasta").unlink()
    (genomes / "._X.fasta").write_bytes(b"\0\5\x16\7Mac OS X")
    (genomes / f"X{suffix}").write_bytes(packed(TWO_LINES))
    output = taken(genomes, ("X",))
    assert [path.name for path in output.iterdir()] == ["X.fasta"]
    assert list(records(output / "X.fasta")) == [("A1 first", "ACGT"), ("A2", "acgtn")]


def test_the_folder_may_be_named_by_a_variable(genomes, monkeypatch):
    monkeypatch.setenv("SOME_GENOMES", str(genomes.parent))
    source = {"type": "files", "folder": "${SOME_GENOMES}/genomes"}
    acquire(source, ["X"], genomes.parent / "out", genomes.parent / "lock.tsv")
    assert expanded("$SOME_GENOMES/a$$b", "key") == f"{genomes.parent}/a$b"
    monkeypatch.setenv("NO_GENOMES", "")
    with pytest.raises(InputError, match=r"source\.folder.*NO_GENOMES is not set"):
        taken(Path("$NO_GENOMES"))


def test_a_class_without_a_file_or_with_several_is_refused(genomes):
    with pytest.raises(InputError, match="holds no file for the class Z"):
        taken(genomes, classes=("X", "Z"))
    (genomes / "X.fna.gz").write_bytes(gzip.compress(TWO_LINES))
    with pytest.raises(InputError, match=r"X\.fasta.*X\.fna\.gz.*several files for the class X"):
        taken(genomes)


PACKED = gzip.compress(b"".join(b">A%d\nACGT\n" % n for n in range(99)), mtime=0)


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("X.fasta", b"\n \n", "is empty"),
        ("X.fa.gz", gzip.compress(b"", mtime=0), "is empty"),
        ("X.fasta", b"accession,sequence\nA1,ACGT\n>A2\nACGT\n", "is not FASTA"),
        ("X.fa.gz", PACKED[:-20], "packed, and damaged or truncated"),
        ("X.fa.gz", PACKED[:-8] + b"\0\0\0\0" + PACKED[-4:], "packed, and damaged or truncated"),
        ("X.fasta", TWO_LINES + b">A1\nACGT\n", "two records have this accession\\. Remedy"),
        ("X.fasta", TWO_LINES + b">A1 again\nACGT\n", "which ends at the first space: >A1 again"),
        ("X.fasta", TWO_LINES + b">A3\n--..-\n", "holds gaps only"),
        ("X.fasta", TWO_LINES + b"> \nACGT\n", "record 3 has no accession"),
        ("X.fasta", TWO_LINES + b">=cmd|x!A1\nACGT\n", "begins with =: a spreadsheet"),
        ("X.fasta", TWO_LINES + b">+1 a\nACGT\n", "begins with \\+: a spreadsheet"),
        ("X.fasta", TWO_LINES + b">P1\nMKVLAAGLLALLAACEEF\n", "not nucleotides"),
        ("X.fasta", TWO_LINES + b">A3\n", "the record has no sequence"),
    ],
)
def test_a_bad_file_is_refused_by_name_and_nothing_is_left(genomes, name, data, reason):
    (genomes / "X.fasta").unlink()
    (genomes / name).write_bytes(data)
    with pytest.raises(InputError, match=reason) as refused:
        taken(genomes, ("X",))
    assert str(refused.value.where) == str(genomes / name)
    assert list(genomes.parent.iterdir()) == [genomes]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (lambda: b">A1\n" + b"A" * 10_000_000, "'record 1': has more than 200,000 letters"),
        (lambda: b">A1\nACGT\n>A2" + b"A" * 10_000_000, "'record 2': has more than 200,000 le"),
        (lambda: b">A1\n" + b"ACGT\n" * 50_000, "'record 1': has more than 200,000 letters"),
        (lambda: b"".join(b">A%d\nAC\n" % n for n in range(5000)), "1001': is one more than the"),
    ],
    ids=["line", "header", "lines", "records"],
)
def test_a_bomb_is_refused_before_it_fills_the_memory(genomes, monkeypatch, content, reason):
    monkeypatch.setattr(fasta, "RECORD_LETTERS", 200_000)
    monkeypatch.setattr(fasta, "FILE_RECORDS", 1000)
    path = genomes / "X.fa.gz"
    path.write_bytes(gzip.compress(content(), 1))
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=reason):
            list(records(path))
        assert tracemalloc.get_traced_memory()[1] < 20 * fasta.RECORD_LETTERS
    finally:
        tracemalloc.stop()


words = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1).filter(
    lambda word: word[0] not in "=+-@＝＋－＠"
)


@given(
    genomes=st.dictionaries(words, st.text("ACGTNacgtn", max_size=200), min_size=1, max_size=5),
    newline=st.sampled_from(["\n", "\r\n"]),
    mark=st.booleans(),
)
def test_what_is_written_is_read_back(tmp_path_factory, genomes, newline, mark):
    text = io.StringIO()
    for accession, sequence in genomes.items():
        write_record(text, accession, sequence)
    path = tmp_path_factory.mktemp("fasta") / "any.fasta"
    encoding = "utf-8-sig" if mark else "utf-8"
    path.write_bytes(text.getvalue().replace("\n", newline).encode(encoding))
    assert list(records(path)) == list(genomes.items())


def test_gaps_of_an_alignment_are_no_letters_and_are_said(genomes, capsys):
    aligned = b">A1\n--ACGT..\n>A2\nAC--GTT-\n"
    (genomes / "X.fasta").write_bytes(aligned)
    taken(genomes, ("X",))
    assert "its 7 gaps, as of an alignment, are no letters" in capsys.readouterr().err
    plain = list(nucleotides(records(genomes / "X.fasta"), genomes / "X.fasta"))
    assert plain == [("A1", b"ACGT"), ("A2", b"ACGTT")]
