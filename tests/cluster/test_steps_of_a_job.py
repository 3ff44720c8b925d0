"""A study inside one job, which `escala submit` submits: its runs are job steps on nested nodes."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from escala.core.files import read_json
from escala.experiment import load
from escala.lab import network
from tests.calls import python
from tests.cluster.conftest import output
from tests.cluster.test_runs import experiment, is_over, snakemake, snakemake_command
from tests.conftest import NEEDS, ROOT
from tests.programs import eventually

pytestmark = pytest.mark.cluster

#: The shared port of PyTorch is where the call is: on the node n1.
ACROSS = "ddp-gloo" if NEEDS["torch"][1]() is None else "horovod-gloo"
CONFIGURATIONS = {"single": "1x1", ACROSS: "2x1"}


def settings_of() -> dict:
    """Return an experiment of some configurations, measured twice, without probes."""
    probes = {name: {"enabled": False} for name in ("resources", "clocks")}
    settings = experiment() | probes | {"repeats": 2, "oversubscribe": True}
    del settings["networks"]
    settings["configurations"] = [
        {"strategy": strategy, "layouts": [layout]} for strategy, layout in CONFIGURATIONS.items()
    ]
    return settings


def inside(
    folder: Path,
    program: list[str],
    *options: str,
    arguments: Sequence[str] = ("--cores", "all"),
) -> subprocess.CompletedProcess:
    """Run a program of SLURM's, with a call for the runs of repeat 2 of the experiment there."""
    (folder / "experiment.yaml").write_text(yaml.safe_dump(settings_of()))
    found = load(folder / "experiment.yaml")
    files = [run.file for run in found.runs if run.repeat == 2]
    call = snakemake_command(folder, *files, *arguments)
    (folder / "job.sh").write_text(f"#!/bin/sh\nexec {shlex.join(call)}\n")
    (folder / "job.sh").chmod(0o755)
    return subprocess.run(
        [
            *program,
            "--nodes=2",
            "--ntasks-per-node=1",
            "--exclusive",
            *options,
            str(folder / "job.sh"),
        ],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=400,
        cwd=folder,
    )


def test_a_submitted_experiment_is_measured_in_one_job_on_nested_nodes(put_up, tmp_path):
    put_up()
    folder = tmp_path / "my work"
    folder.mkdir()
    (folder / "experiment.yaml").write_text(yaml.safe_dump(settings_of()))
    prepared = snakemake(folder, "prepare", "--cores", "2")
    assert prepared.returncode == 0, prepared.stderr
    options = ["--partition", "lab", "--setup", "echo loaded > loaded"]
    done = python(
        "-m", "escala.command", "submit", "experiment.yaml", "--now", *options, cwd=folder,
        variables={"PYTHONPATH": f"{os.environ['PYTHONPATH']}{os.pathsep}{ROOT}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    number = re.search(r"job (\d+)\.", done.stderr)[1]
    assert eventually(lambda: is_over(number), seconds=300)
    [log] = folder.glob(f"results/across/logs/job-{number}.log")
    runs = [read_json(path) for path in folder.glob("results/**/rep*/run.json")]
    assert {run["status"] for run in runs} == {"ok"}, log.read_text()
    assert len(runs) == 2 * len(CONFIGURATIONS)
    assert (folder / "loaded").read_text() == "loaded\n"
    assert len({run["job"]["step"] for run in runs} - {None}) == len(runs)
    for run in runs:
        job, ranks = run["job"], run["ranks"]
        assert (job["number"], job["nodes"], job["exclusive"]) == (number, ["n1", "n2"], True)
        assert job["submitted"] <= job["started"] <= run["started"]
        # One node is another one in each repeat, and belongs to the larger layout.
        nodes = [f"n{run['repeat']}"] if run["layout"] == "1x1" else ["n1", "n2"]
        interface = "lo" if run["layout"] == "1x1" else "eth0"
        found = ranks["launcher"], ranks["hosts"], ranks["interface"]
        assert found == ("srun", nodes, interface), run["strategy"]


@pytest.mark.sweep
def test_a_job_that_would_submit_others_is_refused(lab, tmp_path):
    profile = ("--profile", str(ROOT / "profiles" / "slurm"))
    output = tmp_path / "job.out"
    submitted = inside(tmp_path, ["sbatch", "--wait"], f"--output={output}", arguments=profile)
    assert submitted.returncode
    assert "would submit further jobs from there" in output.read_text()
    assert not (tmp_path / "results").exists()


@pytest.mark.sweep
def test_the_shell_of_salloc_is_refused_also_for_several_nodes(lab, tmp_path):
    done = inside(tmp_path, ["salloc"])
    assert "is not part of it" in done.stdout + done.stderr
    assert not (tmp_path / "results").exists()


LINK = """
from pathlib import Path
from escala.runtime import asking, launch
from escala.runtime.layout import Layout
from escala.strategies import STRATEGIES
started = launch.survey(Layout.parse("2x1"), STRATEGIES["horovod-gloo"], None, "auto")
asking.measure_link(started, Path("link.json"))
"""


@pytest.mark.sweep
def test_a_link_that_nobody_controls_is_measured_by_a_step(lab, tmp_path):
    network.shape("100mbit")
    try:
        (tmp_path / "measure.py").write_text(LINK)
        call = f"--wrap=exec {sys.executable} measure.py"
        output(
            "sbatch", "--wait", "--nodes=2", "--ntasks-per-node=1", f"--output={tmp_path}/said",
            f"--chdir={tmp_path}", f"--export=ALL,PYTHONPATH={ROOT}", call,
        )  # fmt: skip
    finally:
        network.shape("native")
    assert (tmp_path / "link.json").exists(), (tmp_path / "said").read_text()
    found = read_json(tmp_path / "link.json")
    # A busy machine carries less, never more.
    assert 30 < found["mbit_per_second"] < 110
    assert 0 < found["latency_ms"] < 100
