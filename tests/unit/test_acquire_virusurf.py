"""Files exported from ViruSurf: an accession, then the whole sequence in one line."""

from __future__ import annotations

import csv
import gzip
import hashlib
import random
from pathlib import Path

import pytest
from Bio.SeqIO.FastaIO import SimpleFastaParser

from escala.core.errors import InputError
from escala.data.genomes.acquire import acquire


def exported(count: int, seed: int) -> dict[str, str]:
    """Return genomes as long as real ones, in accessions that GenBank, RefSeq and COG-UK give."""
    made = random.Random(seed)
    forms = ("MT{:06d}", "NC_{:06d}.2", "England/ALDP-{:05d}/2020")
    return {
        forms[number % 3].format(number): "".join(made.choices("ACGTN", k=29_000 + number))
        for number in range(count)
    }


def write(path: Path, records: dict[str, str], newline: str = "\n") -> None:
    text = "".join(
        f">{accession}{newline}{letters}{newline}" for accession, letters in records.items()
    )
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "wb") as handle:
        handle.write(text.encode())


def imported(folder: Path) -> dict[str, dict[str, str]]:
    source = {"type": "virusurf", "folder": str(folder)}
    acquire(source, ["COVID", "SARS"], folder.parent / "out", folder.parent / "lock.tsv")
    result = {}
    for name in ("COVID", "SARS"):
        with open(folder.parent / "out" / f"{name}.fasta") as handle:
            result[name] = dict(SimpleFastaParser(handle))
    return result


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("name", ["SARS.fasta", "SARS.fa.gz"])
def test_an_export_is_taken_whole_and_locked(tmp_path, newline, name):
    folder = tmp_path / "exports"
    folder.mkdir()
    covid, sars = exported(7, seed=1), exported(3, seed=2)
    write(folder / "COVID.fasta", covid)
    write(folder / name, sars, newline)
    assert imported(folder) == {"COVID": covid, "SARS": sars}
    with open(tmp_path / "lock.tsv", newline="") as handle:
        rows = list(csv.reader(handle, delimiter="\t"))[1:]
    assert rows == [
        [label, accession, str(len(letters)), hashlib.sha256(letters.encode()).hexdigest()]
        for label, held in (("COVID", covid), ("SARS", sars))
        for accession, letters in held.items()
    ]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text[: text.rindex(">") + 9], "line 5.*breaks the layout"),
        (lambda text: text.replace("\n", "\n\nACGT\n", 1), "line 4.*breaks the layout"),
        (lambda text: text + text, "two records have this accession"),
        (lambda text: "accession,host\n" + text, "is not FASTA"),
        (lambda text: "<html>Session expired</html>", "is not FASTA"),
        (lambda text: "", "is empty"),
    ],
    ids=["cut", "wrapped", "twice", "table", "page", "nothing"],
)
def test_an_export_that_is_not_whole_is_refused_by_name(tmp_path, change, reason):
    folder = tmp_path / "exports"
    folder.mkdir()
    write(folder / "COVID.fasta", exported(3, seed=1))
    write(folder / "SARS.fasta", exported(3, seed=2))
    spoilt = folder / "SARS.fasta"
    spoilt.write_text(change(spoilt.read_text()))
    with pytest.raises(InputError, match=reason) as refused:
        imported(folder)
    assert str(refused.value.where) == str(spoilt)
    assert len(str(refused.value)) < 1000, "no genome in a message"
    assert list(tmp_path.iterdir()) == [folder]
