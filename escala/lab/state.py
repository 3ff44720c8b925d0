"""Files that describe the lab and claim its parts, the locks of the lab, and calls of programs."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from escala.core import environment
from escala.core.children import capture
from escala.core.errors import InputError
from escala.core.files import read_json, write_json

#: Folder of the lab's files, except the files of `SPOOL`.
FOLDER = Path("/run/escala-lab")
LOGS = FOLDER / "log"
#: SLURM writes and runs the scripts of jobs here, because /run is often mounted noexec.
SPOOL = Path("/var/spool/escala-lab")

_DESCRIPTION = FOLDER / "lab.json"
_CLAIM = FOLDER / "claim.json"
_BOOT = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Node:
    """One emulated node.

    Attributes
    ----------
    name, address : its host name and its IPv4 address.
    cores : numbers of the logical cores that its processes run on.
    memory_mib : memory that the scheduler may assign to jobs.
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
    """A lab that is up.

    Attributes
    ----------
    nodes : its nodes.
    scheduler : the IPv4 address of the bridge, at which the scheduler listens.
    """

    nodes: list[Node]
    scheduler: str

    def node(self, name: str) -> Node:
        """Return a node by its name.

        Raises
        ------
        InputError : there is no such node.
        """
        for node in self.nodes:
            if node.name == name:
                return node
        names = ", ".join(node.name for node in self.nodes)
        raise InputError("node", name, "is not a node of the lab", f"name one of {names}")


def read_lab() -> Lab | None:
    """Return the lab that is up on this machine, or None."""
    kept = _read(_DESCRIPTION)
    return kept and Lab([Node(**node) for node in kept["nodes"]], kept["scheduler"])


def _read(file: Path) -> dict | None:
    """Return the content of a file; None without the file, or if it was written before a reboot.

    A reboot removes the lab, and the kernel gives its numbers to other interfaces and namespaces.
    """
    with suppress(FileNotFoundError):
        kept = read_json(file)
        if kept.pop("boot") == _BOOT.read_text(encoding="utf-8").strip():
            return kept
    return None


def _write(file: Path, content: Any) -> None:
    write_json(file, {"boot": _BOOT.read_text(encoding="utf-8").strip()} | asdict(content))


def require_lab() -> Lab:
    """Return the lab that is up.

    Raises
    ------
    InputError : no lab is up.
    """
    lab = read_lab()
    if lab is None:
        raise InputError("lab", None, "no lab is up", f"start one: {environment.call('lab up')}")
    return lab


def write_lab(lab: Lab) -> None:
    """Write the description of a lab that is up."""
    _write(_DESCRIPTION, lab)


@dataclass
class Claim:
    """A record of the links, namespaces and processes that belong to the lab.

    Only these links, namespaces and processes are ever removed or ended. The record is written
    before they are made, while their names are free. So all parts of a lab can be found, even if
    its start was killed.

    Attributes
    ----------
    mark : the value of the environment variable `ESCALA_LAB` in the lab's daemons, unique to this
        lab.
    links, namespaces : name -> its number in the kernel (`ifindex` or inode). The numbers are None
        until all links and namespaces are made.
    """

    mark: str
    links: dict[str, int | None]
    namespaces: dict[str, int | None]

    def has_link(self, name: str, number: int) -> bool:
        """Return whether a link is the lab's."""
        return self.links.get(name, -1) in (None, number)

    def has_namespace(self, name: str, number: int) -> bool:
        """Return whether a network namespace is the lab's."""
        return self.namespaces.get(name, -1) in (None, number)


def read_claim() -> Claim:
    """Return the claim of the lab; an empty claim if there is no lab and no part of one."""
    return Claim(**(_read(_CLAIM) or {"mark": "", "links": {}, "namespaces": {}}))


def write_claim(claimed: Claim) -> None:
    """Write the lab's claim."""
    _write(_CLAIM, claimed)


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder until the block ends. No file is made.

    A lock on `FOLDER` guards the links. A lock on its parent folder guards the whole lab.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def call(*command: str, **options) -> str:
    """Run a command of the system and return its output.

    Raises
    ------
    OSError : the command failed. The message names the command and ends with its last output.
    """
    try:
        done = capture(command, **options)
    except subprocess.TimeoutExpired as error:
        raise OSError(errno.ETIMEDOUT, "did not end in time", " ".join(command)) from error
    if done.returncode:
        output = (done.stderr.strip() or done.stdout.strip())[-400:]
        raise OSError(errno.EIO, output or f"ended with {done.returncode}", " ".join(command))
    return done.stdout
