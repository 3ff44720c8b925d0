"""Start and stop the daemons of the lab: `munged`, `slurmctld`, and a `slurmd` per node.

A daemon goes to the background by itself. It has the mark of the lab in its environment. So it is
recognised even if the program that started it was killed at once.
"""

from __future__ import annotations

import errno
import os
import secrets
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from escala.lab.network import inside, namespaces
from escala.lab.state import FOLDER, LOGS, Node, call, read_claim, require_lab

MUNGE = FOLDER / "munge"
SOCKET = MUNGE / "socket"
HOSTS = FOLDER / "hosts"

_MARK = "ESCALA_LAB"
#: Host name of the scheduler. The scheduler listens only on the address of this name.
SCHEDULER = "scheduler"

_START_SECONDS, _STOP_SECONDS = 30, 5
#: Seconds in which all processes of the lab must have ended.
DOWN_SECONDS = 60

_ENTER = 'hostname "$0" && mount --bind "$1" /etc/hosts && shift && exec "$@"'


def start_munge() -> None:
    """Start a `munged` with its own key and socket."""
    MUNGE.mkdir()
    key = MUNGE / "key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    files = {"key": key, "socket": SOCKET, "log": LOGS / "munged.log"}
    files |= {"pid": MUNGE / "pid", "seed": MUNGE / "seed"}
    options = [f"--{name}-file={path}" for name, path in files.items() if name != "socket"]
    start("munged", *options, f"--socket={SOCKET}")


def start_scheduler() -> None:
    """Start `slurmctld`. It recovers the jobs that it knew."""
    start(*_with_host_name(SCHEDULER), "slurmctld")


def restart_scheduler() -> None:
    """Stop `slurmctld` and start it again.

    Raises
    ------
    InputError : no lab is up.
    """
    require_lab()
    _end([process for process in processes() if process.name() == "slurmctld"])
    start_scheduler()


def start_node(node: Node) -> None:
    """Start the `slurmd` of a node, in its network and on its cores.

    SIGPIPE is ignored from the start. `slurmd` ignores it only after it has set itself up. Until
    then, a connection that the other side closes would end it.
    """
    daemon = ["env", "--ignore-signal=PIPE", "slurmd", "-N", node.name]
    start(*inside(node), *_with_host_name(node.name), *daemon)


def stop_node(node: Node) -> None:
    """Stop the `slurmd` of a node. Its running jobs go on."""
    _end([process for process in _in_network(node) if process.name() == "slurmd"])


def slurmd_runs(node: Node) -> bool:
    """Return whether the `slurmd` of a node runs."""
    return any(process.name() == "slurmd" for process in _in_network(node))


def stop_all() -> None:
    """End every process of the lab: daemons, and the jobs on its nodes.

    Raises
    ------
    OSError : a process does not end, for example because it waits for a device.
    """
    deadline = time.monotonic() + DOWN_SECONDS
    # A daemon may have started a further process while the processes were being listed.
    while running := list(processes()):
        if time.monotonic() > deadline:
            names = ", ".join(f"{process.pid} ({_name(process)})" for process in running)
            raise TimeoutError(
                errno.ETIMEDOUT, f"do not end within {DOWN_SECONDS} s; end them, then: down", names
            )
        _end(running)


def processes() -> Iterator[psutil.Process]:
    """Yield the processes of the lab: those in the networks of its nodes, and its daemons.

    This process and its ancestors are left out.
    """
    mark = read_claim().mark
    this = psutil.Process()
    spared = {this.pid, *(parent.pid for parent in this.parents())}
    networks = {path.stat().st_ino for path in namespaces()} - {_network(this)}
    for process in psutil.process_iter():
        # A process may have ended meanwhile.
        with suppress(psutil.Error, OSError):
            if process.pid not in spared and (
                _network(process) in networks or (mark and process.environ().get(_MARK) == mark)
            ):
                yield process


def _name(process: psutil.Process) -> str:
    with suppress(psutil.Error):
        return process.name()
    return "ended"


def _in_network(node: Node) -> list[psutil.Process]:
    """Return the processes in a node's network; none if the network was never made.

    Processes may remain in a network after its name was deleted.
    """
    inode = read_claim().namespaces.get(node.link)
    return [process for process in processes() if inode and _network(process) == inode]


def _network(process: psutil.Process) -> int | None:
    """Return the inode of the network namespace of a process; None if the process has ended."""
    try:
        return Path(f"/proc/{process.pid}/ns/net").stat().st_ino
    except FileNotFoundError:
        return None


def _with_host_name(name: str) -> list[str]:
    """Return the start of a command line that sets the host name, and the host names of the lab.

    The program still sees later mounts of the machine.
    """
    unshare = ["unshare", "--uts", "--mount", "--propagation=slave"]
    return [*unshare, "sh", "-c", _ENTER, name, str(HOSTS)]


def start(*command: str) -> None:
    """Run a command that starts a daemon. The daemon gets the mark of the lab.

    Raises
    ------
    OSError : the command failed, or did not end in time.
    """
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SLURM")}
    with _delay_interrupts():
        call(
            *command,
            env=environment | {_MARK: read_claim().mark},
            cwd="/",
            timeout=_START_SECONDS,
            start_new_session=True,
        )


@contextmanager
def _delay_interrupts() -> Iterator[None]:
    """Delay Ctrl-C and SIGTERM until the block ends.

    A forked process without the mark would not be recognised.
    """
    arrived = []
    handlers = {
        number: signal.signal(number, lambda arrival, _: arrived.append(arrival))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if arrived:
            signal.raise_signal(arrived[0])


def _end(running: list[psutil.Process]) -> None:
    """Terminate processes, and kill those that do not end in time."""
    for send in (psutil.Process.terminate, psutil.Process.kill):
        for process in running:
            with suppress(psutil.NoSuchProcess):
                send(process)
        _, running = psutil.wait_procs(running, timeout=_STOP_SECONDS)
