"""From a folder of genomes to arrays: wrong files stop with one message that says what to do."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from escala.core.errors import InputError
from escala.data.genomes import arrays
from escala.data.genomes.acquire import acquire
from escala.data.genomes.prepare.fasta import encode_classes
from escala.experiment import Experiment
from tests.conftest import CLASSES
from tests.workflow.conftest import experiment_of


@pytest.fixture
def genomes(tmp_path: Path) -> Path:
    """A folder of good FASTA files, ten records of 400 letters for each class."""
    folder = tmp_path / "genomes"
    folder.mkdir()
    for name, letters in zip(CLASSES, ["A", "C", "G", "T", "AC"], strict=True):
        records = [f">{name}{i}\n{letters * (300 + i)}{'ACGT' * 25}\n" for i in range(10)]
        (folder / f"{name}.fasta").write_text("".join(records))
    return folder


def prepare(genomes: Path, folder: Path) -> None:
    """Do what the rules from `genomes` to `arrays` do, with the settings of a small experiment."""
    settings = experiment_of("small", {"type": "files", "folder": str(genomes)})
    dataset = Experiment(settings, folder / "experiment.yaml").datasets["small"]
    acquire(dataset["source"], CLASSES, folder / "sequences", folder / "lock.tsv")
    length, duplicates = dataset["length"], dataset["deduplicate"]
    encode_classes(folder / "sequences", CLASSES, length, duplicates, folder)
    preparation = dataset | {"provenance": "files"}
    inputs = {"codes": folder / "codes.npy"}
    arrays.prepare("small", preparation, 4, inputs, folder / "split4")


def missing(folder: Path) -> None:
    (folder / "MERS.fasta").unlink()


def empty(folder: Path) -> None:
    (folder / "MERS.fasta").write_text("")


def without_sequence(folder: Path) -> None:
    (folder / "MERS.fasta").write_text(">M1\nACGT\n>M2\n>M3\nACGT\n")


def protein(folder: Path) -> None:
    (folder / "MERS.fasta").write_text(">M1\nMKVLAAGLLALLAACEEF\n")


def truncated(folder: Path) -> None:
    text = (folder / "MERS.fasta").read_bytes()
    (folder / "MERS.fasta").unlink()
    (folder / "MERS.fasta.gz").write_bytes(gzip.compress(text)[:-20])


def one_record(folder: Path) -> None:
    (folder / "MERS.fasta").write_text(">M1\n" + "ACGT" * 100 + "\n")


def two_records(folder: Path) -> None:
    (folder / "MERS.fasta").write_text(f">M1\n{'ACGT' * 100}\n>M2\n{'AACC' * 100}\n")


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (missing, ["source.folder", "holds no file for the class MERS"]),
        (empty, ["MERS.fasta", "is empty"]),
        (without_sequence, ["MERS.fasta", "M2", "has no sequence"]),
        (protein, ["MERS.fasta", "M1", "not nucleotides", "as a protein does"]),
        (truncated, ["MERS.fasta.gz"]),
        (one_record, ["class MERS", "too few rows for test_fraction", "add records"]),
        (two_records, ["class MERS", "too few for SMOTEN", "oversample.neighbours"]),
    ],
)
def test_bad_genomes(genomes, tmp_path, spoil, words):
    spoil(genomes)
    with pytest.raises(InputError) as caught:
        prepare(genomes, tmp_path)
    message = str(caught.value)
    assert "Remedy: " in message and "\n" not in message
    assert all(word in message for word in words), message
    assert not (tmp_path / "split4" / "dataset.json").exists()
    assert not list(tmp_path.rglob(".*")), "nothing half-written is left behind"


def test_good_genomes_pass(genomes, tmp_path):
    prepare(genomes, tmp_path)
    assert (tmp_path / "split4" / "dataset.json").exists()
