"""Scaling studies in the workflow: from the experiment to the document."""

from __future__ import annotations

import copy
import json
import os
import shutil

import pandas as pd
import pytest

from escala.core import environment
from tests.programs import experiment_on
from tests.workflow.conftest import SIMULATED, experiment_of


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
    assert "Weak scaling of work on none: plain processes, variant plain" in written
    assert "Weak scaling of training work" in (results / "study.md").read_text()
    assert (results / "study.tex").exists()
    assert (results / "study.pdf").exists() == bool(shutil.which("chromium"))
    assert "All 2 runs ended ok." in done.stdout + done.stderr
    assert "Scaling study to hand in: results/grows/study.html" in done.stdout + done.stderr
    assert "study_document" not in dry_run("study", experiment=experiment)[1]
    (results / "job.sh").write_text("#!/bin/bash\n")
    code, said = dry_run("study", experiment=experiment)
    assert not code and "study_document" in said


@pytest.mark.sweep
def test_the_rows_of_an_epoch_grow_with_real_ranks(snakemake, tmp_path):
    study = {"kind": "weak", "strategies": ["horovod-mpi"], "up_to": "1x2", "rows_per_rank": 20}
    experiment = experiment_of("rows", SIMULATED, scaling=study)
    del experiment["configurations"]
    files = {
        ranks: f"results/rows/runs/small/virus-cnn/{name}/1x{ranks}/tuned/native/rep1/run.json"
        for ranks, name in ((1, "single"), (2, "horovod-mpi"))
    }
    snakemake(*files.values(), experiment=experiment)
    for ranks, file in files.items():
        run = json.loads((tmp_path / file).read_text())
        training, [epoch] = run["training"], run["epochs"]
        assert run["status"] == "ok" and training["train_rows"] == 20 * ranks
        assert (epoch["rows"], epoch["distinct_rows"]) == (20 * ranks, 20 * ranks)
        assert (epoch["steps"], training["steps_per_epoch"]) == (1, 1)


def test_an_experiment_without_a_study_is_refused(dry_run):
    code, said = dry_run("study", experiment=copy.deepcopy(experiment_of("none", SIMULATED)))
    assert code and "this experiment has no scaling study. Remedy: write the key" in said
