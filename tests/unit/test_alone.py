"""One measurement at a time on a machine, once it is quiet."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from escala.core import alone
from escala.core.errors import InputError, Unavailable
from escala.measure import session
from tests.calls import python

HOLD = """
import sys, time
from escala.core import alone
with alone.hold({"experiment": "one", "run": "results/one/runs/x"}):
    print("held", flush=True)
    time.sleep(float(sys.argv[1]))
"""
RUN = {"experiment": "one", "run": "x"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(alone.VARIABLE, str(tmp_path))


@pytest.fixture
def holder() -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-c", HOLD, "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout.readline() == "held\n"
        yield started
        started.kill()


def test_the_file_tells_who_holds_the_machine_and_every_user_may_hold_it():
    for content in (None, "{", "[]", '{"pid": 1}', "x" * 9000):
        if content:
            alone.path().write_text(content)
        with alone.hold(RUN, wait=False):
            said = json.loads(alone.path().read_text())
            assert said["pid"] == os.getpid() and said["experiment"] == "one" and said["since"]
            assert stat.S_IMODE(alone.path().stat().st_mode) == 0o666
        assert alone.path().read_text() == ""


def test_a_second_one_waits_until_the_first_is_killed_and_a_node_of_several_does_not(holder):
    said = f"is held by process {holder.pid} of "
    with pytest.raises(Unavailable, match=said), alone.hold({}, wait=False):
        pass
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    second = subprocess.Popen([sys.executable, "-c", HOLD, "0"], text=True, **pipes)
    said = second.stderr.readline()
    assert f"held by process {holder.pid} of " in said
    assert "results/one/runs/x of the experiment one, since " in said
    time.sleep(0.5)
    assert second.poll() is None
    holder.kill()
    assert second.communicate(timeout=30)[0] == "held\n"
    assert second.returncode == 0


def test_a_run_within_a_run_is_refused_and_does_not_wait_for_ever():
    with alone.hold(RUN):
        inner = python("-c", HOLD, 0, timeout=60)
        assert inner.returncode and "start it outside of that run" in inner.stderr
        assert InputError.__name__ in inner.stderr
        # A process of the same number in another container is not the parent.
        held = json.loads(alone.path().read_text())
        alone.path().write_text(json.dumps(held | {"started": held["started"] - 1}))
        with pytest.raises(subprocess.TimeoutExpired):
            python("-c", HOLD, 0, timeout=5)


def test_without_shared_memory_runs_go_on_and_a_folder_that_the_user_names_must_exist(
    monkeypatch, capsys, tmp_path
):
    missing = str(tmp_path / "missing")
    monkeypatch.setenv(alone.VARIABLE, missing)
    with pytest.raises(InputError, match=alone.VARIABLE) as refused, alone.hold(RUN):
        pass
    assert (refused.value.value, capsys.readouterr().err) == (missing, "")
    monkeypatch.delenv(alone.VARIABLE)
    monkeypatch.setattr(alone, "FOLDER", missing)
    with alone.hold(RUN):
        pass
    [line] = capsys.readouterr().err.splitlines()
    assert missing in line


def load_of(*taken: float) -> type:
    """Return what stands for `Load`, of a machine of which others take so many cores each time."""
    left = iter(taken)

    class Stretch:
        def __init__(self, roots: list[int]):
            self.sums = {
                "seconds": 1.0, "busy": next(left), "counted": 2.0, "own": 0.0, "steal": 0.0,
                "throttled": None, "stretches": 1, "cores": 2,
            }  # fmt: skip

        def begin(self) -> None: ...
        def end(self) -> None: ...

    return Stretch


def test_it_waits_until_the_machine_is_quiet_but_not_longer_than_the_bound(monkeypatch, capsys):
    clock = SimpleNamespace(now=0.0)
    clock.monotonic = lambda: clock.now
    clock.sleep = lambda seconds: setattr(clock, "now", clock.now + seconds)
    monkeypatch.setattr(session, "time", clock)
    monkeypatch.setattr("escala.core.console.time", clock)
    monkeypatch.setattr(session, "Load", load_of(*[1.0] * 6, 0.0, 0.0, 0.9, 0.0, 0.05, 0.0, 9.0))
    assert session.wait_for_quiet() and clock.now == 12
    assert "waiting for quiet: 1.00 core of other processes" in capsys.readouterr().err
    monkeypatch.setenv(session.WAIT_VARIABLE, "20")
    monkeypatch.setattr(session, "Load", load_of(*[0.0, 0.7] * 100))
    began = clock.now
    assert not session.wait_for_quiet()
    assert 20 < clock.now - began <= 22
    assert "did not become quiet" in capsys.readouterr().err
    monkeypatch.setenv(session.WAIT_VARIABLE, "0")
    monkeypatch.setattr(session, "Load", load_of())
    assert session.wait_for_quiet()


@pytest.mark.parametrize(
    ("variable", "read"),
    [(session.VARIABLE, session.times_again), (session.WAIT_VARIABLE, session.wait_for_quiet)],
)
def test_what_is_no_number_is_refused(monkeypatch, variable, read):
    monkeypatch.setenv(variable, "often")
    with pytest.raises(InputError, match=variable):
        read()
