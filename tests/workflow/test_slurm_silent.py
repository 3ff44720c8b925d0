"""`executor: slurm` where SLURM does not answer: an error at once, and an end at the first signal.

SLURM's programs are scripts of the test's own; Snakemake and its plugin are real.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT
from tests.programs import eventually
from tests.workflow.conftest import SIMULATED, command, experiment_of

# Signals reach a process that starts by itself, and not one that asks for a fork.
pytestmark = pytest.mark.cold

# A fifo that nobody writes to; a program started here would not go away with the script.
HANGS = 'touch "{calls}/$(basename "$0")"; read _ < "{calls}/fifo"'
FAILS = "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1"
ANSWERS = "echo lab"


@pytest.fixture
def workflow(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen]]:
    """Start the workflow on a cluster whose programs answer as a test says."""
    folder, programs, calls = (tmp_path / name for name in ("work", "bin", "calls"))
    for each in (folder, programs, calls):
        each.mkdir()
    os.mkfifo(calls / "fifo")
    (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment_of("small", SIMULATED)))

    started = []

    def start(**answers: str) -> subprocess.Popen:
        silent = dict.fromkeys(("sbatch", "squeue", "scancel", "scontrol", "srun", "sacct"), FAILS)
        for name, script in (silent | answers).items():
            (programs / name).write_text(f"#!/bin/sh\n{script.format(calls=calls)}\n")
            (programs / name).chmod(0o755)
        process = subprocess.Popen(
            [*command(folder), "--profile", str(ROOT / "profiles" / "slurm")],
            env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()


def wait_for(path: Path, process: subprocess.Popen) -> None:
    assert eventually(lambda: path.exists() or process.poll() is not None, 120)
    assert path.exists(), process.stdout.read()


def test_a_controller_that_does_not_answer_is_an_error_before_anything_is_made(workflow, tmp_path):
    process = workflow(sinfo=FAILS, sbatch=HANGS)
    said, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "does not answer: slurm_load_partitions: Unable to contact slurm controller" in said
    assert "without --profile" in said
    assert "account" not in said
    assert not (tmp_path / "calls" / "sbatch").exists()
    assert not (tmp_path / "work" / "results").exists()


def test_ctrl_c_ends_the_wait_for_the_controller(workflow, tmp_path):
    process = workflow(sinfo=HANGS)
    wait_for(tmp_path / "calls" / "sinfo", process)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    # Without the signal the question times out after some seconds, and the error says so.
    assert "does not answer" not in said


@pytest.mark.sweep
def test_term_ends_a_submission_that_hangs(workflow, tmp_path):
    """The controller goes away between the question and the first job."""
    process = workflow(sinfo=ANSWERS, sbatch=HANGS)
    wait_for(tmp_path / "calls" / "sbatch", process)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode != 0
