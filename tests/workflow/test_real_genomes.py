"""The chain on real genomes, where ESCALA_GENOMES names them."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml
from Bio import SeqIO

from escala.core.files import read_json
from escala.data import KINDS
from escala.predict.classify import judge, predict, read
from tests.conftest import CLASSES, ROOT
from tests.workflow.conftest import run_snakemake

pytestmark = pytest.mark.real_data

FOLDER = "results/fewer/data/genomes-1000"
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


def test_held_out_genomes_are_familiar_and_pieces_of_them_are_flagged_or_right(trained):
    """The model reads beginnings, so it cannot know pieces from anywhere, on either strand."""
    errors = RUN.replace("run.json", "length_errors.json")
    done = run_snakemake(trained, errors)
    assert done.returncode == 0, done.stdout + done.stderr
    split = trained / FOLDER / "split1"
    records = pd.read_csv(trained / FOLDER / "records.tsv", sep="\t", keep_default_na=False)
    held_out = np.load(split / "test_genomes.npy")
    selected = records.loc[np.unique(held_out), ["class", "accession"]].set_index("accession")[
        "class"
    ]
    random = np.random.default_rng(7)
    with open(trained / "pieces.fasta", "w") as fasta:
        for name in CLASSES:
            for record in SeqIO.parse(trained / FOLDER / f"sequences/{name}.fasta", "fasta"):
                if selected.get(record.id) != name:
                    continue
                fasta.write(f">whole_{name}_{record.id}\n{record.seq}\n")
                for length in (100, 150, 300, 500, 1000):
                    first = random.integers(len(record) - length + 1)
                    piece = record.seq[first : first + length]
                    piece = piece.reverse_complement() if random.integers(2) else piece
                    fasta.write(f">{length}_{name}_{record.id}\n{piece}\n")
    table = predict(
        KINDS["genomes"],
        trained / "pieces.fasta",
        (trained / RUN).parent,
        split / "familiarity.npz",
        0.05,
        trained / "pieces.tsv",
        judge(read(trained / errors), 0.02),
    )
    names = table["accession"].str.split("_", n=2, expand=True)
    whole, right = names[0] == "whole", table["predicted"] == names[1]
    flagged = table["unlike_anything_seen"] | table["too_short"]
    assert (~flagged)[whole].mean() > 0.9 and right[whole & ~flagged].all()
    assert (table["likeness"] == "far")[~whole].mean() > 0.9
    assert (~right & ~flagged).mean() < 0.01
    assert (~right[~whole]).mean() > 0.5, "without a flag, most would be wrong"
