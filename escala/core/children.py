"""Start child processes that die with their parent, and stop them."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from escala.core import console
from escala.core.environment import SESSION_VARIABLE
from escala.core.proc import stat

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
#: A variable with a descriptor, in processes that `mpirun` of MPICH or Intel MPI starts.
_PMI = "PMI_FD"
# Loaded here, because loading a library between fork and exec can deadlock a process with threads.
_LIBC = ctypes.CDLL(None, use_errno=True)


def capture(words: Iterable[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program without input to its end. Its output is text, whatever the encoding.

    Raises
    ------
    OSError : the program cannot be started.
    subprocess.TimeoutExpired : the program takes longer than `timeout`.
    """
    return subprocess.run(
        [*words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        **options,
    )


def die_with_parent(parent: int | None = None) -> None:
    """Ask the kernel to kill this process when the thread that started it ends.

    The request is for this process only. Its children live on unless they make the request, too.

    Parameters
    ----------
    parent : process id of the parent. If the parent has ended already, this process is killed at
        once, because the kernel would no longer do so. None: this is not checked.

    Raises
    ------
    OSError : the kernel refuses.
    """
    if _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if parent not in (None, os.getppid()):
        os.kill(os.getpid(), signal.SIGKILL)


def call_escala(*words: str, stdout: int | None = None) -> int:
    """Call a subcommand of `escala` as from a shell, and return its exit code."""
    command = [sys.executable, "-m", "escala.command", *words]
    # A call has a session of its own.
    environment = {name: value for name, value in os.environ.items() if name != SESSION_VARIABLE}
    process = subprocess.Popen(
        command,
        env=environment,
        stdout=stdout,
        preexec_fn=functools.partial(die_with_parent, os.getpid()),
    )
    try:
        return console.shell_code(process.wait())
    finally:
        # On Ctrl-C the subcommand gets the signal, too. It ends its runs before it ends.
        if process.poll() is None:
            process.terminate()
            process.wait()


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    output: Path | int | None,
    folder: Path | None = None,
    stdin: int = subprocess.DEVNULL,
) -> subprocess.Popen:
    """Start a command as the leader of a new process group.

    The command is killed when the calling thread ends. If a signal ends this call, the group is
    stopped.

    Parameters
    ----------
    output : file to append its stdout and stderr to, or an open descriptor. None: the command
        inherits stdout and stderr of this process.
    folder : its working directory. None: the working directory of this process.
    stdin : descriptor of its input.
    """
    with contextlib.ExitStack() as stack:
        is_file = isinstance(output, Path)
        log = stack.enter_context(open(output, "ab")) if is_file else output
        started, parent = [], os.getpid()

        def set_up_child() -> None:
            die_with_parent(parent)
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

        try:
            # If a signal handler raised inside Popen, nobody would know the new process.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                process = subprocess.Popen(
                    command,
                    cwd=folder,
                    env=dict(environment),
                    stdin=stdin,
                    stdout=log,
                    stderr=None if log is None else subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=[int(environment[_PMI])] if _PMI in environment else [],
                    preexec_fn=set_up_child,
                )
                started.append(process)
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        except BaseException:
            stop(started)
            raise
        return process


#: The code of a guard process. When its input ends without a word, the guard kills all processes in
#: whose environment a variable is set.
_GUARD = """
import os, sys, time
if os.fork():
    os._exit(0)
os.setsid()
well, variable, tries = sys.stdin.read(), os.fsencode(sys.argv[1]), 100
while tries and not well:
    tries -= 1
    killed = False
    for number in filter(str.isdecimal, os.listdir("/proc")):
        try:
            with open(f"/proc/{number}/environ", "rb") as file:
                if variable in file.read().split(b"\\0"):
                    os.kill(int(number), 9)
                    killed = True
        except OSError:
            pass
    if not killed:
        break
    time.sleep(0.05)
"""


@contextlib.contextmanager
def guard_processes(variable: str) -> Iterator[None]:
    """Kill all processes that have a variable if this process is killed inside the context.

    Parameters
    ----------
    variable : name and value, `NAME=VALUE`, in the environment of the processes.
    """
    guard = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _GUARD, variable],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    guard.wait()  # The child of this process is the guard.
    try:
        yield
    finally:
        with contextlib.suppress(BrokenPipeError):
            guard.communicate(b"well")


def stop(processes: Sequence[subprocess.Popen], grace_seconds: float = 3.0) -> None:
    """Send SIGTERM to the processes' groups, and then SIGKILL.

    When `processes` have ended, or after the grace time, SIGKILL goes to the remaining processes of
    their groups. Descendants outside these groups get only SIGKILL. They are listed before SIGTERM
    and again before SIGKILL. A descendant whose parent ended before it was listed is missed.
    """
    listed = family(process.pid for process in processes if process.poll() is None)
    _signal_groups(processes, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while any(p.poll() is None for p in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    listed += family(process.pid for process in listed)
    _signal_groups(processes, signal.SIGKILL)
    for process in listed:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    for process in processes:
        process.wait()
    # A process that gets SIGKILL still runs for a moment.
    psutil.wait_procs(listed, timeout=grace_seconds)


def family(roots: Iterable[int]) -> list[psutil.Process]:
    """Return processes and all their descendants; those that have ended are left out."""
    processes = []
    for root in roots:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(root)
            processes += [process, *process.children(recursive=True)]
    return processes


def states(root: int) -> Iterator[str]:
    """Yield the state of a process and of its descendants, such as `S` or `T` (man 5 proc)."""
    with contextlib.suppress(OSError):
        yield stat(Path(f"/proc/{root}"))[0]
        started = Path(f"/proc/{root}/task/{root}/children").read_text(encoding="utf-8")
        for child in started.split():
            yield from states(int(child))


def _signal_groups(processes: Iterable[subprocess.Popen], number: int) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
