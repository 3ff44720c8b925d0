"""A kind of dataset and its workload, each added as a folder to a copy of the project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import yaml

from escala.core.files import sha256_file
from tests.conftest import copy_project
from tests.kinds import add_kind, add_reader, add_workload
from tests.workflow.conftest import SIMULATED, experiment_of

BLOBS = {"kind": "blobs", "points": 40, "spread": 0.2, "split": {"seeds": [4]}}
RUN = "results/plane/runs/plane/dense/single/1x1/tuned/native/rep1/run.json"
FIGURES = ["results/plane/figures/splits.svg", "results/plane/figures/class_distribution.svg"]
#: Print the message of each experiment of a list, or that there is none.
MESSAGES = """
import json, sys
from escala.core.errors import InputError
from escala.experiment import Experiment

for settings in json.load(sys.stdin):
    try:
        experiment = Experiment(settings, "e.yaml")
    except InputError as error:
        print(error)
    else:
        print(sorted({(run.dataset, run.workload) for run in experiment.runs}))
"""


def plane(**datasets: dict) -> dict:
    experiment = experiment_of("plane", SIMULATED)
    experiment["datasets"] = {"plane": BLOBS, **datasets}
    batch = {"rows": 10, "per": "global"}
    rate = {"value": 0.5, "reference_batch": 10}
    experiment["workloads"] = {"dense": {"epochs": 2, "batch": batch, "learning_rate": rate}}
    experiment["configurations"] = [{"strategy": "single", "layouts": ["1x1"]}]
    return experiment


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = copy_project(tmp_path_factory.mktemp("copy") / "project")
    add_kind(project)
    add_workload(project)
    add_reader(project)
    return project


@pytest.fixture(scope="module")
def call(project: Path, warm: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Run a Python module or command with the copy's own code."""

    def run(*arguments: str, given: str | None = None) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *arguments],
            cwd=project,
            env=os.environ | {"PYTHONPATH": f"{warm}{os.pathsep}{project}"},
            input=given,
            capture_output=True,
            text=True,
            timeout=300,
        )

    return run


def test_a_dataset_of_a_new_kind_is_prepared_trained_on_and_shown(project, call):
    (project / "plane.yaml").write_text(yaml.safe_dump(plane()))
    done = call(*("-m", "snakemake", RUN, *FIGURES, "--cores", "2", "--configfile", "plane.yaml"))
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
    assert "audited for leakage" in (project / FIGURES[0]).read_text()
    of_genomes = call(
        *("-m", "snakemake", "results/plane/data/plane/codes.npy", "--cores", "1"),
        *("--configfile", "plane.yaml"),
    )
    assert of_genomes.returncode != 0
    assert "the kind blobs has no such file" in of_genomes.stderr


def test_settings_of_a_new_kind_are_checked_and_its_datasets_meet_their_workloads(call):
    genomes = experiment_of("plane", SIMULATED)
    virus = {"virus": genomes["datasets"]["small"]}
    both = plane(**virus)
    both["workloads"] |= genomes["workloads"]
    misspelt = plane(plane={"kind": "blobs", "points": 40, "spred": 1, "split": {"seeds": [4]}})
    expected = [
        (both, "[('plane', 'dense'), ('virus', 'virus-cnn')]"),
        (misspelt, "datasets.plane.spred.*did you mean spread?"),
        (
            plane(plane=BLOBS | {"kind": "blob"}),
            "datasets.plane.kind.*use one of arrays, blobs, captions",
        ),
        (plane(plane=BLOBS | {"split": {}}), "datasets.plane.split.seeds.*the key is missing"),
        (plane(plane=BLOBS | {"points": 2}), "datasets.plane.points.*leaves no test rows"),
        (plane(**virus), "datasets.virus.kind.*no workload of the experiment reads"),
        (genomes | {"workloads": both["workloads"]}, "workloads.dense.*no such dataset"),
    ]
    done = call("-c", MESSAGES, given=json.dumps([settings for settings, _ in expected]))
    lines = done.stdout.splitlines()
    assert len(lines) == len(expected), done.stdout + done.stderr
    for line, (_, message) in zip(lines, expected, strict=True):
        first, _, then = message.partition(".*")
        assert first in line and then in line
