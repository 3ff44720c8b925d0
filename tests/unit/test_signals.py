"""A signal ends a process in order, also where a library drops the exception it raised."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from tests.conftest import ROOT

#: As a library does that catches whatever goes wrong while it is imported.
PROGRAM = """
import os, signal, sys
from escala import interrupts
interrupts.handle()
try:
    os.kill(os.getpid(), int(sys.argv[1]))
except:
    pass
interrupts.end_if_received()
print("a result")
"""


def run(number: int) -> subprocess.CompletedProcess:
    command = [sys.executable, "-c", PROGRAM, str(number)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_not_forgotten_where_its_exception_is_dropped(number):
    done = run(number)
    assert (done.returncode, done.stdout) == (128 + number, "")
    assert "interrupted" in done.stderr


def test_without_a_signal_work_goes_on():
    assert run(0).stdout == "a result\n"
