"""Processes end with the one that started them, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from escala.core import children
from tests.programs import eventually

PATIENCE_SECONDS = 20.0
# A shell whose child ignores SIGTERM: each writes its process id to its own file, then waits.
STUBBORN = """
bash -c 'trap "" TERM; echo $$ > {0}/child; while :; do sleep 0.1; done' &
{1} bash -c 'trap "" TERM; echo $$ > {0}/apart; while :; do sleep 0.1; done' &
echo $$ > {0}/shell
wait
"""


def running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def end(*pids: int) -> None:
    for pid in filter(running, pids):
        os.kill(pid, signal.SIGKILL)


def written(*files: Path) -> list[int]:
    assert eventually(lambda: all(f.exists() and f.read_text().endswith("\n") for f in files))
    return [int(f.read_text()) for f in files]


@pytest.fixture
def tree(tmp_path):
    """A shell with two children that ignore SIGTERM, one of them in a session of its own."""
    script = STUBBORN.format(tmp_path, "setsid")
    process = children.start(["bash", "-c", script], os.environ, tmp_path / "log")
    pids = written(*(tmp_path / name for name in ("shell", "child", "apart")))
    yield process, pids
    end(process.pid, *pids)
    process.wait()


def test_stop_ends_the_whole_tree_also_what_ignores_sigterm(tree):
    process, pids = tree
    assert all(map(running, pids))
    children.stop([process], grace_seconds=0.2)
    assert process.returncode is not None
    assert eventually(lambda: not any(map(running, pids)))


def test_stop_ends_a_session_that_starts_during_the_grace_time(tmp_path):
    late = f"setsid sleep 600 & echo $! > {tmp_path}/late"
    script = f"trap '{late}' TERM; echo $$ > {tmp_path}/shell; while :; do sleep 0.05; done"
    process = children.start(["bash", "-c", script], os.environ, tmp_path / "log")
    written(tmp_path / "shell")
    children.stop([process], grace_seconds=1)
    [pid] = written(tmp_path / "late")
    try:
        assert eventually(lambda: not running(pid))
    finally:
        end(pid)


def test_stop_lets_a_process_tidy_up(tmp_path):
    program = (
        "import pathlib, signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit('tidied'))\n"
        f"pathlib.Path('{tmp_path}/ready').touch()\n"
        "time.sleep(600)"
    )
    process = children.start([sys.executable, "-c", program], os.environ, tmp_path / "log")
    assert eventually((tmp_path / "ready").exists)
    children.stop([process], grace_seconds=PATIENCE_SECONDS)
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
    try:
        assert running(orphan)
        parent.kill()
        parent.wait()
        assert eventually(lambda: not running(orphan))
    finally:
        end(orphan)


def test_a_child_whose_parent_died_before_its_request_is_killed():
    program = (
        "import os, sys\n"
        "from escala.core.children import die_with_parent\n"
        "die_with_parent({})\n"
        "sys.exit(3)"
    )
    ends = [
        subprocess.run([sys.executable, "-c", program.format(parent)]).returncode
        for parent in ("os.getppid()", "os.getpid()")
    ]
    assert ends == [3, -signal.SIGKILL], "the second names a process that is not its parent"


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
