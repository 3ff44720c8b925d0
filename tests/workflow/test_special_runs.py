"""A session that decides, a study, and splits with predictions, from file to tables."""

from __future__ import annotations

import copy
import json
import os
import re
import shutil

import numpy as np
import pandas as pd
import pytest

from escala.core import environment
from escala.report.history import add
from tests.conftest import CLASSES
from tests.programs import experiment_on
from tests.workflow.conftest import SIMULATED, experiment_of
from tests.workflow.measured import FAKE

RUNS = "results/small/runs/small/virus-cnn"


def repeats_of(folder, strategy: str, layout: str) -> list[str]:
    place = folder / RUNS / strategy / layout / "tuned" / "native"
    return sorted(path.parent.name for path in place.glob("*/run.json"))


def test_a_session_that_decides_stops_and_a_further_call_has_nothing_to_do(
    snakemake, dry_run, tmp_path, imported
):
    """With the second runs of the reference, and with a store that must not take them for first."""
    imported(FAKE)
    experiment = experiment_of(
        "small",
        SIMULATED,
        configurations=[
            {"strategy": name, "layouts": ["1x1"]} for name in ("single", "wrapped-single")
        ],
        noise_floor=True,
        repeats={"decide": True, "at_most": 10},
    )
    table = "results/small/tables/looks.csv"
    before = snakemake("--dry-run", experiment=experiment)
    assert "after at most 10 repeats" in before.stdout
    # Two configurations and the second runs of one, ten times.
    assert "30 runs to measure" in before.stdout
    kept = {"ESCALA_STORE": str(tmp_path / "store"), "ESCALA_MEASURE_AGAIN": ""}
    snakemake(table, **kept)
    first = [f"rep{n}" for n in range(1, 6)]
    assert repeats_of(tmp_path, "single", "1x1") == [f"duplicate.{name}" for name in first] + first
    assert repeats_of(tmp_path, "wrapped-single", "1x1") == first
    (row,) = pd.read_csv(tmp_path / table).itertuples()
    assert (row.strategy, row.repeats, row.matches) == ("wrapped-single", 5, 5)
    assert (row.verdict, row.goes_on, row.level) == ("faster", False, 0.9843)
    summary = (tmp_path / "results/small/summary.md").read_text()
    assert f"stopped after five repeats, because {row.ended}." in summary
    assert "are 98.4 % intervals" in summary and "95 %" not in summary
    runs = [json.loads(path.read_text()) for path in tmp_path.glob(f"{RUNS}/**/run.json")]
    assert len(runs) == 15 and {run["session"] for run in runs} == {runs[0]["session"]}
    (noise,) = pd.read_csv(tmp_path / "results/small/tables/noise.csv").itertuples()
    # A copy of the first run would have a ratio of 1.
    assert noise.matches == 5 and round(noise.ratio, 6) == 1.02
    assert "Nothing to be done" in dry_run(table)[1]
    # Sessions of a history are an input of the page.
    add(tmp_path / ".escala" / "history", [tmp_path / "results" / "small"])
    assert re.search(r"page +1\n", dry_run(table)[1])


