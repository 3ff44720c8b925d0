"""A signal ends a process in order, also where a library drops the exception it raised."""

from __future__ import annotations

import io
import itertools
import signal
import subprocess
import time

import psutil
import pytest

from escala.core import console, interrupts
from escala.record import run as measurement
from escala.record import supervise as supervision
from escala.runtime import launch
from escala.runtime.launch import LOCAL
from escala.runtime.layout import Launch
from tests.calls import python

#: As a library does that catches whatever goes wrong while it is imported.
PROGRAM = """
import os, signal, sys
from escala.core import interrupts
interrupts.handle()
try:
    os.kill(os.getpid(), int(sys.argv[1]))
except:
    pass
interrupts.end_if_received()
print("a result")
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_is_not_forgotten_where_its_exception_is_dropped(number):
    done = python("-c", PROGRAM, number)
    assert (done.returncode, done.stdout) == (128 + number, "")
    assert "interrupted" in done.stderr


def test_a_line_is_written_together_with_its_end(monkeypatch):
    """Also by `python -u`: one that is killed between the two would leave its line open."""
    written = []

    class Terminal(io.RawIOBase):
        def writable(self):
            return True

        def write(self, data):
            written.append(bytes(data))
            return len(data)

    stream = io.TextIOWrapper(Terminal(), "utf-8", write_through=True)
    monkeypatch.setattr("sys.stderr", stream)
    console.say("one")
    monkeypatch.setattr(console, "EVERY", 0)
    console.progress("%s of %d")("two", 3)
    assert list(filter(None, written)) == [b"escala: one\n", b"two of 3\n"]


def cleans_up(number: int, **options: object) -> subprocess.CompletedProcess:
    """Run a script that is sent a signal, and again while it cleans up."""
    program = (
        "import os, signal\nfrom escala import cli\n"
        "def main():\n"
        f"    try: os.kill(os.getpid(), {number:d}); signal.sigtimedwait([], 1)\n"
        f"    finally: os.kill(os.getpid(), {number:d}); print('cleaned')\n"
        "raise SystemExit(cli.main(main))\n"
    )
    return python("-c", program, timeout=60, **options)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_script_cleans_up_after_a_signal_and_a_second_does_not_cut_it_short(number):
    done = cleans_up(number)
    assert (done.returncode, done.stdout) == (128 + number, "cleaned\n")


def test_a_signal_that_was_ignored_at_the_start_stays_ignored():
    """As under `nohup`."""
    done = cleans_up(signal.SIGHUP, preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert (done.returncode, done.stdout) == (0, "cleaned\n")


@pytest.fixture
def signalled(monkeypatch):
    """Receive SIGTERM, and drop the exception that it raises."""
    monkeypatch.setattr(interrupts, "_received", [])
    return lambda: interrupts._received.append(signal.SIGTERM)


def test_an_interrupted_run_leaves_no_result(
    small_split, request_for, tmp_path, monkeypatch, signalled
):
    collect = measurement.collect

    def collect_interrupted(*arguments):
        signalled()
        return collect(*arguments)

    monkeypatch.setattr(measurement, "collect", collect_interrupted)
    request = request_for("single", "1x1", workload="majority")
    with pytest.raises(SystemExit) as ended:
        measurement.measure(request, small_split, tmp_path / "run.json", 300)
    assert ended.value.code == 128 + signal.SIGTERM
    assert not (tmp_path / "run.json").exists() and not (tmp_path / "sessions").exists()


@pytest.fixture
def _leaves_no_child():
    """Require that a test leaves no child process alongside those of other tests' fixtures."""
    before = set(psutil.Process().children())
    yield
    assert set(psutil.Process().children()) <= before


@pytest.fixture
def supervise_sleepers(request_for, tmp_path, monkeypatch):
    """Supervise ranks that sleep, until a limit in seconds."""
    request = request_for("single", "1x1")
    knobs = request["knobs"] | {"threads": {"intra_op": 1}}
    plan = {"engine": "tensorflow", "knobs": knobs, "places": [], "instrument": None}
    ranks = ["sh", "-c", "exec sleep 600"]
    monkeypatch.setattr(launch, "_local", lambda *_: ranks)
    return lambda limit_seconds: supervision.supervise(
        request, plan, Launch(LOCAL, [], None), tmp_path, limit_seconds, lambda: None
    )


@pytest.mark.usefixtures("_leaves_no_child")
def test_ranks_are_ended_where_a_signal_arrived_while_they_started(
    supervise_sleepers, monkeypatch, signalled
):
    start = supervision.children.start

    def start_signalled(*arguments):
        signalled()
        return start(*arguments)

    monkeypatch.setattr(supervision.children, "start", start_signalled)
    with pytest.raises(SystemExit) as ended:
        supervise_sleepers(5)
    assert ended.value.code == 128 + signal.SIGTERM


@pytest.mark.usefixtures("_leaves_no_child")
@pytest.mark.parametrize("error", [SystemExit, OSError])
def test_ranks_and_job_steps_are_ended_where_a_look_at_them_fails(
    supervise_sleepers, monkeypatch, error
):
    def fail(stops):
        raise error

    ended = []
    monkeypatch.setattr(supervision._Stops, "wait", fail)
    monkeypatch.setattr(launch, "end_job_step", ended.append)
    with pytest.raises(error):
        supervise_sleepers(5)
    assert ended == [Launch(LOCAL, [], None)]


def test_the_seconds_are_told_for_which_a_process_of_a_run_was_stopped(
    supervise_sleepers, monkeypatch
):
    tree = "sleep 0.7; sleep 600 & kill -STOP $!; sleep 1.6; kill -CONT $!; sleep 0.4; kill $!"
    monkeypatch.setattr(launch, "_local", lambda *_: ["sh", "-c", tree])
    assert 1.0 <= supervise_sleepers(30).stopped_seconds < 2.6
    monkeypatch.setattr(launch, "_local", lambda *_: ["sleep", "1.2"])
    assert supervise_sleepers(30).stopped_seconds == 0


def test_a_limit_of_days_is_written_out(supervise_sleepers, monkeypatch):
    clock = itertools.count(0.0, 1_300_000.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    outcome = supervise_sleepers(1_200_000.0)
    assert (outcome.status, outcome.reason) == ("timeout", "not finished after 1200000 seconds")
