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
