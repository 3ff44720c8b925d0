"""Probes are found by their files, and a wrong one is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from escala.core.errors import InputError
from escala.probes import PROBES, with_probe_settings
from tests.conftest import copy_project

LIGHT = """
import sys
from escala.probes import PROBES
assert all(probe.settings for probe in PROBES.values())
print(*({"tensorflow", "pandas", "horovod"} & set(sys.modules)))
"""
OWN = """
from escala.probes.base import Probe

class Own(Probe):
    settings = {}
"""


@pytest.fixture
def project(tmp_path) -> Path:
    return copy_project(tmp_path / "project")


def run(project: Path, code: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=project,
        env={"PYTHONPATH": str(project), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
    )


def test_a_probe_has_the_name_of_its_file():
    assert {"clocks", "resources", "timeline"} <= set(PROBES)
    for name, probe in PROBES.items():
        assert probe.name == name
        assert "enabled" in probe.settings["properties"]


def test_declarations_are_read_without_the_libraries_of_the_ranks(project):
    done = run(project, LIGHT)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "empty.py: []: does not define exactly one probe"),
        ("from escala.probes.timeline import Timeline\n", "empty.py: []: does not define exactly"),
        (OWN, ""),
        (OWN.replace("settings", "setting"), "empty.py: does not declare `settings`"),
    ],
)
def test_a_module_without_a_whole_probe_of_its_own_is_told(project, content, told):
    (project / "escala/probes/empty.py").write_text(content)
    done = run(project, "from escala.probes import PROBES; PROBES['empty']")
    assert told in done.stderr and bool(told) == ("core.errors.InputError: " in done.stderr)


def test_a_probe_cannot_take_the_key_of_something_else():
    assert with_probe_settings({"one": {}}, {"two": {"type": "null"}}) == {
        "one": {},
        "two": {"type": "null"},
    }
    with pytest.raises(InputError, match="one"):
        with_probe_settings({"one": {}}, {"one": {}})
