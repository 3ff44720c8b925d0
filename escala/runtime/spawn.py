"""Start the processes of a run: `python -m escala.runtime.spawn N COMMAND…`.

Each process finds its number in the environment. When a process fails, its number and its exit code
or signal are printed, and the other processes are ended. With `--hosts` an equal part of the
processes starts on each host, by ssh, in the environment and the folder of this process. With
`--private-network` the processes share a network that no other process reaches: TensorFlow's gRPC
server listens on every address, without authentication.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import json
import os
import shlex
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import Popen

from escala.core import children

PROCESS = "ESCALA_PROCESS"
#: The host of a process as the list of hosts names it, and the words that start a program there.
HOST, SSH = "ESCALA_NODE", "ESCALA_SSH"
_SSH = "ssh -o BatchMode=yes -o ConnectTimeout=20"
#: Run on a host. The environment comes by its input: others see the words of a process.
_REMOTE = """
import json, os, sys
folder, words, variables = json.loads(sys.stdin.buffer.readline())
os.chdir(folder)
kept = {name: value for name, value in os.environ.items() if name == "SSH_CONNECTION"}
os.execve(words[0], words, variables | kept)
"""

#: The longest time from the failure of a process that lost a connection to the end of the killed
#: process that closed this connection.
_KILL_SECONDS = 1.0
#: The exit code by which ssh tells of its own errors (man ssh).
_SSH_FAILED = 255

# linux/sched.h, linux/sockios.h, linux/if.h
_CLONE_NEWUSER, _CLONE_NEWNET = 0x10000000, 0x40000000
_SIOCSIFFLAGS, _IFF_UP, _IFF_RUNNING = 0x8914, 0x1, 0x40


def process_of_environment() -> int:
    """Return the number that the launcher gave this process, 0 without a launcher."""
    names = (PROCESS, "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
    return int(next((os.environ[name] for name in names if name in os.environ), 0))


def enter_private_network() -> None:
    """Move this process into a network namespace with only a loopback interface.

    Raises
    ------
    PermissionError : the kernel allows no network namespace, neither to this user nor in a user
        namespace.
    """
    user, group = os.getuid(), os.getgid()
    try:
        _unshare(_CLONE_NEWNET)
    except PermissionError:
        _unshare(_CLONE_NEWUSER | _CLONE_NEWNET)
        Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="utf-8")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="utf-8")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh22x", b"lo", _IFF_UP | _IFF_RUNNING)
        fcntl.ioctl(control, _SIOCSIFFLAGS, request)


def _unshare(flags: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(flags):
        number = ctypes.get_errno()
        raise PermissionError(number, f"unshare: {os.strerror(number)}")


def main() -> int:
    children.die_with_parent()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--private-network", action="store_true")
    parser.add_argument("--hosts", type=lambda text: text.split(","), help="start them there")
    text = "start one, by a shell, on the host that stands in the place of N, as ssh does"
    parser.add_argument("--agent", action="store_true", help=text)
    parser.add_argument("--first", type=int, default=0, help="number of the first process")
    text = "end all processes when the input ends"
    parser.add_argument("--with-input", action="store_true", help=text)
    parser.add_argument("processes", metavar="N")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    arguments = parser.parse_args()
    if arguments.agent:
        # What it starts there has numbers of its own.
        command = ["/bin/sh", "-c", f"unset {PROCESS}; {' '.join(arguments.command)}"]
        return start_on_hosts([arguments.processes], 1, command)
    if arguments.hosts:
        return start_on_hosts(arguments.hosts, int(arguments.processes), arguments.command)
    if arguments.private_network:
        try:
            enter_private_network()
        except PermissionError as error:
            print(
                f"warning: no private network ({error}): for the length of this run its "
                "servers accept calls from whoever reaches this machine",
                file=sys.stderr,
                flush=True,
            )
    started: list[Popen] = []
    if arguments.with_input:
        threading.Thread(target=_end_with_input, args=(started,), daemon=True).start()
    try:
        for number in range(arguments.first, arguments.first + int(arguments.processes)):
            environment = os.environ | {PROCESS: str(number)}
            started.append(children.start(arguments.command, environment, None))
        failed = first_to_fail(started)
    finally:
        children.stop(started)
    if failed is None:
        return 0
    code = started[failed].returncode
    how = f"on signal {-code}" if code < 0 else f"with code {code}"
    # A line is one write: other processes write into the same log.
    print(f"process rank {arguments.first + failed} exited {how}\n", end="", flush=True)
    return 1


def start_on_hosts(hosts: Sequence[str], processes: int, command: Sequence[str]) -> int:
    """Start an equal part of the processes on each host, and return an exit code.

    When one of them fails, or this process ends, the connections are closed, and what was started
    there ends.
    """
    per_host, rest = divmod(processes, len(hosts))
    if rest:
        raise ValueError(f"{processes} processes are no equal part on each of {len(hosts)} hosts")
    started = []
    script = f"exec {shlex.quote(sys.executable)} -I -S -c {shlex.quote(_REMOTE)}"
    try:
        for position, host in enumerate(hosts):
            words = [*shlex.split(os.environ.get(SSH) or _SSH), host, script]
            started.append(children.start(words, os.environ, None, stdin=subprocess.PIPE))
            spawn = [sys.executable, "-m", "escala.runtime.spawn", "--with-input"]
            spawn += [f"--first={position * per_host}", str(per_host), *command]
            plan = [str(Path.cwd()), spawn, os.environ | {HOST: host}]
            with contextlib.suppress(BrokenPipeError):
                started[-1].stdin.write(json.dumps(plan).encode() + b"\n")
                started[-1].stdin.flush()
        failed = first_to_fail(started)
    finally:
        children.stop(started)
    if failed is None:
        return 0
    # Other codes are those of the program there, which has told of its processes.
    if (code := started[failed].returncode) == _SSH_FAILED:
        print(f"{hosts[failed]}: ssh started nothing there, or lost the connection", flush=True)
    return code


def _end_with_input(started: Sequence[Popen]) -> None:
    """Kill processes when the input of this process ends, and end it."""
    while os.read(sys.stdin.fileno(), 1):
        pass
    children.stop(started, grace_seconds=0)
    os._exit(1)


def first_to_fail(started: Sequence[Popen]) -> int | None:
    """Wait until all processes have ended, or one has failed. Return the number of the failed one.

    The end of each process wakes this process. Failures that follow from the first failure come
    later, because the other processes must notice it first. But a process that the kernel kills
    closes its connections before its end can be seen: such a process is waited for, and named in
    place of a process that ended by itself.

    Parameters
    ----------
    started : all children of this process.
    """
    numbers = {process.pid: number for number, process in enumerate(started)}
    for _ in started:
        ended = numbers[os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT).si_pid]
        if (code := started[ended].wait()) > 0:
            latest = time.monotonic() + _KILL_SECONDS
            while time.monotonic() < latest and None in [process.poll() for process in started]:
                time.sleep(0.02)
            codes = [process.poll() for process in started]
            return codes.index(-signal.SIGKILL) if -signal.SIGKILL in codes else ended
        if code:
            return ended
    return None


if __name__ == "__main__":
    raise SystemExit(main())
