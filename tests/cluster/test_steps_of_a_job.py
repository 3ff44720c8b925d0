"""A study inside one job: its runs are job steps on nested nodes, which begin with another one."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml

from escala.core.files import read_json
from escala.experiment import load
from tests.cluster.test_runs import experiment, snakemake_command
from tests.conftest import ROOT

pytestmark = pytest.mark.cluster

PROFILE = ("--profile", str(ROOT / "profiles" / "allocation"))
CONFIGURATIONS = {"single": "1x1", "horovod-mpi": "2x1"}
EXCLUSIVE = "--exclusive"


def inside(folder: Path, program: list[str], *options: str) -> subprocess.CompletedProcess:
    """Run a program of SLURM's, with a call for the runs of repeat 2 of the experiment there."""
    settings = experiment() | {"repeats": 2, "oversubscribe": True}
    del settings["networks"]
    settings["configurations"] = [
        {"strategy": strategy, "layouts": [layout]} for strategy, layout in CONFIGURATIONS.items()
    ]
    (folder / "experiment.yaml").write_text(yaml.safe_dump(settings))
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
def runs(put_up, tmp_path_factory) -> dict[str, dict]:
    """The runs of repeat 2 by their strategies, all made in one job."""
    put_up()
    folder = tmp_path_factory.mktemp("job")
    done = inside(folder, ["sbatch", "--wait"], EXCLUSIVE, f"--output={folder}/job.out")
    assert done.returncode == 0, (folder / "job.out").read_text()
    found = [read_json(path) for path in folder.glob("results/*/runs/**/rep2/run.json")]
    return {run["strategy"]: run for run in found}


def test_one_node_is_another_one_in_each_repeat_and_belongs_to_the_larger_layout(runs):
    hosts = {name: run["ranks"]["hosts"] for name, run in runs.items()}
    assert hosts == {"single": ["n2"], "horovod-mpi": ["n1", "n2"]}
    assert {run["ranks"]["launcher"] for run in runs.values()} == {"srun"}
    assert [runs[name]["ranks"]["interface"] for name in CONFIGURATIONS] == ["lo", "eth0"]


def test_the_job_and_its_steps_are_recorded(runs):
    assert {run["job"]["number"] for run in runs.values()} == {runs["single"]["job"]["number"]}
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
