"""A kind of dataset and its workload, each added as a folder to a copy of the project."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from escala.core.files import sha256_file
from tests.calls import python
from tests.conftest import copy_project
from tests.kinds import add_kind, add_reader, add_workload
from tests.workflow.conftest import SIMULATED, experiment_of

BLOBS = {"kind": "blobs", "points": 40, "spread": 0.2, "split": {"seeds": [4]}}
RUN = "results/plane/runs/plane/dense/single/1x1/tuned/native/rep1/run.json"
FIGURES = Path("results/plane/figures")


def plane() -> dict:
    experiment = experiment_of("plane", SIMULATED)
    experiment["datasets"] = {"plane": BLOBS}
    batch = {"rows": 10, "per": "global"}
    rate = {"value": 0.5, "reference_batch": 10}
    experiment["workloads"] = {"dense": {"epochs": 2, "batch": batch, "learning_rate": rate}}
    experiment["configurations"] = [{"strategy": "single", "layouts": ["1x1"]}]
    return experiment


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = copy_project(tmp_path / "project")
    add_kind(project)
    add_workload(project)
    add_reader(project)
    (project / "plane.yaml").write_text(yaml.safe_dump(plane()))
    return project


def snakemake(project: Path, warm: Path, *targets: str) -> subprocess.CompletedProcess:
    """Call Snakemake with the copy's own code."""
    variables = {"PYTHONPATH": f"{warm}{os.pathsep}{project}"}
    words = ("-m", "snakemake", *targets, "--cores", "2", "--configfile", "plane.yaml")
    return python(*words, variables=variables, cwd=project)


def test_a_dataset_of_a_new_kind_is_prepared_trained_on_and_shown(project, warm):
    done = snakemake(project, warm, RUN, str(FIGURES))
    assert done.returncode == 0, done.stdout + done.stderr
    data = project / "results/plane/data/plane"
    lock = pd.read_csv(data / "source/lock.tsv", sep="\t")
    assert lock.to_dict("records") == [
        {
            "file": "points.npz",
            "bytes": (data / "source/points.npz").stat().st_size,
            "sha256": sha256_file(data / "source/points.npz"),
        }
    ]
    drawn = np.load(data / "source/points.npz")
    sides = {
        side: np.load(data / f"split4/{side}_point.npy", allow_pickle=False)
        for side in ("train", "test")
    }
    assert [len(rows) for rows in sides.values()] == [60, 20]
    together = np.concatenate(list(sides.values()))
    np.testing.assert_array_equal(np.unique(together, axis=0), np.unique(drawn["points"], axis=0))
    run = json.loads((project / RUN).read_text())
    assert run["status"] == "ok"
    # The classes are five standard deviations from the line between them.
    assert run["evaluation"]["accuracy"] == 1
    log = (project / RUN).parent / "ranks" / "rank0.log"
    assert "read by the kind's own reader" in log.read_text()
    tables = project / "results/plane/tables"
    classes = pd.read_csv(tables / "classes.csv")
    for side in ("train", "test"):
        labels = np.load(data / f"split4/{side}_labels.npy", allow_pickle=False)
        assert classes[side].tolist() == np.bincount(labels).tolist()
    assert classes[["records", "length_median"]].isna().all(axis=None)
    assert pd.read_csv(tables / "leakage.csv").empty
    assert "audited for leakage" in (project / FIGURES / "splits.svg").read_text()
    genome_file = snakemake(project, warm, "results/plane/data/plane/codes.npy")
    assert genome_file.returncode != 0
    assert "the kind blobs has no such file" in genome_file.stderr
