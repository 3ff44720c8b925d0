"""A study inside one job, which `escala submit` submits: its runs are job steps on nested nodes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd
import pytest
import yaml

from escala.core.files import read_json
from escala.experiment import load
from escala.lab import network
from tests.cluster.test_runs import experiment, is_over, snakemake, snakemake_command
from tests.conftest import NEEDS, ROOT
from tests.programs import eventually

pytestmark = pytest.mark.cluster

#: Horovod's server and the shared port of PyTorch are where the call is: on the node n1.
CONFIGURATIONS = {"single": "1x1", "horovod-gloo": "2x1"}
CONFIGURATIONS |= {"ddp-gloo": "2x1"} if NEEDS["torch"][1]() is None else {}
EXCLUSIVE = "--exclusive"


def settings_of(configurations: Mapping[str, str] = CONFIGURATIONS, **changes: object) -> dict:
    """Return an experiment of some configurations, measured twice, without probes."""
    probes = {name: {"enabled": False} for name in ("resources", "clocks")}
    settings = experiment() | probes | {"repeats": 2, "oversubscribe": True} | changes
    del settings["networks"]
    settings["configurations"] = [
        {"strategy": strategy, "layouts": [layout]} for strategy, layout in configurations.items()
    ]
    return settings


def inside(
    folder: Path,
    program: list[str],
    *options: str,
    arguments: Sequence[str] = ("--cores", "all"),
    **changes: object,
) -> subprocess.CompletedProcess:
    """Run a program of SLURM's, with a call for the runs of repeat 2 of the experiment there."""
    (folder / "experiment.yaml").write_text(yaml.safe_dump(settings_of(**changes)))
    found = load(folder / "experiment.yaml")
    files = [run.file for run in found.runs if run.repeat == 2]
    call = snakemake_command(folder, *files, *arguments)
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


def in_a_batch_job(folder: Path, *options: str, **changes: object) -> str:
    """Submit the call as a job, wait for its end, and return what it printed."""
    output = folder / "job.out"
    done = inside(folder, ["sbatch", "--parsable"], f"--output={output}", *options, **changes)
    assert done.returncode == 0, done.stderr
    assert eventually(lambda: is_over(done.stdout.strip()), seconds=300)
    return output.read_text()


@pytest.fixture(scope="module")
def submitted(put_up, tmp_path_factory) -> tuple[Path, str]:
    """The folder of an experiment that was submitted and measured, and the number of its job."""
    put_up()
    folder = tmp_path_factory.mktemp("job") / "my work"
    folder.mkdir()
    (folder / "experiment.yaml").write_text(yaml.safe_dump(settings_of()))
    prepared = snakemake(folder, "prepare", "--cores", "2")
    assert prepared.returncode == 0, prepared.stderr
    options = ["--partition", "lab", "--setup", "echo loaded > loaded"]
    done = subprocess.run(
        [sys.executable, "-m", "escala.command", "submit", "experiment.yaml", "--now", *options],
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
    assert {run["status"] for run in runs} == {"ok"}, log.read_text()
    assert len(runs) == 2 * len(CONFIGURATIONS)
    assert {run["job"]["number"] for run in runs} == {number}
    assert (folder / "loaded").read_text() == "loaded\n"
    table = "results/across/tables/runs.csv"
    reported = snakemake(folder, table, "--cores", "1")
    assert reported.returncode == 0, reported.stdout + reported.stderr
    assert sorted(pd.read_csv(folder / table)["layout"]) == sorted(
        2 * list(CONFIGURATIONS.values())
    )


def test_one_node_is_another_one_in_each_repeat_and_belongs_to_the_larger_layout(runs):
    assert {run["ranks"]["launcher"] for run in runs.values()} == {"srun"}
    for name, layout in CONFIGURATIONS.items():
        ranks = runs[name]["ranks"]
        expected = (["n2"], "lo") if layout == "1x1" else (["n1", "n2"], "eth0")
        assert (ranks["hosts"], ranks["interface"]) == expected, name


def test_the_job_and_its_steps_are_recorded(runs):
    assert len({run["job"]["step"] for run in runs.values()} - {None}) == len(runs)
    for run in runs.values():
        assert (run["job"]["nodes"], run["job"]["exclusive"]) == (["n1", "n2"], True)
        assert run["job"]["submitted"] <= run["job"]["started"] <= run["started"]


@pytest.mark.sweep
def test_mpirun_starts_ranks_on_another_node_than_that_of_the_call(submitted):
    """The data are those of the job before."""
    folder, _ = submitted
    said = in_a_batch_job(
        folder, EXCLUSIVE, configurations={"horovod-mpi": "1x2"}, launcher="mpirun",
        references=[{"strategy": "horovod-mpi", "layout": "1x2"}],
    )  # fmt: skip
    [file] = folder.glob("results/*/runs/**/1x2/**/rep2/run.json")
    run = read_json(file)
    assert run["status"] == "ok", said
    assert (run["ranks"]["launcher"], run["ranks"]["hosts"]) == ("mpirun", ["n2"])


def test_a_job_that_would_submit_others_is_refused(lab, tmp_path):
    profile = ("--profile", str(ROOT / "profiles" / "slurm"))
    said = in_a_batch_job(tmp_path, EXCLUSIVE, arguments=profile)
    assert "would submit further jobs from there" in said
    assert not (tmp_path / "results").exists()


def test_the_shell_of_salloc_is_refused_also_for_several_nodes(lab, tmp_path):
    done = inside(tmp_path, ["salloc"], EXCLUSIVE)
    assert "is not part of it" in done.stdout + done.stderr
    assert not (tmp_path / "results").exists()


LINK = """
from pathlib import Path
from escala.runtime import asking, launch
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES
started = launch.survey(Layout.parse("2x1"), STRATEGIES["horovod-gloo"], None, "auto")
asking.measured(started, Path("link.json"))
"""


def test_a_link_that_nobody_controls_is_measured_by_a_step(lab, tmp_path):
    network.shape("100mbit")
    try:
        (tmp_path / "measure.py").write_text(LINK)
        call = f"--wrap=exec {sys.executable} measure.py"
        done = subprocess.run(
            ["sbatch", "--parsable", "--nodes=2", "--ntasks-per-node=1", "--output=said", call],
            env=os.environ | {"PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{ROOT}"},
            capture_output=True,
            text=True,
            cwd=tmp_path,
            timeout=200,
        )
        assert done.returncode == 0, done.stderr
        assert eventually(lambda: is_over(done.stdout.strip()), seconds=200)
    finally:
        network.shape("native")
    assert (tmp_path / "link.json").exists(), (tmp_path / "said").read_text()
    found = read_json(tmp_path / "link.json")
    # A busy machine carries less, never more.
    assert 30 < found["mbit_per_second"] < 110
    assert 0 < found["latency_ms"] < 100
