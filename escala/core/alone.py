"""Let one measurement at a time run on a machine.

A measurement holds the lock of the file `escala-HOSTNAME.lock` in a folder of shared memory, which
all users and all containers with that folder see. The kernel frees the lock when its process ends,
for whatever reason. The file names the process that holds the lock.
"""

from __future__ import annotations

import fcntl
import getpass
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import psutil

from escala.core import interrupts, proc
from escala.core.console import say
from escala.core.errors import InputError, Unavailable

#: The default folder of the lock, and the environment variable that names another folder.
FOLDER, VARIABLE = "/dev/shm", "ESCALA_LOCKS"
_POLL_SECONDS = 0.2
#: The run for which this process holds the lock; empty while it does not hold the lock.
_held: list[Mapping[str, str]] = []


def path() -> Path:
    """Return the lock file of this machine. In the lab, each node has a lock file by its host name.

    Raises
    ------
    InputError : the folder that `ESCALA_LOCKS` names does not exist.
    """
    named = os.environ.get(VARIABLE)
    if named and not Path(named).is_dir():
        reason, remedy = (
            "is not a folder",
            f"make it, or unset the variable: the default is {FOLDER}",
        )
        raise InputError(VARIABLE, named, reason, remedy)
    return Path(named or FOLDER) / f"escala-{socket.gethostname()}.lock"


@contextmanager
def hold(what: Mapping[str, str], wait: bool = True) -> Iterator[None]:
    """Hold the lock of this machine until the block ends.

    If an outer block of this process holds the lock already, the outer block frees it. If the file
    cannot be locked, a line on standard error says so, and the block runs without a lock.

    Parameters
    ----------
    what : the names of the `experiment` and the `run`. Processes that wait show them.
    wait : whether to wait for the process that holds the lock. Standard error then names it.

    Raises
    ------
    InputError : the process that holds the lock has started this one, so waiting would never end;
        or `path` raises it.
    Unavailable : another process holds it, and `wait` is false.
    """
    if _held:
        yield
        return
    with ExitStack() as stack:
        try:
            descriptor = _open(path())
            stack.callback(os.close, descriptor)
            _take(descriptor, wait)
        except OSError as error:
            say(f"no lock on this machine, so other runs may run alongside this one: {error}")
            yield
            return
        try:
            _held.append(what)
            user = str(os.getuid())
            with suppress(KeyError, OSError):  # The password database may have no entry for it.
                user = getpass.getuser()
            since = datetime.now(UTC).isoformat(timespec="seconds")
            holder = {"pid": os.getpid(), "started": proc.start_time(), "user": user}
            _write(descriptor, json.dumps({**holder, "since": since, **what}))
            yield
        finally:
            _held.clear()
            _write(descriptor, "")


def _take(descriptor: int, wait: bool) -> None:
    """Take the lock of an open file."""
    announced = None
    while True:
        with suppress(BlockingIOError):
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        holder = _read(descriptor)
        described = _describe(holder)
        # A process in another container may have the same number.
        parents = {parent.pid for parent in psutil.Process().parents()}
        pid = holder.get("pid")
        if pid in parents and proc.is_running(pid, holder.get("started")):
            reason = "the run that has the machine to itself started this run"
            raise InputError(path(), described, reason, "start it outside of that run")
        if not wait:
            raise Unavailable(f"{socket.gethostname()} is held by {described}")
        if holder != announced:
            announced = holder
            say(
                f"waiting: {socket.gethostname()} is held by {described}. Timing runs have a "
                "machine to themselves; this one begins when it is free."
            )
        interrupts.end_if_received()
        time.sleep(_POLL_SECONDS)


def _open(file: Path) -> int:
    """Open the lock file. If it is missing, make it, writable by every user.

    In a shared folder the kernel refuses `O_CREAT` on an existing file of another user
    (`fs.protected_regular`), so opening the file and making it are separate calls.
    """
    flags = os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        try:
            return os.open(file, flags | os.O_RDWR)
        except PermissionError:
            return os.open(file, flags | os.O_RDONLY)
        except FileNotFoundError:
            with suppress(FileExistsError):
                descriptor = os.open(file, flags | os.O_RDWR | os.O_CREAT | os.O_EXCL)
                os.fchmod(descriptor, 0o666)
                return descriptor


def _read(descriptor: int) -> dict:
    """Return the description of the process that holds the lock; empty if it is not written yet."""
    with suppress(OSError, ValueError):
        holder = json.loads(os.pread(descriptor, 4096, 0))
        return holder if isinstance(holder, dict) else {}
    return {}


def _write(descriptor: int, text: str) -> None:
    """Replace the content of the lock file. The lock is valid even if this is not possible."""
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, text.encode(), 0)


def _describe(holder: Mapping) -> str:
    """Describe the process that holds the lock in words."""
    if not holder:
        return "another run, which has just begun"
    names = ("pid", "user", "run", "experiment", "since")
    pid, user, run, experiment, since = (holder.get(name, "unknown") for name in names)
    return f"process {pid} of {user}: {run} of the experiment {experiment}, since {since}"
