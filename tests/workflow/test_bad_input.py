"""Wrong input stops before anything is trained, with one message that says what to do."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from tests.conftest import CLASSES
from tests.workflow.conftest import SIMULATED, experiment_of

ARRAYS = "results/small/data/small/split4/dataset.json"


@pytest.fixture
def genomes(tmp_path: Path) -> Path:
    """A folder of good FASTA files, ten records of 400 letters for each class."""
    folder = tmp_path / "genomes"
    folder.mkdir()
    for name, letters in zip(CLASSES, ["A", "C", "G", "T", "AC"], strict=True):
        records = [f">{name}{i}\n{letters * (300 + i)}{'ACGT' * 25}\n" for i in range(10)]
        (folder / f"{name}.fasta").write_text("".join(records))
    return folder


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
        (missing, ["datasets.small.source.folder", "holds no file for the class MERS"]),
        (empty, ["MERS.fasta", "is empty"]),
        (without_sequence, ["MERS.fasta", "M2", "has no sequence"]),
        (protein, ["MERS.fasta", "M1", "not nucleotides", "as a protein's"]),
        (truncated, ["MERS.fasta.gz"]),
        (one_record, ["class MERS", "too few for a split", "add records"]),
        (two_records, ["class MERS", "too few for SMOTEN", "oversample.neighbours"]),
    ],
)
def test_bad_genomes(snakemake, tmp_path, genomes, spoil, words):
    spoil(genomes)
    source = {"type": "files", "folder": str(genomes)}
    done = snakemake(ARRAYS, experiment=experiment_of("small", source))
    said = done.stdout + done.stderr
    assert done.returncode != 0
    messages = [line for line in said.splitlines() if "Remedy: " in line]
    assert messages and all(word in messages[0] for word in words), said
    print(messages[0])
    assert "Traceback (most recent call last)" not in said
    assert not (tmp_path / ARRAYS).exists()
    hidden = {path.name for path in (tmp_path / "results").rglob(".*")}
    assert hidden <= {".snakemake_timestamp"}, "nothing half-written is left behind"


def test_good_genomes_pass(snakemake, tmp_path, genomes):
    source = {"type": "files", "folder": str(genomes)}
    done = snakemake(ARRAYS, experiment=experiment_of("small", source))
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / ARRAYS).exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"repeat": 3}, ["repeat: 3", "unknown key", "did you mean repeats?"]),
        (
            {"configurations": [{"strategy": "horovod-mpi", "layouts": ["1x64"]}]},
            ["1x64", "needs 64 cores", "oversubscribe: true"],
        ),
        (
            {"configurations": [{"strategy": "horovod-mpi", "layouts": ["2x1"]}]},
            ["2x1", "more than one node", "1xN"],
        ),
        (
            {"dataset": {"classes": ["COVID"]}},
            ["datasets.small.classes", "one class only", "at least two"],
        ),
        (
            {"dataset": {"source": {"type": "files", "folder": "/nowhere"}}},
            ["source.folder", "/nowhere", "Remedy"],
        ),
    ],
    ids=["unknown key", "too many processes", "too many nodes", "one class", "no folder"],
)
def test_bad_config(snakemake, tmp_path, change, words):
    done = snakemake(experiment=experiment_of("small", SIMULATED, **change))
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert all(word in said for word in words), said
    print(next(line for line in said.splitlines() if words[0] in line))
    assert not list(tmp_path.rglob("run.json"))
