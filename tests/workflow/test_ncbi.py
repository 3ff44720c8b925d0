"""Genomes from NCBI in a workflow: the rule, its files, and the lock it can be repeated from."""

from __future__ import annotations

import csv
import shutil

import pytest

from tests.conftest import CLASSES
from tests.eutils import Eutils, genomes, serving
from tests.workflow.conftest import Snakemake, experiment_of

TARGET = "results/fetched/data/small/lock.tsv"
KEY = "a-key-nobody-may-see"


@pytest.fixture
def ncbi(monkeypatch):
    with serving(Eutils({name: genomes(name[:2], 12) for name in CLASSES})) as server:
        monkeypatch.setenv("ESCALA_EUTILS_URL", server.url)
        monkeypatch.setenv("ESCALA_EUTILS_WAIT", "0")
        monkeypatch.setenv("NCBI_API_KEY", KEY)
        monkeypatch.setenv("MY_ADDRESS", "me@example.org")
        yield server


def experiment(**source: object) -> dict:
    named = {"type": "ncbi", "email": "$MY_ADDRESS", "queries": {c: c for c in CLASSES}}
    return experiment_of("fetched", named | source)


def test_a_workflow_fails_goes_on_and_is_repeated_from_its_lock(
    ncbi, snakemake: Snakemake, tmp_path
):
    ncbi.plan = {"fetch": ["429", None, None, "reset", None, *["503"] * 99]}
    failed = snakemake(TARGET, experiment=experiment(), fails=True)
    assert "HTTP 503" in failed.stdout + failed.stderr
    partial = tmp_path / "results/fetched/data/small/.partial"
    assert list(partial.iterdir())
    assert not (tmp_path / TARGET).exists()

    ncbi.plan, ncbi.requests = {}, []
    done = snakemake(TARGET)
    assert not partial.exists()
    verified = {name for name in ncbi.genomes["COVID"] if name not in ncbi.asked_for()}
    assert len(verified) == 12
    with open(tmp_path / TARGET) as handle:
        rows = list(csv.DictReader(handle, delimiter="\t"))
    assert [(row["class"], row["accession"]) for row in rows] == [
        (name, accession) for name in CLASSES for accession in sorted(ncbi.genomes[name])
    ]

    lock = tmp_path / "committed.tsv"
    shutil.copy(tmp_path / TARGET, lock)
    sequences = tmp_path / "results/fetched/data/small/sequences"
    before = {path.name: path.read_bytes() for path in sequences.iterdir()}
    shutil.rmtree(tmp_path / "results")
    for held in ncbi.genomes.values():
        held |= genomes("ZZ", 1)
    ncbi.requests.clear()
    again = snakemake(TARGET, experiment=experiment(lock="committed.tsv"))
    assert {request["kind"] for request in ncbi.requests} == {"fetch"}
    assert {path.name: path.read_bytes() for path in sequences.iterdir()} == before
    assert (tmp_path / TARGET).read_bytes() == lock.read_bytes()

    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "genomes.log" for path in written)
    assert not [path for path in written if KEY.encode() in path.read_bytes()]
    assert KEY not in "".join(r.stdout + r.stderr for r in (failed, done, again))
