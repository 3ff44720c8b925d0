"""Processes end with the one that started them, in order, however it ends."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest

from escala.core import children, interrupts
from escala.record import run as measurement
from escala.record import supervise as supervision
from escala.runtime import launch
from escala.runtime.launch import LOCAL
from escala.runtime.layout import Launch
from tests.calls import python
from tests.programs import eventually


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def written(*files: Path) -> list[int]:
    assert eventually(lambda: all(f.exists() and f.read_text().endswith("\n") for f in files))
    return [int(f.read_text()) for f in files]


def ended(*pids: int) -> bool:
    try:
        return eventually(lambda: not any(map(running, pids)), 20)
    finally:
        for pid in filter(running, pids):
            os.kill(pid, signal.SIGKILL)


#: A shell whose children ignore SIGTERM, one of them in a session of its own.
STUBBORN = """
bash -c 'trap "" TERM; echo $$ > {0}/child; while :; do sleep 0.1; done' &
setsid bash -c 'trap "" TERM; echo $$ > {0}/apart; while :; do sleep 0.1; done' &
echo $$ > {0}/shell
wait
"""
#: One that starts a session during the grace time.
LATE = """
trap 'setsid sleep 600 & echo $! > {0}/apart' TERM
sleep 600 & echo $! > {0}/child
echo $$ > {0}/shell
while :; do sleep 0.05; done
"""


@pytest.mark.parametrize(("script", "grace_seconds"), [(STUBBORN, 0.2), (LATE, 1)])
def test_stop_ends_the_whole_tree(script, grace_seconds, tmp_path):
    script = script.format(tmp_path)
    process = children.start(["bash", "-c", script], os.environ, tmp_path / "log")
    pids = written(tmp_path / "shell", tmp_path / "child")
    assert all(map(running, pids))
    children.stop([process], grace_seconds=grace_seconds)
    assert process.returncode is not None
    assert ended(*pids, *written(tmp_path / "apart"))


def test_stop_lets_a_process_tidy_up(tmp_path):
    program = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit('tidied'))\n"
        f"pathlib.Path('{tmp_path}/ready').touch()\n"
        "time.sleep(600)"
    )
    process = children.start([sys.executable, "-c", program], os.environ, tmp_path / "log")
    assert eventually((tmp_path / "ready").exists)
    children.stop([process], grace_seconds=20)
    assert process.returncode == 1
    assert (tmp_path / "log").read_text() == "tidied\n"


def test_start_gives_only_the_environment_asked_for_and_appends_both_streams(tmp_path):
    log = tmp_path / "log"
    log.write_text("before\n")
    program = (
        "import os, sys; print(os.environ.get('ONLY'), flush=True);"
        "print('HOME' in os.environ, file=sys.stderr); print(sys.stdin.read())"
    )
    command = [sys.executable, "-c", program]
    assert children.start(command, {"ONLY": "this"}, log).wait() == 0
    assert log.read_text() == "before\nthis\nFalse\n\n"


def test_a_child_dies_with_a_parent_that_was_killed(tmp_path):
    program = (
        "import os, pathlib, time\n"
        "from escala.core import children\n"
        f"folder = pathlib.Path('{tmp_path}')\n"
        "child = children.start(['sleep', '600'], os.environ, folder / 'log')\n"
        "(folder / 'child').write_text(f'{child.pid}\\n')\n"
        "time.sleep(600)"
    )
    parent = subprocess.Popen([sys.executable, "-c", program])
    [orphan] = written(tmp_path / "child")
    assert running(orphan)
    parent.kill()
    parent.wait()
    assert ended(orphan)


def test_a_signal_while_a_process_is_started_ends_what_that_one_started():
    """The parent is slow to notice that its child runs, and gets the signal in between."""
    code = """
import os, subprocess, sys, time
from escala.core import children, interrupts

class Slow(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        time.sleep(1)

subprocess.Popen = Slow
interrupts.handle()
children.start(["sh", "-c", "sleep 60 & kill -INT $PPID; wait"], os.environ, None)
"""
    # What still runs would keep the pipe open.
    done = subprocess.run([sys.executable, "-c", code], stderr=subprocess.PIPE, timeout=30)
    assert done.returncode == 128 + signal.SIGINT
    assert b"interrupted" in done.stderr


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


def cleans_up(number: int, **options: object) -> subprocess.CompletedProcess:
    program = (
        "import os, signal\nfrom escala import cli\n"
        "def main():\n"
        f"    try: os.kill(os.getpid(), {number:d}); signal.sigtimedwait([], 1)\n"
        f"    finally: os.kill(os.getpid(), {number:d}); print('cleaned')\n"
        "raise SystemExit(cli.main(main))\n"
    )
    return python("-c", program, timeout=60, **options)


def test_a_script_cleans_up_after_a_signal_and_a_second_does_not_cut_it_short():
    for number in (signal.SIGINT, signal.SIGHUP):
        done = cleans_up(number)
        assert (done.returncode, done.stdout) == (128 + number, "cleaned\n")
    # One that was ignored at the start stays so, as under `nohup`.
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


def start_instead(monkeypatch, *words):
    monkeypatch.setattr(launch, "command_line", lambda *_: nullcontext(([*words], {})))


@pytest.fixture
def supervise_sleepers(request_for, tmp_path, monkeypatch):
    request = request_for("single", "1x1")
    knobs = request["knobs"] | {"threads": {"intra_op": 1}}
    plan = {"engine": "tensorflow", "knobs": knobs, "places": [], "instrument": None}
    start_instead(monkeypatch, "sh", "-c", "exec sleep 600")
    return lambda limit_seconds: supervision.supervise(
        request, plan, Launch(LOCAL, [], None), tmp_path, limit_seconds, lambda: None
    )


@pytest.mark.parametrize("error", [SystemExit, OSError, None])
def test_ranks_are_ended_where_a_look_at_them_fails_or_a_signal_arrives_as_they_start(
    supervise_sleepers, monkeypatch, signalled, error
):
    before, start = set(psutil.Process().children()), supervision.children.start
    steps = []

    def fail(stops):
        raise error

    def start_signalled(*arguments):
        signalled()
        return start(*arguments)

    if error:
        monkeypatch.setattr(supervision._Stops, "wait", fail)
    else:
        monkeypatch.setattr(supervision.children, "start", start_signalled)
    monkeypatch.setattr(launch, "end_job_step", steps.append)
    with pytest.raises(error or SystemExit) as raised:
        supervise_sleepers(5)
    assert error or raised.value.code == 128 + signal.SIGTERM
    assert steps == [Launch(LOCAL, [], None)]
    assert set(psutil.Process().children()) <= before


def test_the_seconds_are_told_for_which_a_process_of_a_run_was_stopped(
    supervise_sleepers, monkeypatch
):
    tree = "sleep 0.7; sleep 600 & kill -STOP $!; sleep 1.6; kill -CONT $!; sleep 0.4; kill $!"
    start_instead(monkeypatch, "sh", "-c", tree)
    assert 1.0 <= supervise_sleepers(30).stopped_seconds < 2.6
    start_instead(monkeypatch, "sleep", "1.2")
    assert supervise_sleepers(30).stopped_seconds == 0


def test_a_limit_of_days_is_written_out(supervise_sleepers, monkeypatch):
    clock = itertools.count(0.0, 1_300_000.0)
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    outcome = supervise_sleepers(1_200_000.0)
    assert (outcome.status, outcome.reason) == ("timeout", "not finished after 1200000 seconds")
