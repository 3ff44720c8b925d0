"""Calls inside a job of SLURM: a repeat is begun if it fits, on nodes that the job still has.

The runs end at once, with made-up measurements, and `scontrol` says what a test says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from escala.core.console import NO_TIME
from escala.measure.plan import Plan, session_file
from tests.workflow.measured import FAKE
from tests.workflow.test_kept_matches import RUNS, SETTINGS

FILES = [run.file for run in RUNS]


class InJob:
    """Calls of Snakemake in a job of one node."""

    def __init__(self, folder: Path, snakemake: Callable):
        self.folder, self._snakemake = folder, snakemake
        (programs := folder / "programs").mkdir()
        said = f"job) cat {folder}/job;; hostnames) echo n1;; *) echo slurm 22.05.8;;"
        (programs / "scontrol").write_text(f'#!/bin/sh\ncase "$2" in {said} esac\n')
        (programs / "scontrol").chmod(0o755)
        self._variables = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "SLURM_JOB_ID": "17",
            "SLURMD_NODENAME": "n1",
            "ESCALA_STORE": "off",
            "ESCALA_MEASURE_AGAIN": "0",
        }

    def call(
        self, *files: str, seconds: float = 3600, ran: float = 3600, ok: bool = True,
        **options: object,
    ):  # fmt: skip
        """Call for runs, all of them by default, in a job that ran and ends after some seconds."""
        now = datetime.now().replace(microsecond=0)
        begun, ends = (
            each.isoformat()
            for each in (now - timedelta(seconds=ran), now + timedelta(seconds=seconds))
        )
        lines = [f"SubmitTime={begun}", f"StartTime={begun} EndTime={ends}"]
        lines += ["NodeList=n1", "OverSubscribe=NO"]
        (self.folder / "job").write_text("".join(f"   {line}\n" for line in lines))
        return self._snakemake(*(files or ["runs"]), fails=not ok, **self._variables, **options)

    def sessions(self) -> dict[str, str]:
        """Return the session of each run that was measured."""
        runs = {file: self.folder / file for file in FILES}
        return {
            file: json.loads(path.read_text())["session"]
            for file, path in runs.items()
            if path.exists()
        }


@pytest.fixture
def job(tmp_path: Path, snakemake: Callable, imported: Callable) -> InJob:
    imported(FAKE)
    return InJob(tmp_path, snakemake)


def test_a_repeat_that_does_not_fit_waits_for_the_next_job(job):
    first = [run.file for run in RUNS if run.repeat == 1]
    job.call(*first, experiment=SETTINGS)
    done = job.call(seconds=65, ok=False)
    assert done.returncode == NO_TIME, done.stdout + done.stderr
    assert "3 of 6 runs measured; the same call, or the same script, goes on." in done.stdout
    rows = json.loads((job.folder / "results/small/measurements.json").read_text())["runs"]
    assert {row["file"] for row in rows} == set(first), "its table stays, also of the first session"
    # The whole job is too short for a repeat: the same script would never measure one.
    done = job.call(seconds=65, ran=0, ok=False)
    assert "3 of 6 runs measured; submit it with more time" in done.stdout
    assert set(job.sessions()) == set(first)
    run = json.loads((job.folder / first[0]).read_text())
    assert run["job"] | {"submitted": None, "started": None} == {
        "number": "17", "step": None, "submitted": None, "started": None, "exclusive": True,
        "nodes": ["n1"], "slurm": "22.05.8",
    }  # fmt: skip
    before = job.sessions()
    job.call()
    assert set(job.sessions()) == set(FILES)
    assert before.items() <= job.sessions().items(), "nothing is measured twice"


def test_links_are_calibrated_in_a_job_of_several_nodes(job):
    scontrol = job.folder / "programs" / "scontrol"
    scontrol.write_text(scontrol.read_text().replace("echo n1", "echo n1 n2"))
    across = [*SETTINGS["configurations"], {"strategy": "horovod-mpi", "layouts": ["2x1"]}]
    done = job.call("calibration", "-n", experiment=SETTINGS | {"configurations": across})
    assert "Measure small-calibration" in done.stdout + done.stderr
    plan = Plan.read(job.folder / session_file("small-calibration"))
    assert {("horovod-mpi", "2x1")} <= {(each.run.strategy, each.run.layout) for each in plan.runs}


def test_a_run_whose_node_the_job_has_lost_is_measured_by_the_next_job(job):
    scontrol, srun = (job.folder / "programs" / name for name in ("scontrol", "srun"))
    scontrol.write_text(scontrol.read_text().replace("echo n1", "echo n1 n2"))
    srun.write_text(f"#!/bin/sh\nexec test ! -e {job.folder}/fails\n")
    srun.chmod(0o755)
    (job.folder / "fails").write_text("single")
    done = job.call(ok=False, experiment=SETTINGS)
    said = done.stdout + done.stderr
    assert "no longer has n1, where nothing can be started" in said
    assert "ended as" not in said, "it is recorded"
    (job.folder / "fails").unlink()
    job.call()
    assert set(job.sessions()) == set(FILES)
