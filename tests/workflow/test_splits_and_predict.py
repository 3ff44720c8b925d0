"""Splits that keep relatives together, and a user's sequences classified, by the real workflow."""

from __future__ import annotations

import json
import re

import numpy as np
import pandas as pd

from escala.predict.targets import RULES as PREDICTING
from tests.conftest import CLASSES
from tests.workflow.conftest import experiment_of

FAMILIES = {
    "type": "simulated",
    "seed": 1,
    "difficulty": 0.2,
    "records": dict.fromkeys(CLASSES, 30),
}
RULES = ("codes", "clusters", "arrays", "train", "leakage", "page")
CELL = "kmer-logreg/single/1x1/tuned/native/rep1"


def fits_only(workloads: dict, **datasets: dict) -> dict:
    experiment = experiment_of("small", FAMILIES)
    base = experiment["datasets"]["small"] | {"oversample": {"method": "none"}}
    experiment["datasets"] = {name: base | changes for name, changes in datasets.items()}
    experiment["configurations"] = experiment["configurations"][:1]
    experiment["workloads"] = workloads
    return experiment


def test_cluster_and_lineage_splits_keep_relatives_together(snakemake, dry_run, tmp_path):
    lineages = {"by": "group-file", "seeds": [4]}
    experiment = fits_only(
        {"majority": {}},
        cluster={"split": {"by": "cluster", "seeds": [4]}, "similarity": 0.6},
        lineage={"split": lineages, "similarity": 0.6},
    )
    snakemake("results/small/tables/leakage.csv", experiment=experiment)
    results = tmp_path / "results/small"
    for name in ("cluster", "lineage"):
        folder = results / f"data/{name}"
        records = pd.read_csv(folder / "records.tsv", sep="\t")
        groups = pd.read_csv(
            folder / ("clusters.tsv" if name == "cluster" else "sequences/lineages.tsv"), sep="\t"
        )
        group = dict(zip(groups["accession"], groups.iloc[:, 2], strict=True))
        sides = [
            {group[records["accession"][i]] for i in np.load(folder / f"split4/{side}_genomes.npy")}
            for side in ("train", "test")
        ]
        assert not sides[0] & sides[1], f"{name}: groups stay whole"
        assert sides[1]
    leakage = pd.read_csv(results / "tables/leakage.csv")
    assert set(leakage["workload"]) == {"majority"}
    similar = leakage.groupby("dataset")["similar_fraction"].first()
    assert similar["cluster"] == 0, "no test genome has a relative of its cluster in training"
    split_by = leakage.groupby("dataset")["split_by"].unique().map(list).to_dict()
    assert split_by == {"cluster": ["cluster"], "lineage": ["group-file"]}
    # Of a split by lineage it is a threshold of the report, and no array depends on it.
    experiment["datasets"]["lineage"]["similarity"] = 0.5
    _, planned = dry_run("--quiet", "rules", experiment=experiment)
    again = {name for name in RULES if re.search(rf"^{name} ", planned, re.MULTILINE)}
    assert {"clusters", "leakage", "page"} <= again, planned
    assert not {"arrays", "train"} & again, planned


def test_fragments_of_either_strand_are_classified_by_asking_for_their_table(
    snakemake, dry_run, tmp_path
):
    experiment = fits_only(
        {"kmer-logreg": {"k": 4}},
        tiles={
            "window": {"method": "tiles", "stride": 400, "reverse_complement": True},
            "length": 400,
        },
    )
    experiment["predict"] = {"inputs": {"mine": "mine.fasta"}, "error_limit": 0.5}
    target = f"results/small/predictions/tiles/{CELL}/mine.tsv"
    (tmp_path / "mine.fasta").write_text(
        ">strange\n" + "ACGGTTCA" * 60 + "\n>short\nACGGTTCAACGGTTCAA\n"
    )
    done = snakemake(target, experiment=experiment)
    table = tmp_path / target
    row, short = pd.read_csv(table, sep="\t").itertuples()
    assert row.unlike_anything_seen and row.likeness == "far" and row.letters == 480
    assert not row.shorter_than_rows and short.shorter_than_rows
    assert short.too_short and 0 <= row.error_at_length <= short.error_at_length
    counts = "2 records: 1 shorter than the model's rows, "
    assert counts in done.stdout
    assert done.stdout.splitlines()[-1] == f"Predictions: {target}"
    data = json.loads((tmp_path / "results/small/data/tiles/split4/dataset.json").read_text())
    assert data["window"]["reverse_complement"]
    errors = json.loads(
        (tmp_path / f"results/small/runs/tiles/{CELL}/length_errors.json").read_text()
    )
    assert [entry["letters"] for entry in errors["lengths"]][:3] == [50, 75, 100]
    code, said = dry_run(target.replace("mine", "yours"))
    assert code != 0
    assert "predict.inputs names no yours" in said

    # A query that cannot be read leaves the table of the last one as it was.
    before, query = table.read_bytes(), (tmp_path / "mine.fasta").read_text()
    (tmp_path / "mine.fasta").write_text(">protein\nMKTLLQEF\n")
    failed = snakemake(target, fails=True)
    assert "not nucleotides" in failed.stdout + failed.stderr
    assert table.read_bytes() == before
    # From the store, the counts are printed too. No run is trained, whatever changed.
    (tmp_path / "mine.fasta").write_text(query)
    (tmp_path / "results/small/data/tiles/split4/dataset.json").touch()
    options = ["--allowed-rules", *PREDICTING, "--forcerun", "predict"]
    served = snakemake(target, *options, "--config", 'predict={"inputs": {"mine": "mine.fasta"}}')
    assert "predict: served from the store" in served.stdout and counts in served.stdout
    assert "rule train" not in served.stdout + served.stderr
    assert table.read_bytes() == before
