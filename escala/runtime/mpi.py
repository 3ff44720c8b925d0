"""Find an MPI of the project or of a program, and the cause of a failure in its output."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from escala.core.engines import ENGINES
from escala.core.errors import InputError
from escala.programs.environment import which
from escala.programs.program import Program
from escala.runtime import slurm
from escala.runtime.layout import Node

MPIRUN_PROGRAM = "mpirun"
#: Where the kernel describes network interfaces.
INTERFACES = Path("/sys/class/net")

_ENGINE_FOLDERS = {engine.environment.folder for engine in ENGINES.values()}
# Lists of the devices and of the transports for which Open MPI uses UCX.
_UCX_LISTS = ("OMPI_MCA_opal_common_ucx_devices", "OMPI_MCA_opal_common_ucx_tls")
# Open MPI refuses to start anything as root unless both are set.
_AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")


def mpirun(program: Program | None = None) -> str:
    """Return the path of `mpirun` in the environment of the program or of the project.

    A program that runs in the project's environment, or in one of an engine, uses the project's,
    like its Horovod.
    """
    if program is None or (
        _project_mpirun().exists() and _uses_project_mpi(which(program, program.command[0]))
    ):
        return str(_project_mpirun())
    return which(program, MPIRUN_PROGRAM) or str(_project_mpirun())


def release(path: str) -> int | None:
    """Return the first number of the version of Open MPI of an `mpirun`, None for Hydra.

    Hydra starts the processes of MPICH, MVAPICH and Intel MPI.

    Raises
    ------
    InputError : `mpirun` is of neither.
    """
    if _is_of_project(path) or not Path(path).is_file():
        return 4
    version = slurm.output_of([path, "--version"])
    if match := re.search(r"Open MPI\D* (\d+)", version):
        return int(match[1])
    if re.search(r"HYDRA|Intel\(R\) MPI", version):
        return None
    raise InputError(
        "mpirun",
        path,
        "is of neither Open MPI, MPICH nor Intel MPI, whose options Escala knows",
        "use own-launcher, and start the ranks in the command: mpirun -n {ranks_of_node} …",
    )


def variables(program: Program | None = None, mpi: bool = True) -> dict[str, str]:
    """Return the variables that Open MPI needs in the environment of processes.

    Parameters
    ----------
    program : the program that the processes run. It gets the project's Open MPI only if it needs
        it.
    mpi : whether the processes meet by MPI.
    """
    if program is None or _uses_project_mpi(which(program, program.command[0])):
        return project_mpi()
    return project_mpi() if mpi and _is_of_project(mpirun(program)) else _as_root()


def project_mpi() -> dict[str, str]:
    """Return the variables that select the Open MPI of the project's environment, if it exists.

    Horovod is linked with this Open MPI. The variables are needed because Open MPI is not installed
    where it was built for, and because the MPI of the system must not be loaded instead.
    """
    if not _project_mpirun().exists():
        return _as_root()
    libraries = [f"{sys.prefix}/lib", *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {"LD_LIBRARY_PATH": ":".join(libraries), "OPAL_PREFIX": sys.prefix} | _as_root()


def single_copy(nodes: Sequence[Node]) -> str:
    """Return the mechanism by which MPI ranks of one node copy from each other's memory.

    Returns
    -------
    `cma`: a rank reads the memory of another rank directly. `none`, if direct reads are forbidden:
    the sender copies into shared memory, and the receiver copies from shared memory. By default
    Open MPI uses `cma` without checking the permission.
    """
    return "cma" if all(node.single_copy for node in nodes) else "none"


def transport(name: str | None, interface: str | None) -> dict[str, str]:
    """Return the variables by which Open MPI exchanges between nodes, and logs how.

    Parameters
    ----------
    name : `tcp`, `ucx`, or None, so that Open MPI chooses.
    interface : the interface that the experiment names, or None. UCX uses the RDMA device of the
        interface; without a device, it uses TCP over the interface.
    """
    variables = {"OMPI_MCA_pml_base_verbose": "10", "OMPI_MCA_btl_base_verbose": "1"}
    if name == "tcp":
        variables |= {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader,tcp"}
    if name == "ucx":
        variables["OMPI_MCA_pml"] = "ucx"
    if name == "ucx" and interface:
        variables["UCX_NET_DEVICES"] = interface
        if devices := sorted((INTERFACES / interface / "device/infiniband").glob("*")):
            file = INTERFACES / interface / "dev_port"
            port = int(file.read_text(encoding="utf-8")) + 1 if file.exists() else 1
            variables["UCX_NET_DEVICES"] = f"{devices[0].name}:{port}"  # Such as `mlx5_0:1`.
        else:
            # By default Open MPI does not use UCX if it finds no such device.
            variables |= dict.fromkeys(_UCX_LISTS, "any")
    return variables


def _project_mpirun() -> Path:
    return Path(sys.prefix) / "bin" / MPIRUN_PROGRAM


def _is_of_project(path: str | None) -> bool:
    """Return whether a program belongs to the project's environment."""
    return path is not None and Path(path).parent == _project_mpirun().parent


