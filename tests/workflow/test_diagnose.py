"""A timeline of two real ranks that import nothing of Escala, one of which was killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from escala.runtime import launch, mpi
from escala.runtime.layout import Layout, places
from escala.strategies import STRATEGIES
from tests.calls import python
from tests.conftest import KNOBS, ROOT

STEPS = 12


def train(timeline: Path) -> None:
    """Run the script on two ranks as a user does: without the environment of the project."""
    strategy, layout = STRATEGIES["horovod-mpi"], Layout.parse("1x2")
    started = launch.survey(layout, strategy, None, "auto")
    command = [
        sys.executable, str(ROOT / "tests/workflow/plain_horovod.py"), str(timeline), str(STEPS),
    ]  # fmt: skip
    at = places(layout, strategy, KNOBS, started.nodes)
    with launch.command_line(started, strategy, at, command) as (line, added):
        done = subprocess.run(
            line,
            env=os.environ | mpi.own_mpi() | added | {"OMPI_MCA_mpi_yield_when_idle": "1"},
            cwd=timeline.parent,
            capture_output=True,
            text=True,
            timeout=200,
        )
    assert done.returncode, done.stdout + done.stderr


def said_of(timeline: Path) -> str:
    done = python("-m", "escala.command", "diagnose", timeline)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{STEPS - 1} steps after the first; a step takes ")
    assert "The largest one has 513.0 KiB" in done.stdout
    return done.stdout


def test_a_plain_script_is_diagnosed(tmp_path):
    """Horovod ends the file whenever nothing is left to write, so a kill may leave it closed."""
    timeline = tmp_path / "timeline.json"
    train(timeline)
    assert "At the end, NEGOTIATE_ALLREDUCE of " in said_of(timeline)
    timeline.write_bytes(timeline.read_bytes()[:-20])
    assert "Horovod did not end the file" in said_of(timeline)
