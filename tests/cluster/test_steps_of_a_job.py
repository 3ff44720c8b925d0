"""A study inside one job, which `escala submit` submits: its runs are job steps on nested nodes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from escala.core.files import read_json
from escala.experiment import load
from tests.cluster.test_runs import experiment, is_over, snakemake, snakemake_command
from tests.conftest import ROOT
from tests.programs import eventually

pytestmark = pytest.mark.cluster

PROFILE = ("--profile", str(ROOT / "profiles" / "allocation"))
CONFIGURATIONS = {"single": "1x1", "horovod-mpi": "2x1"}
EXCLUSIVE = "--exclusive"


def settings_of() -> dict:
    """Return an experiment of two configurations, measured twice."""
    settings = experiment() | {"repeats": 2, "oversubscribe": True}
    del settings["networks"]
    settings["configurations"] = [
        {"strategy": strategy, "layouts": [layout]} for strategy, layout in CONFIGURATIONS.items()
    ]
    return settings


def inside(folder: Path, program: list[str], *options: str) -> subprocess.CompletedProcess:
    """Run a program of SLURM's, with a call for the runs of repeat 2 of the experiment there."""
    (folder / "experiment.yaml").write_text(yaml.safe_dump(settings_of()))
    found = load(folder / "experiment.yaml")
    files = [run.file for run in found.runs if run.repeat == 2]
    call = snakemake_command(folder, *files, *PROFILE)
    (folder / "job.sh").write_text(f"#!/bin/sh\nexec {shlex.join(call)}\n")
    (folder / "job.sh").chmod(0o755)
    return subprocess.run(
        [*program, "--nodes=2", "--ntasks-per-node=1", *options, str(folder / "job.sh")],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=400,
        cwd=folder,
    )


@pytest.fixture(scope="module")
def submitted(put_up, tmp_path_factory) -> tuple[Path, str]:
    """The folder of an experiment that was submitted and measured, and the number of its job."""
    put_up()
    folder = tmp_path_factory.mktemp("job") / "my work"
    folder.mkdir()
    settings = settings_of() | {"resources": {"enabled": False}, "clocks": {"enabled": False}}
    (folder / "experiment.yaml").write_text(yaml.safe_dump(settings))
    prepared = snakemake(folder, "prepare", "--cores", "2")
    assert prepared.returncode == 0, prepared.stderr
    options = ["--partition", "lab", "--setup", "echo loaded > loaded"]
    done = subprocess.run(
        [sys.executable, "-m", "scripts.submit", "experiment.yaml", "--now", *options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{os.environ['PYTHONPATH']}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    number = re.search(r"job (\d+)\.", done.stderr)[1]
    assert eventually(lambda: is_over(number), seconds=300)
    return folder, number


@pytest.fixture(scope="module")
def runs(submitted) -> dict[str, dict]:
    """The runs of repeat 2 by their strategies."""
    found = map(read_json, submitted[0].glob("results/*/runs/**/rep2/run.json"))
    return {run["strategy"]: run for run in found}


def test_a_submitted_experiment_is_measured_in_one_job_and_tabulated_after(submitted):
    folder, number = submitted
    [log] = folder.glob(f"results/across/logs/job-{number}.log")
    runs = [read_json(path) for path in folder.glob("results/**/rep*/run.json")]
    assert {run["status"] for run in runs} == {"ok"} and len(runs) == 4, log.read_text()
    assert {run["job"]["number"] for run in runs} == {number}
    assert (folder / "loaded").read_text() == "loaded\n"
    table = "results/across/tables/runs.csv"
    reported = snakemake(folder, table, "--cores", "1")
    assert reported.returncode == 0, reported.stdout + reported.stderr
    assert sorted(pd.read_csv(folder / table)["layout"]) == ["1x1", "1x1", "2x1", "2x1"]


def test_one_node_is_another_one_in_each_repeat_and_belongs_to_the_larger_layout(runs):
    hosts = {name: run["ranks"]["hosts"] for name, run in runs.items()}
    assert hosts == {"single": ["n2"], "horovod-mpi": ["n1", "n2"]}
    assert {run["ranks"]["launcher"] for run in runs.values()} == {"srun"}
    assert [runs[name]["ranks"]["interface"] for name in CONFIGURATIONS] == ["lo", "eth0"]


def test_the_job_and_its_steps_are_recorded(runs):
    assert len({run["job"]["step"] for run in runs.values()} - {None}) == len(runs)
    for run in runs.values():
        assert (run["job"]["nodes"], run["job"]["exclusive"]) == (["n1", "n2"], True)
        assert run["job"]["submitted"] <= run["job"]["started"] <= run["started"]


def test_a_job_that_shares_its_nodes_is_refused(lab, tmp_path):
    inside(tmp_path, ["sbatch", "--wait"], f"--output={tmp_path}/job.out")
    assert "shares its nodes with other jobs" in (tmp_path / "job.out").read_text()
    assert not (tmp_path / "results").exists()


def test_the_shell_of_salloc_is_refused_also_for_several_nodes(lab, tmp_path):
    done = inside(tmp_path, ["salloc"], EXCLUSIVE)
    assert "is not part of it" in done.stdout + done.stderr
    assert not (tmp_path / "results").exists()
