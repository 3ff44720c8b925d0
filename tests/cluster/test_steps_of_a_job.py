"""Whole studies in jobs: runs are steps on nested nodes, of one job or of one for each size."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
import pytest
import yaml

from escala.core.files import read_json
from escala.engines import interpreter
from escala.experiment import load
from escala.lab import network
from escala.measure import table
from escala.measure.plan import table_of
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


#: Jobs here take seconds.
SOON = ("--seconds-between-status-checks", "2", "--slurm-init-seconds-before-status-checks", "2")
SUBMITTED = re.compile(r"SLURM jobid (\d+) \(log: \S+/slurm_logs/(\S+)/\d+\.log\)")


def waiting(folder: Path) -> dict:
    return {
        "experiment": "ordered",
        "title": "Programs that only wait",
        "repeats": 2,
        "datasets": {"none": {"kind": "files"}},
        "variants": {"plain": {}},
        "workloads": {"waiting": {"command": "sleep 1", "directory": str(folder)}},
        "configurations": [
            {"strategy": "single", "layouts": ["1x1"]},
            {"strategy": "torch-ddp", "layouts": ["2x1"]},
        ],
        "references": [{"strategy": "single", "layout": "1x1"}],
    }


@pytest.mark.sweep
def test_each_number_of_nodes_has_a_job_that_measures_the_references_too(lab, tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    changes = {"repeats": 1, "jobs_by_nodes": True}
    settings = waiting(programs) | changes
    settings["configurations"][1]["layouts"] = ["1x1", "2x1"]
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(settings))
    call = ("runs", "--profile", str(ROOT / "profiles" / "slurm"))
    done = snakemake(tmp_path, *call, *SOON)
    assert done.returncode == 0, done.stdout + done.stderr
    submitted = [log.partition("/")[0] for _, log in SUBMITTED.findall(done.stdout + done.stderr)]
    assert submitted[0].startswith("group_prepare"), "data take one job"
    assert set(submitted[1:]) == {"rule_measure_on_nodes"}
    found = load(tmp_path / "experiment.yaml")
    [alone] = [run for run in found.timed if run.strategy == "single"]
    others = [read_json(tmp_path / run.file) for run in found.timed if run != alone]
    # Each is measured in a job of its nodes, and its reference in the same.
    assert {each["layout"]: len(each["job"]["nodes"]) for each in others} == {"1x1": 1, "2x1": 2}
    reference = map(read_json, (tmp_path / alone.folder).glob("sessions/*.json"))
    assert {each["job"]["number"] for each in reference} == {
        each["job"]["number"] for each in others
    }
    assert len({each["session"] for each in others}) == 2
    rows = table.read(tmp_path / table_of("ordered"))
    assert [row["status"] for row in rows] == ["ok"] * 3
    # A second call submits nothing.
    assert not SUBMITTED.findall(snakemake(tmp_path, *call).stderr)


BATCH, BATCHES = 16, 40_000
#: It would take hours, and imports nothing of Escala.
SCRIPT = f"""
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
rows = TensorDataset(torch.randn({BATCH * BATCHES}, 4))
loader = DataLoader(rows, batch_size={BATCH}, sampler=DistributedSampler(rows))
model = DistributedDataParallel(torch.nn.Linear(4, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(10_000):
    for [batch] in loader:
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()
"""


@pytest.mark.torch
@pytest.mark.sweep
def test_one_call_makes_the_document_of_a_script(put_up, tmp_path):
    put_up()
    (tmp_path / "train.py").write_text(SCRIPT)
    words = ["study", "--sizes", "1,2", "--repeats", "1", "--python", interpreter("torch")]
    words += ["--yes", "--json", "answer.json", "--", "torchrun", "--nproc-per-node", "1"]

    def call():
        path = f"{os.environ['PYTHONPATH']}{os.pathsep}{ROOT}"
        command = ["-m", "escala.command", *words, "train.py"]
        return python(*command, cwd=tmp_path, timeout=1500, variables={"PYTHONPATH": path})

    done = call()
    assert done.returncode == 0, done.stderr
    results = tmp_path / "results" / "train-study"
    runs = [read_json(file) for file in results.glob("runs/**/rep*/run.json")]
    assert len(runs) == 2 and {run["program"]["known_by"] for run in runs} == {"seen"}
    rows = pd.read_csv(results / "tables" / "scaling.csv").set_index("layout", drop=False)
    assert list(rows.index) == ["1x1", "2x1"]
    assert list(rows["global_batch"]) == [BATCH, 2 * BATCH]
    for run in runs:
        row, [window] = rows.loc[run["layout"]], run["epochs"]
        assert run["ranks"]["hosts"] == ["n1", "n2"][: row["nodes"]]
        assert run["ranks"]["launcher"] == "srun"
        # Each rank has its part of the batches, of which a few were made.
        steps = BATCHES // row["nodes"]
        assert run["training"]["steps_per_epoch"] == steps > window["steps"] >= 5
        seconds = window["train_seconds"] / window["steps"] * steps
        assert row["seconds_per_epoch"] == pytest.approx(seconds, rel=1e-6)
    # Runs that were ended tell nothing of whole ones, and one pair is no verdict.
    unknown = ["wall_seconds", "node_hours", "whole_speedup", "validation_seconds", "passes"]
    assert rows[unknown].isna().all(axis=None)
    assert rows.loc["2x1", "speedup"] > 0 and rows["node_memory_bytes"].gt(0).all()
    answer = read_json(tmp_path / "answer.json")
    document = (results / "study.md").read_text()
    assert answer["sentences"] and all(text in document for text in answer["sentences"])
    assert (tmp_path / answer["files"]["study"]).is_file()
    # The same call again has nothing to measure, and refuses nothing.
    again = call()
    assert again.returncode == 0 and "Submitted" in done.stderr, again.stderr
    assert "Submitted" not in again.stderr
