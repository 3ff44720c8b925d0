"""How `profiles/slurm` submits the jobs of an experiment: in which order, and how many."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path

import pytest
import yaml

from escala.experiment import load
from tests.cluster.conftest import output
from tests.cluster.test_runs import snakemake
from tests.conftest import ROOT

pytestmark = pytest.mark.cluster

SUBMITTED = re.compile(r"SLURM jobid (\d+) \(log: \S+/(\S+)/\d+\.log\)")


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


def moment(job: str, which: str) -> datetime:
    shown = output("scontrol", "show", "job", job)
    return datetime.fromisoformat(re.search(rf"{which}=(\S+)", shown)[1])


def test_data_take_one_job_and_runs_are_submitted_in_order_one_repeat_at_a_time(lab, tmp_path):
    programs = tmp_path / "programs"
    programs.mkdir()
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(experiment(programs)))
    found = load(tmp_path / "experiment.yaml")
    done = snakemake(
        tmp_path,
        *(run.file for run in found.timed),
        *("--profile", str(ROOT / "profiles" / "slurm"), "--seconds-between-status-checks", "2"),
    )
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    [(_, prepare), *submitted] = SUBMITTED.findall(said)
    assert prepare.startswith("group_prepare")
    names = [
        "_".join(run.file.removeprefix("results/").replace("runs/", "", 1).split("/")[:-1])
        for run in found.timed
    ]
    assert len(names) == 4
    assert [name for _, name in submitted] == names
    first, second = (
        [job for job, name in submitted if name.endswith(repeat)] for repeat in ("rep1", "rep2")
    )
    over = max(moment(job, "EndTime") for job in first)
    assert all(moment(job, "SubmitTime") >= over for job in second)
