"""What the lab is made of, where it stands, and who may change it."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from escala.errors import InputError
from escala.files import read_json, write_json

#: All that the lab keeps, but for what follows.
FOLDER = Path("/run/escala-lab")
LOGS = FOLDER / "log"
#: Where SLURM puts the scripts of jobs and runs them: many a /run is mounted noexec.
SPOOL = Path("/var/spool/escala-lab")

_DESCRIPTION = FOLDER / "lab.json"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Node:
    """One emulated node.

    Attributes
    ----------
    name, address : its host name and its IPv4 address.
    cores : numbers of the logical cores that its processes run on.
    memory_mib : what the scheduler may give away of its memory.
    """

    name: str
    address: str
    cores: list[int]
    memory_mib: int

    @property
    def link(self) -> str:
        """Name of its network namespace, and of the end of its link at the bridge."""
        return f"escala-{self.name}"


@dataclass(frozen=True)
class Lab:
    """A lab that is up."""

    nodes: list[Node]

    def node(self, name: str) -> Node:
        """Return the node of that name.

        Raises
        ------
        InputError : there is none.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        names = ", ".join(node.name for node in self.nodes)
        raise InputError("node", name, "is none of the lab's", f"name one of {names}")


def location() -> Lab | None:
    """Return the lab that is up on this machine, or None."""
    if not _DESCRIPTION.exists():
        return None
    described = read_json(_DESCRIPTION)
    # Of a lab that a reboot took down, files may be left.
    if described["boot"] != _BOOT.read_text().strip():
        return None
    return Lab([Node(**node) for node in described["nodes"]])


def require() -> Lab:
    """Return the lab that is up.

    Raises
    ------
    InputError : none is.
    """
    lab = location()
    if lab is None:
        raise InputError("lab", None, "no lab is up", "start one: python scripts/lab.py up")
    return lab


def keep(lab: Lab) -> None:
    """Declare a lab up."""
    nodes = [asdict(node) for node in lab.nodes]
    write_json(_DESCRIPTION, {"boot": _BOOT.read_text().strip(), "nodes": nodes})


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Wait until nobody else is in a block of the same folder, and stay alone in it.

    A lock on `FOLDER` guards the links; one on the folder it stands in guards the lab as a whole,
    and leaves no file behind.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def call(*command: str, **options) -> str:
    """Run a command of the system and return what it printed.

    Raises
    ------
    OSError : it failed; it names the command and holds the last of what it said.
    """
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, **options
        )
    except subprocess.TimeoutExpired as error:
        raise OSError(errno.ETIMEDOUT, "did not end in time", " ".join(command)) from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-400:]
        raise OSError(errno.EIO, said or f"ended with {done.returncode}", " ".join(command))
    return done.stdout
