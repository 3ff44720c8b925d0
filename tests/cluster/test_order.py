"""How `profiles/slurm` submits jobs: how many, in which order, and on which nodes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from escala.core.files import read_json
from escala.experiment import load
from escala.measure import table
from escala.measure.plan import table_of
from tests.cluster.test_runs import snakemake
from tests.conftest import ROOT

pytestmark = [pytest.mark.cluster, pytest.mark.sweep]

#: Jobs here take seconds.
SOON = ("--seconds-between-status-checks", "2", "--slurm-init-seconds-before-status-checks", "2")
SUBMITTED = re.compile(r"SLURM jobid (\d+) \(log: \S+/slurm_logs/(\S+)/\d+\.log\)")


def experiment(folder: Path) -> dict:
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


def test_data_take_one_job_and_all_runs_another_that_measures_each_once(lab, tmp_path):
    """A run that is a target of its own has a job before or after that of all runs."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(experiment(programs)))
    found = load(tmp_path / "experiment.yaml")
    [across] = [run for run in found.timed if (run.layout, run.repeat) == ("2x1", 2)]
    done = snakemake(
        tmp_path,
        *("runs", across.file),
        *("--profile", str(ROOT / "profiles" / "slurm"), *SOON),
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    [(_, prepare), *measuring] = SUBMITTED.findall(said)
    assert prepare.startswith("group_prepare")
    jobs = {log.partition("/")[0]: number for number, log in measuring}
    assert jobs.keys() == {"rule_measure", "rule_run"}
    runs = [read_json(tmp_path / run.file) for run in found.timed]
    assert {run["status"] for run in runs} == {"ok"}
    assert {run["job"]["number"] for run in runs} <= {*jobs.values()}
    assert all(run["job"]["nodes"] == ["n1", "n2"] for run in runs if run["layout"] == "2x1")
    logs = [path.read_text() for path in (tmp_path / "results/ordered/logs").rglob("*.log")]
    ended = re.findall(r"^results/ordered/(.+): ok$", "\n".join(logs), re.MULTILINE)
    # None is measured twice, and those of a repeat follow each other.
    assert sorted(ended) == sorted(run.file.removeprefix("results/ordered/") for run in found.timed)
    began = sorted(runs, key=lambda run: run["started"])
    assert began[0]["repeat"] == began[1]["repeat"] != began[2]["repeat"] == began[3]["repeat"]


def test_each_number_of_nodes_has_a_job_that_measures_the_references_too(lab, tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    changes = {"repeats": 1, "jobs_by_nodes": True}
    settings = experiment(programs) | changes
    settings["configurations"][1]["layouts"] = ["1x1", "2x1"]
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(settings))
    call = ("runs", "--profile", str(ROOT / "profiles" / "slurm"))
    done = snakemake(tmp_path, *call, *SOON)
    assert done.returncode == 0, done.stdout + done.stderr
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