def test_a_weak_study_of_a_program_ends_in_its_document(snakemake, dry_run, tmp_path):
    """Each process sleeps as long on any layout, so twice the work takes the same time."""
    study = {"kind": "weak", "strategies": ["processes"], "layouts": ["1x1", "1x2"]}
    work = {"command": "sh -c 'sleep 0.$((5 * {ranks} / {ranks}))'", "files": []}
    experiment = experiment_on("grows", {"work": work}, scaling=study)
    del experiment["configurations"]
    results = tmp_path / "results/grows"
    environment.claim_results(results)
    held = environment.hold_results(results)
    refused = snakemake("study", experiment=experiment, fails=True)
    assert "another call writes results there" in refused.stdout + refused.stderr
    assert not list(results.glob("runs/**/run.json"))
    os.close(held)
    done = snakemake("study", experiment=experiment)
    rows = pd.read_csv(results / "tables/scaling.csv").set_index("layout")
    one, two = rows["seconds_per_epoch"]
    # A worker of the suite may have one core, which two processes then share.
    if rows.loc["1x2", "shares_cores"]:
        assert pd.isna(rows.loc["1x2", "efficiency"])
    else:
        assert rows.loc["1x2", "efficiency"] == pytest.approx(one / two)
        assert 0.5 < rows.loc["1x2", "efficiency"] < 1.5
    written = (results / "study.html").read_text()
    assert "Weak scaling of work: plain processes, variant plain" in written
    assert "Weak scaling of training work" in (results / "study.md").read_text()
    assert (results / "study.tex").exists()
    assert (results / "study.pdf").exists() == bool(shutil.which("chromium"))
    assert "All 2 runs ended ok." in done.stdout + done.stderr
    assert "Scaling study to hand in: results/grows/study.html" in done.stdout + done.stderr
    assert "study_document" not in dry_run("study", experiment=experiment)[1]
    (results / "job.sh").write_text("#!/bin/bash\n")
    code, said = dry_run("study", experiment=experiment)
    assert not code and "study_document" in said
    # The script of production takes the place of the script of these runs.
    experiment["scaling"]["proposal"] = {"job_script": "production.sh"}
    code, said = dry_run("study", experiment=experiment)
    assert code and "scaling.proposal.job_script: production.sh: no such file" in said
    (tmp_path / "production.sh").write_text("srun ours\n")
    snakemake("study", experiment=experiment)
    written = (results / "study.md").read_text()
    assert "## Job script of production\n\n```bash\nsrun ours\n" in written
    assert "#!/bin/bash" not in written and "`scaling.proposal.software`" in written
    assert "- **data: none:** no files that Escala knows" in written


def test_an_experiment_without_a_study_is_refused(dry_run):
    code, said = dry_run("study", experiment=copy.deepcopy(experiment_of("none", SIMULATED)))
    assert code and "this experiment has no scaling study. Remedy: write the key" in said


FAMILIES = {
    "type": "simulated",
    "seed": 1,
    "difficulty": 0.2,
    "records": dict.fromkeys(CLASSES, 30),
}
RULES = ("codes", "clusters", "arrays", "measure", "leakage", "page")
CELL = "kmer-logreg/single/1x1/tuned/native/rep1"


def fits_only(workloads: dict, **datasets: dict) -> dict:
    experiment = experiment_of("small", FAMILIES)
    base = experiment["datasets"]["small"] | {"oversample": {"method": "none"}}
    experiment["datasets"] = {name: base | changes for name, changes in datasets.items()}
    experiment["configurations"] = experiment["configurations"][:1]
    experiment["workloads"] = workloads
    return experiment


SPLITS = {
    "cluster": ("clusters.tsv", {"by": "cluster", "seeds": [4]}),
    "lineage": ("sequences/lineages.tsv", {"by": "group-file", "seeds": [4]}),
}


@pytest.mark.parametrize("name", ["cluster", pytest.param("lineage", marks=pytest.mark.sweep)])
def test_cluster_and_lineage_splits_keep_relatives_together(name, snakemake, dry_run, tmp_path):
    file, split = SPLITS[name]
    experiment = fits_only({"majority": {}}, **{name: {"split": split, "similarity": 0.6}})
    snakemake("results/small/tables/leakage.csv", experiment=experiment)
    folder = tmp_path / "results/small/data" / name
    records = pd.read_csv(folder / "records.tsv", sep="\t")
    groups = pd.read_csv(folder / file, sep="\t")
    group = dict(zip(groups["accession"], groups.iloc[:, 2], strict=True))
    train, test = (
        {group[records["accession"][i]] for i in np.load(folder / f"split4/{side}_genomes.npy")}
        for side in ("train", "test")
    )
    assert test and not train & test, "groups stay whole"
    leakage = pd.read_csv(tmp_path / "results/small/tables/leakage.csv")
    assert set(leakage["workload"]) == {"majority"}
    assert set(leakage["split_by"]) == {split["by"]}
    experiment["datasets"][name]["similarity"] = 0.5
    _, planned = dry_run("--quiet", "rules", experiment=experiment)
    again = {name for name in RULES if re.search(rf"^{name} ", planned, re.MULTILINE)}
    assert {"clusters", "leakage", "page"} <= again, planned
    if name == "cluster":
        similar = leakage["similar_fraction"].iloc[0]
        assert similar == 0, "no test genome has a relative of its cluster in training"
        assert {"arrays", "measure"} <= again, planned
    else:
        # Of a split by lineage it is a threshold of the report, and no array depends on it.
        assert not {"arrays", "measure"} & again, planned


@pytest.mark.sweep
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