def _uses_project_mpi(path: str | None) -> bool:
    """Return whether a program belongs to the environment of the project or of an engine."""
    return _is_of_project(path) or (
        path is not None and Path(path).parents[1].name in _ENGINE_FOLDERS
    )


def _as_root() -> dict[str, str]:
    return dict.fromkeys(_AS_ROOT, "1") if os.geteuid() == 0 else {}


_CAUSE_LINES, _CAUSE_CHARACTERS = 6, 800
#: Lines of Open MPI, PMIx and SLURM that name no cause.
_NOISE = re.compile(
    r"""^[-=*\s]*$
    | ^Primary\ job\s+terminated\ normally | ^a\ non-zero\ exit\ code\.
    | ^(mpirun|prterun)\ detected\ that\ one\ or\ more\ processes\ exited
    | ^(thus\ causing\ )?the\ job\ to\ be\ terminated\.
    | ^Process\ name:\ \[ | ^It\ looks\ like\ \w+\ failed\ for\ some\ reason
    | ^likely\ to\ abort\. | ^fail\ during\ \w+[;\ ] | ^environment\ problems\.
    | ^problems\)\.\ \ This\ failure | ^here's\ some\ additional\ information
    | ^Open\ MPI\ developer\)
    | ^additional\ information\ \(which | ^developer\):
    | more\ process(es\ have|\ has)\ sent\ help\ message | orte_base_help_aggregate
    | ^(\[\S+\]\ )?\*\*\*\ | Local\ abort\ before\ MPI_INIT
    | PMIX\ ERROR:\ UNREACHABLE | ORTE_ERROR_LOG:.*show_help\.c
    | ^srun:\ (Job\ step\ aborted|Terminating\ StepId) | ^slurmstepd:\ error:\ \*\*\*\ STEP
    """,
    re.VERBOSE,
)
#: The line between two messages of Open MPI.
_RULE = re.compile(r"^-{20,}\n", re.MULTILINE)
#: A message of Open MPI that follows from a message of another rank. The messages are printed in
#: the order in which they arrive.
_CONSEQUENCE = re.compile(r"are unable to reach each other for|MPI process is unreachable")
#: The beginning of a line that names its process.
_SENDER = re.compile(r"^\[[\w.-]+:\d+\] (\[\[\d+,\d+\],\d+\] )?")
_TRACEBACK = "Traceback (most recent call last)"


def cause(output: str) -> str:
    """Return the first lines of a launcher's output that name a cause, or an empty text.

    Lines of dashes, Open MPI's remarks on its end, and repeated lines are left out. Of a traceback
    only the error is kept. A message that follows from another message comes last.
    """
    messages = sorted(_RULE.split(output), key=lambda message: bool(_CONSEQUENCE.search(message)))
    lines, in_traceback = [], False
    for line in "".join(messages).splitlines():
        if _TRACEBACK in line:
            in_traceback = True
        elif in_traceback and (line.startswith(" ") or not line.strip()):
            continue
        elif not _NOISE.search(line.strip()):
            in_traceback = False
            lines.append(_SENDER.sub("", line.strip()))
    if not lines:
        lines = [line.strip() for line in output.splitlines() if re.search(r"\w", line)]
    return " | ".join([*dict.fromkeys(lines)][:_CAUSE_LINES])[:_CAUSE_CHARACTERS]
