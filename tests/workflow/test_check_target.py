"""`escala check` on this machine."""

from __future__ import annotations

import subprocess
import sys

from escala.check.machine import CHECKS
from escala.core.errors import WIDTH
from tests.conftest import ROOT


def test_the_check_answers_for_each_ability():
    command = [sys.executable, "-m", "scripts.check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    answered = {
        each.name: line[WIDTH:].split()[0]
        for each in CHECKS
        for line in done.stdout.splitlines()
        if line.startswith(f"{each.name:<{WIDTH}}")
    }
    assert set(answered) == {each.name for each in CHECKS}
    assert set(answered.values()) <= {"yes", "no"}
    assert answered["MPI"] == "yes", "Horovod needs it, and the environment brings it"
    for line in done.stdout.splitlines():
        assert " no   " not in line or "Remedy: " in line
