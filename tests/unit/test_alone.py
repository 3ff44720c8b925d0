"""One measurement at a time on a machine."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from escala.core import alone
from escala.core.errors import InputError, Unavailable
from tests.calls import python

HOLD = """
import sys, time
from escala.core import alone
with alone.hold({"experiment": "one", "run": "results/one/runs/x"}):
    print("held", flush=True)
    time.sleep(float(sys.argv[1]))
"""


def holder(seconds: float = 60) -> subprocess.Popen:
    """Return a process that holds the lock."""
    command = [sys.executable, "-c", HOLD, str(seconds)]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert started.stdout.readline() == "held\n"
    return started


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(alone.VARIABLE, str(tmp_path))
    return tmp_path


def test_the_file_tells_who_holds_the_machine_and_every_user_may_hold_it():
    with alone.hold({"experiment": "one", "run": "x"}):
        said = json.loads(alone.path().read_text())
        assert said["pid"] == os.getpid() and said["experiment"] == "one" and said["since"]
        assert stat.S_IMODE(alone.path().stat().st_mode) == 0o666
    assert alone.path().read_text() == ""


def test_a_second_one_waits_until_the_first_is_killed(capfd):
    first = holder()
    try:
        second = subprocess.Popen(
            [sys.executable, "-c", HOLD, "0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True,
        )  # fmt: skip
        said = second.stderr.readline()
        assert f"held by process {first.pid} of " in said
        assert "results/one/runs/x of the experiment one, since " in said
        time.sleep(0.5)
        assert second.poll() is None
    finally:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert second.communicate(timeout=30)[0] == "held\n"
    assert second.returncode == 0


def test_a_node_of_several_does_not_wait():
    first = holder()
    try:
        said = f"is held by process {first.pid} of "
        with pytest.raises(Unavailable, match=said), alone.hold({}, wait=False):
            pass
    finally:
        first.kill()
        first.wait()


def test_a_run_within_a_run_is_refused_and_does_not_wait_for_ever():
    with alone.hold({"experiment": "one", "run": "x"}):
        inner = python("-c", HOLD, 0, timeout=60)
    assert inner.returncode and "start it outside of that run" in inner.stderr
    assert InputError.__name__ in inner.stderr


def test_a_process_of_the_same_number_in_another_container_is_not_the_parent():
    with alone.hold({"experiment": "one", "run": "x"}):
        held = json.loads(alone.path().read_text())
        alone.path().write_text(json.dumps(held | {"started": held["started"] - 1}))
        with pytest.raises(subprocess.TimeoutExpired):
            python("-c", HOLD, 0, timeout=5)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', "x" * 9000])
def test_a_file_that_tells_nothing_holds_nothing(content):
    alone.path().write_text(content)
    with alone.hold({"experiment": "one", "run": "x"}, wait=False):
        assert json.loads(alone.path().read_text())["pid"] == os.getpid()


def test_without_a_folder_runs_go_on_and_say_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv(alone.VARIABLE, str(tmp_path / "missing"))
    with alone.hold({}):
        pass
    assert "no lock on this machine" in capsys.readouterr().err
