"""What every test finds: no setting of the user's, and the machine shared with others or alone."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.conftest import LOCK, ROOT

# Tests of a suite that has the same conftest, the one to run alone first.
TESTS = f"""
import fcntl, os, subprocess, sys
import pytest

done = []

def free(config, how):
    with open(config.cache.mkdir("escala") / {LOCK!r}, "w") as lock:
        try:
            fcntl.flock(lock, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True

@pytest.mark.alone
def test_alone(pytestconfig):
    assert done, "it comes last"
    assert not free(pytestconfig, fcntl.LOCK_SH)

def test_others_may_run_beside(pytestconfig):
    assert free(pytestconfig, fcntl.LOCK_SH) and not free(pytestconfig, fcntl.LOCK_EX)
    done.append(1)

def test_settings():
    ask = "import os; print(*sorted(n for n in os.environ if n.startswith(('ESCALA', 'NCBI'))))"
    said = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True).stdout
    own = ["ESCALA_FOLDERS", "ESCALA_LOCKS", "ESCALA_MEASURE_DISTURBED"]
    assert said.split() == [*own, "ESCALA_REQUIRE"]
"""


def test_settings_of_the_user_are_removed_and_a_test_runs_alone_if_it_is_to(tmp_path):
    (tmp_path / "unit").mkdir()
    (tmp_path / "unit" / "test_it.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    theirs = {"ESCALA_STORE": "/theirs", "ESCALA_SESSION": "1", "NCBI_API_KEY": "secret"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.conftest"],
        cwd=tmp_path,
        env={k: v for k, v in os.environ.items() if not k.startswith(("ESCALA", "PYTEST"))}
        | theirs
        | {"ESCALA_REQUIRE": "browser", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert "3 passed" in done.stdout, done.stdout + done.stderr
