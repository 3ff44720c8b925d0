"""The lock file: what it says is what is there, and whatever else is there is told."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from escala.core.errors import InputError
from escala.data.genomes.acquire import acquire, inputs
from escala.data.genomes.acquire.files import read_lock

HEAD = "class\taccession\tlength\tsha256\n"
DIGEST = hashlib.sha256(b"ACGT").hexdigest()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is not the head of a lock file"),
        ("class,accession,length,sha256\n", "is not the head of a lock file"),
        (HEAD, "the class has no row"),
        (f"{HEAD}Y\tA1\t4\t{DIGEST}\n", "the class has no row"),
        (f"{HEAD}X\tA1\t4\t{DIGEST}\nX\tA1\t4\t{DIGEST}\n", "'A1': is twice"),
        (f"{HEAD}X\tA1\t4\n", "'line 2': is not class, accession"),
        (f"{HEAD}X\t\t4\t{DIGEST}\n", "'line 2': is not class, accession"),
        (f"{HEAD}X\tA1\tfour\t{DIGEST}\n", "'line 2': is not class, accession"),
        (f"{HEAD}X\tA1\t4\t{DIGEST[1:]}\n", "'line 2': is not class, accession"),
    ],
)
def test_what_is_no_lock_file_is_refused(tmp_path, text, reason):
    path = tmp_path / "lock.tsv"
    path.write_text(text)
    with pytest.raises(InputError, match=reason):
        read_lock(path, ["X"])


@pytest.mark.parametrize(
    ("encoding", "reason"),
    [("utf-8-sig", None), ("utf-16", "'line 1'.*UTF-16"), ("latin1", "'line 3, column 2'.*LATIN1")],
)
def test_a_lock_of_another_editor_is_read_or_its_encoding_is_named(tmp_path, encoding, reason):
    path = tmp_path / "lock.tsv"
    path.write_bytes(f"{HEAD}X\tA1\t4\t{DIGEST}\nY\xe9\tA2\t4\t{DIGEST}\n".encode(encoding))
    if reason is None:
        assert [row.accession for row in read_lock(path, ["X"])["X"]] == ["A1"]
        return
    with pytest.raises(InputError, match=reason):
        read_lock(path, ["X"])


@pytest.fixture
def genomes(tmp_path: Path) -> Path:
    folder = tmp_path / "genomes"
    folder.mkdir()
    (folder / "X.fasta").write_text(">A1 first\nACGT\n>A2\nacgtn\n")
    return folder


def test_files_must_be_those_of_the_lock(genomes, monkeypatch):
    monkeypatch.setenv("MY_LOCKS", str(genomes.parent))
    source = {"type": "files", "folder": str(genomes)}
    output, lock = genomes.parent / "out", genomes.parent / "kept.tsv"
    acquire(source, ["X"], output, lock)
    source["lock"] = "$MY_LOCKS/kept.tsv"
    assert inputs(source, ["X"]) == [genomes / "X.fasta", lock]
    acquire(source, ["X"], output, genomes.parent / "lock.tsv")
    assert (genomes.parent / "lock.tsv").read_bytes() == lock.read_bytes()
    before = (output / "X.fasta").read_bytes()
    for text, reason in (
        (">A1 first\nACGA\n>A2\nacgtn\n", "A1: of another length or digest"),
        (">A1 first\nACGT\n", "A2: missing"),
        (">A1 first\nACGT\n>A2\nacgtn\n>A3\nACGT\n", "A3: not in the lock"),
        (">A2\nacgtn\n>A1 first\nACGT\n", "'A1': A2 is in its place"),
    ):
        (genomes / "X.fasta").write_text(text)
        with pytest.raises(InputError, match=reason):
            acquire(source, ["X"], output, genomes.parent / "lock.tsv")
        assert (output / "X.fasta").read_bytes() == before


def test_a_lock_holds_no_sequence(genomes):
    (genomes / "X.fasta").write_text(">A1 a description\nACGTTGCAACGT\n")
    lock = genomes.parent / "lock.tsv"
    acquire({"type": "files", "folder": str(genomes)}, ["X"], genomes.parent / "out", lock)
    assert lock.read_text() == HEAD + "\t".join(
        ["X", "A1", "12", hashlib.sha256(b"ACGTTGCAACGT").hexdigest() + "\n"]
    )
