"""The chain on real genomes, where ESCALA_GENOMES names them."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pandas as pd
import pytest
import yaml
from Bio import SeqIO

from escala.core.files import read_json
from tests.conftest import CLASSES, ROOT
from tests.workflow.conftest import run_snakemake

pytestmark = pytest.mark.real_data

RUN = "results/fewer/runs/genomes-1000/kmer-logreg/single/1x1/tuned/native/rep1/run.json"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A fit of experiments/virus/genomes.yaml, on fewer rows of each genome."""
    folder = tmp_path_factory.mktemp("genomes")
    experiment = yaml.safe_load((ROOT / "experiments" / "virus" / "genomes.yaml").read_text())
    [dataset] = experiment["datasets"].values()
    dataset["oversample"]["rows"] = dict.fromkeys(CLASSES, 500)
    done = run_snakemake(folder, RUN, experiment=experiment | {"experiment": "fewer"})
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_record_is_read_and_locked(trained):
    data = trained / "results" / "fewer" / "data" / "genomes-1000"
    lock = pd.read_csv(data / "lock.tsv", sep="\t", keep_default_na=False).set_index("accession")
    report = pd.read_csv(data / "classes.csv").set_index("class")
    for name in CLASSES:
        (path,) = Path(os.environ["ESCALA_GENOMES"]).glob(f"{name}.fa*")
        opener = gzip.open if path.suffix == ".gz" else open
        with opener(path, "rt") as handle:
            records = {record.id: len(record) for record in SeqIO.parse(handle, "fasta")}
        assert report.loc[name, "records"] == len(records)
        assert lock[lock["class"] == name]["length"].to_dict() == records


def test_classes_are_told_apart(trained):
    """One split of few rows proves little: this only shows that the letters reach the classes."""
    evaluation = read_json(trained / RUN)["evaluation"]
    assert evaluation["accuracy"] >= 0.95
    assert min(scores["recall"] for scores in evaluation["per_class"].values()) >= 0.7
