"""Find Open MPI: the project's own, or the one that a program finds by itself."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from escala.core.errors import InputError
from escala.runtime import slurm
from escala.runtime.placement import Node
from escala.workloads.program import Program
from escala.workloads.program_environment import which

MPIRUN_PROGRAM = "mpirun"

# Without both, Open MPI starts nothing for root.
_AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


def mpirun(program: Program | None = None) -> str:
    """Return the path of `mpirun`: that which a program finds by itself, or the project's.

    A program of the project's environment, with its Horovod, has the project's.

    Raises
    ------
    InputError : what the program finds is another MPI than Open MPI.
    """
    if program is None or (_own().exists() and _is_own(which(program, program.command[0]))):
        return str(_own())
    found = which(program, MPIRUN_PROGRAM)
    if found and not _is_own(found) and "Open MPI" not in slurm.printed([found, "--version"]):
        raise InputError(
            f"{program.where}.environment",
            found,
            "is not of Open MPI, and the processes of a run are started by its options",
            "use own-launcher, and start the ranks in the command: mpirun -n {ranks_of_node} …",
        )
    return found or str(_own())


def variables(program: Program | None = None, mpi: bool = True) -> dict[str, str]:
    """Return the variables that Open MPI needs in the environment of processes.

    Parameters
    ----------
    program : what they start. It has the project's Open MPI only where it needs it.
    mpi : whether its processes are started by `mpirun`.
    """
    if program is None or _is_own(which(program, program.command[0])):
        return own_mpi()
    return own_mpi() if mpi and _is_own(mpirun(program)) else _as_root()


def own_mpi() -> dict[str, str]:
    """Return the variables that select the environment's own Open MPI, if it has one.

    Horovod is linked with it. It is installed in another place than it was built for, and a system
    MPI must not be used instead.
    """
    if not _own().exists():
        return _as_root()
    libraries = [f"{sys.prefix}/lib", *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {"LD_LIBRARY_PATH": ":".join(libraries), "OPAL_PREFIX": sys.prefix} | _as_root()


def single_copy(nodes: Sequence[Node]) -> str:
    """Return the mechanism by which MPI ranks of one node copy from each other's memory.

    Returns
    -------
    `cma`, by which a rank reads the memory of the other one, or `none` where that is forbidden: the
    sender copies into shared memory, and the receiver out of it. Left to itself, Open MPI takes
    the first without trying it.
    """
    return "cma" if all(node.single_copy for node in nodes) else "none"


def _own() -> Path:
    return Path(sys.prefix) / "bin" / MPIRUN_PROGRAM


def _is_own(path: str | None) -> bool:
    """Return whether a program is one of the project's environment."""
    return path is not None and Path(path).parent == _own().parent


def _as_root() -> dict[str, str]:
    return dict.fromkeys(_AS_ROOT, "1") if os.geteuid() == 0 else {}
