"""The lab, put up once for all tests that ask for it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from escala.lab import cluster, read_lab
from escala.lab.state import Lab
from tests.conftest import ROOT

DAEMONS = {"munged", "slurmctld", "slurmd", "slurmstepd"}


def lab_command(*words: str) -> list[str]:
    return [sys.executable, "-m", "escala.command", "lab", *words]


def run_lab(*words: str, **options) -> subprocess.CompletedProcess:
    """Call `escala lab`."""
    return subprocess.run(
        lab_command(*words), cwd=ROOT, capture_output=True, text=True, timeout=120, **options
    )


def output(*command: str) -> str:
    """Run a command that has to succeed, and return what it printed."""
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def machine() -> dict[str, list[str]]:
    """Return what a lab could leave behind: interfaces, mounts, daemons, files."""
    folders = [Path(name) for name in ("/run", "/etc/slurm", "/etc/munge", "/var/spool")]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return {
        "interfaces": sorted(psutil.net_if_stats()),
        "mounts": sorted(
            path for path in (line.split()[4] for line in mounts) if not path.startswith("/tmp")
        ),
        "daemons": sorted(
            str(process.pid) for process in psutil.process_iter() if _is_daemon(process)
        ),
        # Any `mount` on the machine, also one of another test, makes /run/mount and leaves it.
        "files": sorted(
            str(path)
            for folder in folders
            for path in folder.iterdir()
            if path != Path("/run/mount")
        ),
    }


def _is_daemon(process: psutil.Process) -> bool:
    # It may end while it is looked at, and then waits for the machine's first process to notice.
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name() in DAEMONS and process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture(scope="session")
def lab_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that is there once a lab that is up is that of the tests, for all workers."""
    folder = tmp_path_factory.getbasetemp()
    return (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "lab-of-tests"


def claim_machine(lab_of_tests: Path) -> None:
    """Refuse a user's lab, which tests would change."""
    if cluster.any_process_runs() and not lab_of_tests.exists():
        pytest.fail("a lab is up, which tests would change: escala lab down")
    lab_of_tests.touch()


@pytest.fixture(scope="session")
def bare_machine(lab_of_tests: Path) -> dict[str, list[str]]:
    """Return the state of the machine before there is a lab."""
    claim_machine(lab_of_tests)
    # Tests that were killed may have left one without a process.
    cluster.down()
    return machine()


@pytest.fixture(scope="session")
def put_up(bare_machine: dict) -> Iterator[Callable[[], Lab]]:
    """Return the one lab of all tests, two nodes with a core each; put it up where it is down."""
    yield lambda: read_lab() or cluster.up(2, 1)
    cluster.down()
    assert machine() == bare_machine, "nothing is left of it"


@pytest.fixture
def lab(put_up: Callable[[], Lab]) -> Lab:
    return put_up()


@pytest.fixture
def no_lab(put_up: Callable[[], Lab]) -> Iterator[None]:
    """No lab at first, nor afterwards."""
    cluster.down()
    yield
    cluster.down()
