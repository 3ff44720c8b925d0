"""Wrong input stops the workflow before anything is trained, with one message that says what to do.

One of each way in which it is found; the other messages are those of unit tests.
"""

from __future__ import annotations

import pytest

from tests.conftest import CLASSES
from tests.workflow.conftest import SIMULATED, experiment_of

ARRAYS = "results/small/data/small/split4/dataset.json"


@pytest.mark.parametrize(
    ("folder", "protein", "words"),
    [
        ("genomes", "MERS", ["genomes/MERS.fasta", "M1", "not nucleotides", "as a protein does"]),
        ("genomes", None, ["datasets.small.source.folder", "holds no file for the class MERS"]),
        ("$NO_GENOMES", None, ["datasets.small.source.folder", "variable NO_GENOMES is not set"]),
    ],
    ids=["a job fails", "a file is missing", "a variable is not set"],
)
def test_bad_genomes(snakemake, tmp_path, folder, protein, words):
    genomes = tmp_path / "genomes"
    genomes.mkdir()
    for number, name in enumerate(CLASSES, 1):
        if name != "MERS":
            (genomes / f"{name}.fasta").write_text(f">{name}\n{'A' * number}{'ACGT' * 100}\n")
    if protein:
        (genomes / f"{protein}.fasta").write_text(">M1\nMKVLAAGLLALLAACEEF\n")
    # Snakemake runs in this folder.
    source = {"type": "files", "folder": folder}
    done = snakemake(ARRAYS, experiment=experiment_of("small", source), fails=True)
    said = done.stdout + done.stderr
    messages = [line for line in said.splitlines() if "Remedy: " in line]
    assert messages and all(word in messages[0] for word in words), said
    assert "Traceback" not in said
    assert not (tmp_path / ARRAYS).exists()
    assert not list(tmp_path.glob(".snakemake/locks/*")), "the next call may begin"
    hidden = {path.name for path in (tmp_path / "results").rglob(".*")}
    assert hidden <= {".snakemake_timestamp", ".escala"}, "nothing half-written is left behind"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"repeat": 3}, ["repeat: 3", "unknown key", "did you mean repeats?"]),
        (
            {
                "configurations": [{"strategy": "horovod-mpi", "layouts": ["1x64"]}],
                "oversubscribe": False,
            },
            ["1x64", "needs 64 cores", "oversubscribe: true"],
        ),
    ],
    ids=["unknown key", "too many processes"],
)
def test_bad_config(snakemake, tmp_path, change, words):
    done = snakemake(experiment=experiment_of("small", SIMULATED, **change), fails=True)
    said = done.stdout + done.stderr
    assert all(word in said for word in words), said
    assert not list(tmp_path.rglob("run.json"))
