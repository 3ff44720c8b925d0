"""An experiment measured in one job, which `escala submit` submits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from escala.core.files import read_json
from tests.cluster.test_runs import experiment, is_over, snakemake
from tests.conftest import ROOT
from tests.programs import eventually

pytestmark = pytest.mark.cluster


def submitted(folder: Path, *words: str) -> str:
    """Submit the experiment of a folder, and return what is said of it."""
    done = subprocess.run(
        [sys.executable, "-m", "scripts.submit", "experiment.yaml", "--now", *words],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_a_submitted_experiment_is_measured_in_one_job_and_reported_after(lab, tmp_path):
    folder = tmp_path / "my work"
    folder.mkdir()
    settings = experiment()
    settings["configurations"] = [
        {"strategy": "single", "layouts": ["1x1"]},
        {"strategy": "horovod-mpi", "layouts": ["2x1"]},
    ]
    settings |= {"resources": {"enabled": False}, "clocks": {"enabled": False}}
    (folder / "experiment.yaml").write_text(yaml.safe_dump(settings))
    prepared = snakemake(folder, "prepare", "--cores", "2")
    assert prepared.returncode == 0, prepared.stderr
    said = submitted(folder, "--partition", "lab", "--setup", "echo loaded > loaded")
    number = re.search(r"job (\d+)\.", said)[1]
    assert eventually(lambda: is_over(number), seconds=300)
    [log] = folder.glob(f"results/across/logs/job-{number}.log")
    runs = {run["layout"]: run for run in map(read_json, folder.glob("results/**/rep1/run.json"))}
    assert {run["status"] for run in runs.values()} == {"ok"}, log.read_text()
    assert runs.keys() == {"1x1", "2x1"}, log.read_text()
    assert {run["job"]["number"] for run in runs.values()} == {number}
    assert set(runs["1x1"]["ranks"]["hosts"]) < set(runs["2x1"]["ranks"]["hosts"])
    assert (folder / "loaded").read_text() == "loaded\n"
    reported = snakemake(folder, "report", "--cores", "1")
    assert reported.returncode == 0, reported.stdout + reported.stderr
    assert (folder / "results/across/index.html").exists()
