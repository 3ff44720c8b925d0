"""Sessions of a workflow: what fails, what dies with its session, and what a job has no time for.

The runs end at once, with made-up measurements, and `scontrol` says what a test says. What becomes
of their matches is shown by `tests/unit/test_session.py`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from escala.analysis.comparable import match_runs
from escala.analysis.measurements import measurements
from escala.core.console import NO_TIME
from escala.experiment import Experiment
from escala.measure.plan import Plan, session_file
from tests.calls import python
from tests.workflow.conftest import experiment_of
from tests.workflow.measured import FAKE

SIMULATED = {"type": "simulated", "rows": {"train": 40, "validation": 0, "test": 10}}
MOTIFS = {"kind": "motifs", "source": SIMULATED, "length": 20, "split": {"seeds": [4]}}
SETTINGS = experiment_of("small", SIMULATED, repeats=2) | {
    "datasets": {"small": MOTIFS},
    "workloads": {"tal1-cnn": {"epochs": 1, "save_model": False}},
}
RUNS = Experiment(SETTINGS, "e.yaml").runs
FILES = [run.file for run in RUNS]


class Called:
    """An experiment in a folder: one process, and two ranks over MPI and over Gloo, twice."""

    def __init__(self, folder: Path, snakemake: Callable):
        self.folder, self._snakemake, self.variables = folder, snakemake, {}

    def call(self, *targets: str, ok: bool = True, experiment: dict | None = None):
        """Call Snakemake for all runs, or for others, and return its end and its output."""
        variables = {"ESCALA_STORE": "off", "ESCALA_MEASURE_AGAIN": "0"} | self.variables
        files = targets or ["runs"]
        done = self._snakemake(*files, experiment=experiment, fails=not ok, **variables)
        return done.returncode, done.stdout + done.stderr

    def named(self, file: str, content: str) -> None:
        (self.folder / file).write_text(content)

    def runs(self) -> dict[str, dict]:
        """Return the content of each run that was measured, by its file."""
        found = {file: self.folder / file for file in FILES}
        return {file: json.loads(path.read_text()) for file, path in found.items() if path.exists()}

    def in_job(self, *targets: str, seconds: float = 3600, ran: float = 3600, **how: object):
        """Call in a job that ran and ends after some seconds."""
        now = datetime.now().replace(microsecond=0)
        begun, ends = (
            each.isoformat()
            for each in (now - timedelta(seconds=ran), now + timedelta(seconds=seconds))
        )
        lines = [f"SubmitTime={begun}", f"StartTime={begun} EndTime={ends}"]
        lines += ["NodeList=n1", "OverSubscribe=NO"]
        self.named("job", "".join(f"   {line}\n" for line in lines))
        return self.call(*targets, **how)

    def program(self, name: str, text: str) -> None:
        """Write a program of SLURM."""
        (programs := self.folder / "programs").mkdir(exist_ok=True)
        (programs / name).write_text(f"#!/bin/sh\n{text}\n")
        (programs / name).chmod(0o755)
        self.variables = {
            "PATH": f"{programs}:{os.environ['PATH']}", "SLURM_JOB_ID": "17",
            "SLURMD_NODENAME": "n1",
        }  # fmt: skip

    def allocate(self, *nodes: str) -> None:
        """Be in a job of some nodes."""
        hosts = f"hostnames) echo {' '.join(nodes)}"
        answers = f"job) cat {self.folder}/job;; {hosts};; *) echo slurm 22.05.8;;"
        self.program("scontrol", f'case "$2" in {answers} esac')


@pytest.fixture
def called(tmp_path: Path, snakemake: Callable, imported: Callable) -> Called:
    imported(FAKE)
    return Called(tmp_path, snakemake)


def test_a_run_that_failed_is_refused_until_it_is_mended_or_retried_with_its_reference(
    called, dry_run
):
    called.named("fails", "horovod-mpi")
    _, said = called.call(experiment=SETTINGS, ok=False)
    assert "escala retry results/small" in said, said
    first = called.runs()
    # The order is drawn anew for each repeat.
    begun = sorted(RUNS, key=lambda run: (called.folder / run.file).stat().st_mtime_ns)
    assert begun == Experiment(SETTINGS, "e.yaml").timed != RUNS
    turns = [first[run.file]["turn"] for run in begun]
    assert turns == 2 * [{"place": place, "of": 3} for place in (1, 2, 3)]

    mpi = next(run.file for run in RUNS if run.strategy == "horovod-mpi")
    code, said = dry_run(mpi)
    assert code != 0 and "ended as unavailable: mpirun is not installed. To run it again" in said
    mended = SETTINGS | {"variants": {"tuned": {"compression": "fp16"}}}
    code, said = dry_run(mpi, experiment=mended)
    assert code == 0 and "Measure tal1-cnn on small: horovod-mpi" in said, said

    called.named("fails", "")
    python("-m", "escala.command", "retry", called.folder / "results/small", check=True)
    called.call(experiment=SETTINGS)
    last = called.runs()
    changed = {file for file in FILES if last[file]["session"] != first[file]["session"]}
    assert changed == {run.file for run in RUNS if run.strategy != "horovod-gloo"}
    single, *others = (
        measurements(called.folder / run.file for run in RUNS if run.strategy == strategy)
        for strategy in ("single", "horovod-mpi", "horovod-gloo")
    )
    for runs in others:
        assert {run["repeat"] for run in match_runs(runs, single).runs} == {1, 2}
    assert "Nothing to be done" in dry_run("results/small/measurements.json", *FILES)[1]


def test_a_run_that_kills_its_session_has_failed_and_the_next_call_goes_on(called):
    first = Experiment(SETTINGS, "e.yaml").timed[0]
    called.named("dies", first.folder)
    _, said = called.call(experiment=SETTINGS, ok=False)
    assert f"escala: {first.file}: recorded as failed: its session was killed" in said
    _, said = called.call(ok=False)
    assert said.count(": ok\n") == 5 and "1 of 6 runs did not end ok" in said, said
    assert {file for file, run in called.runs().items() if run["status"] != "ok"} == {first.file}
    assert called.runs()[first.file]["status"] == "failed"
    # What stands as a failure is told also by a call that measures nothing.
    _, said = called.call("results/small/measurements.json", ok=False)
    assert f"{first.file} ended as failed" in said and "retry results/small" in said, said


def test_a_repeat_that_does_not_fit_waits_for_the_next_job(called):
    called.allocate("n1")
    first = [run.file for run in RUNS if run.repeat == 1]
    called.in_job(*first, experiment=SETTINGS)
    code, said = called.in_job(seconds=65, ok=False)
    assert code == NO_TIME, said
    assert "3 of 6 runs measured; the same call, or the same script, goes on." in said
    rows = json.loads((called.folder / "results/small/measurements.json").read_text())["runs"]
    assert {row["file"] for row in rows} == set(first), "its table stays, also of the first session"
    # The whole job is too short for a repeat: the same script would never measure one.
    _, said = called.in_job(seconds=65, ran=0, ok=False)
    assert "3 of 6 runs measured; submit it with more time" in said
    before = called.runs()
    assert set(before) == set(first)
    assert before[first[0]]["job"] | {"submitted": None, "started": None} == {
        "number": "17", "step": None, "submitted": None, "started": None, "exclusive": True,
        "nodes": ["n1"], "slurm": "22.05.8",
    }  # fmt: skip
    called.in_job()
    assert set(called.runs()) == set(FILES)
    assert before.items() <= called.runs().items(), "nothing is measured twice"


def test_links_are_calibrated_in_a_job_of_several_nodes(called):
    called.allocate("n1", "n2")
    across = [*SETTINGS["configurations"], {"strategy": "horovod-mpi", "layouts": ["2x1"]}]
    _, said = called.in_job("calibration", "-n", experiment=SETTINGS | {"configurations": across})
    assert "Measure small-calibration" in said
    plan = Plan.read(called.folder / session_file("small-calibration"))
    assert {("horovod-mpi", "2x1")} <= {(each.run.strategy, each.run.layout) for each in plan.runs}


def test_a_run_whose_node_the_job_has_lost_is_measured_by_the_next_job(called):
    called.allocate("n1", "n2")
    called.program("srun", f"exec test ! -e {called.folder}/fails")
    called.named("fails", "single")
    _, said = called.in_job(ok=False, experiment=SETTINGS)
    assert "no longer has n1, where nothing can be started" in said
    assert "ended as" not in said, "it is recorded"
    (called.folder / "fails").unlink()
    called.in_job()
    assert set(called.runs()) == set(FILES)
