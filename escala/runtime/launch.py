"""Start the processes of a run: on this machine, by `mpirun`, by SLURM's `srun`, or by ssh.

| launcher | selected by `auto` for |
|---|---|
| `local` | one node, no MPI |
| `mpirun` | one node and MPI; nodes of a job if `srun` does not work with Open MPI |
| `srun` | several nodes, inside a SLURM job; every run on given nodes of a job |
| `ssh` | the same in a job of another scheduler, and on hosts that the user names |

With every launcher, a process finds its number in the environment and its place in the run's plan.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from escala.core import children, variables
from escala.core.environment import call
from escala.core.errors import InputError
from escala.core.variables import CALLERS_PATH
from escala.programs.environment import extra_variables
from escala.programs.program import Program
from escala.runtime import allocation, mpi, slurm
from escala.runtime.asking import address_here, describe_nodes
from escala.runtime.layout import EXTRA_PORTS, Launch, Layout, processes_per_node
from escala.runtime.mpi import single_copy
from escala.runtime.node import LOOPBACK, describe
from escala.strategies import STRATEGIES, Strategy
from escala.strategies.knobs import read_by_strategy

LOCAL, MPIRUN, SRUN, SSH = "local", "mpirun", "srun", "ssh"

Command = list[str]
Environment = dict[str, str]

#: The transports of Open MPI between ranks of one node.
ON_ONE_NODE = "self,vader"


def survey(
    layout: Layout,
    strategy: type[Strategy],
    interface: str | None,
    launcher: str,
    names: Sequence[str] = (),
) -> Launch:
    """Choose the launcher of a run, and read the description of each of its nodes.

    Parameters
    ----------
    interface : the network interface between nodes. Default: the interface by which the scheduler
        knows a node.
    launcher : `auto` or the name of a launcher.
    names : the nodes of the run, which belong to the job of this process. The run is then a job
        step, even on one node. If empty, a run of one node uses this machine, and a run of several
        nodes uses the first nodes of the job.

    Raises
    ------
    InputError : several nodes, or `srun` or `ssh`, outside a job that has it; one node, on a
        machine outside the allocation; `local`, with nodes of a job.
    """
    ports = processes_per_node(layout, strategy) + EXTRA_PORTS
    if names and launcher == LOCAL:
        reason = f"starts processes on this machine only, and the run is given {', '.join(names)}"
        raise InputError("launcher", launcher, reason, f"use auto, {SRUN} or {MPIRUN}")
    if layout.nodes == 1 and launcher not in (SRUN, SSH) and not names:
        slurm.require_host()
        selected = MPIRUN if strategy.meets_by == "mpi" else LOCAL
        node = describe(LOOPBACK, ports)
        return Launch(selected if launcher == "auto" else launcher, [node], None)
    job, by_slurm = allocation.job_number(), allocation.by_slurm()
    other = SSH if by_slurm else SRUN
    if job is None or launcher == other or (by_slurm and not shutil.which("srun")):
        remedy = f"or run through SLURM: {call('run --profile profiles/slurm')}"
        if layout.nodes > 1:
            reason = "needs several nodes, and this is one machine"
            raise InputError("layout", str(layout), reason, f"use a layout 1xN, {remedy}")
        reason = f"needs {'hosts without SLURM' if launcher == SSH else 'a SLURM allocation'}"
        raise InputError("launcher", launcher, reason, f"use auto, {remedy}")
    if names and layout.nodes == 1:
        interface = LOOPBACK
    is_mpi = strategy.meets_by == "mpi"
    nodes, world = describe_nodes(job, layout.nodes, names, interface, ports, is_mpi)
    selected = MPIRUN if is_mpi and world != layout.nodes else SRUN if by_slurm else SSH
    here = address_here(nodes, interface) if names else None
    return Launch(selected if launcher == "auto" else launcher, nodes, job, tuple(names), here)


def environment(
    strategy: str, knobs: dict, launch: Launch | None = None, program: Program | None = None
) -> Environment:
    """Return the environment of every process of a run, made from the environment of this process.

    Parameters
    ----------
    program : the program that the processes start, if they do not train themselves. It also gets
        the variables that it names. It gets the project's Open MPI only if it needs it.
    """
    declared, result = STRATEGIES[strategy], variables.for_ranks()
    result.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if program:
        result |= extra_variables(program)
        result.setdefault(CALLERS_PATH, result.get("PATH", ""))
    result |= mpi.variables(program, declared.meets_by == "mpi")
    if threads := knobs["threads"]["intra_op"]:
        result["OMP_NUM_THREADS"] = str(threads)
    if launch and declared.meets_by == "mpi":
        copies = result["OMPI_MCA_btl_vader_single_copy_mechanism"] = single_copy(launch.nodes)
        if copies == "none":  # Release 5 has another name for this setting.
            result["OMPI_MCA_smsc"] = "^cma"
    if launch and launch.job:
        # From the older name mpirun knows that srun starts its daemons.
        if allocation.by_slurm():
            result |= dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), launch.job)
        # The ranks of a job step exchange over the network of the nodes. On one node no transport
        # listens on a port, as with `mpirun`.
        if (interface := launch.nodes[0].interface) == LOOPBACK:
            result["OMPI_MCA_btl"] = ON_ONE_NODE
        else:
            names = ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include")
            result |= dict.fromkeys(names, interface)
    return result | declared.environment(
        read_by_strategy(knobs, strategy, takes_steps=program is None)
    )


@contextmanager
def command_line(
    launch: Launch,
    strategy: type[Strategy],
    places: Sequence[dict],
    command: Command,
    program: Program | None = None,
) -> Iterator[tuple[Command, Environment]]:
    """Yield the command that starts all processes, and further variables for the processes.

    While the context lasts, this process runs the server by which they find each other.

    Parameters
    ----------
    program : see `environment`.
    """
    private = ["--private-network"] if strategy.meets_by == "servers" else []
    start = [sys.executable, "-m", "escala.runtime.spawn", *private, str(len(places))]
    if launch.launcher == MPIRUN:
        mpirun = mpi.mpirun(program)
        release = mpi.release(mpirun)
        options = (
            _hydra_options(launch, len(places))
            if release is None
            else _mpirun_options(launch, len(places), release)
        )
        start = [mpirun, *options]
    elif launch.launcher in (SRUN, SSH):
        # On one node, `spawn` makes a private network for servers that everybody may connect to.
        is_private = bool(private) and len(launch.nodes) == 1
        tasks = 1 if is_private else len(places)
        step = allocation.step(
            launch.job,
            len(launch.nodes),
            tasks,
            launch.names,
            "pmix" if strategy.meets_by == "mpi" else "none",
            ("--kill-on-bad-exit=1", f"--job-name={_step_name(launch.job)}"),
        )
        start = [*step, *(start if is_private else [])]
    with strategy.serve_rendezvous(launch.nodes, places, launch.here) as variables:
        yield [*start, *command], variables


def _mpirun_options(launch: Launch, processes: int, release: int) -> Command:
    """Return the options of `mpirun` of a release of Open MPI."""
    per_node = processes // len(launch.nodes)
    here, across = socket.gethostname(), len(launch.nodes) > 1
    other_hosts = [
        node.host for node in launch.nodes if launch.job and not slurm.same_host(node.host, here)
    ]
    hosts = [node.host for node in launch.nodes] if across or other_hosts else ["localhost"]
    # Each rank binds itself to the cores of its place.
    options = ["-np", str(processes), "--bind-to", "none"]
    options += ["--host", ",".join(f"{host}:{per_node}" for host in hosts)]
    # The ranks of one node exchange through shared memory: no transport listens on a port.
    parameters = {"btl": f"{ON_ONE_NODE},tcp" if across else ON_ONE_NODE}
    # From release 5 on, mpirun refuses loopback. On one node it needs no interface.
    interface = launch.nodes[0].interface
    if (across or not other_hosts) and (release < 5 or interface != LOOPBACK):
        parameters["oob_tcp_if_include"] = interface
    by_slurm = allocation.by_slurm()
    if other_hosts and not by_slurm:
        agent = f"{sys.executable} -m escala.runtime.spawn --agent"
        # A daemon that writes the shape of its machine into shared memory may crash there.
        parameters |= {"plm": "rsh", "plm_rsh_agent": agent, "rtc_hwloc_vmhole": "none"}
    elif other_hosts:
        # mpirun starts its daemons on the other nodes by srun, and lets srun choose the nodes.
        parameters["plm_slurm_args"] = (
            f"--nodes={len(other_hosts)} --nodelist={','.join(other_hosts)}"
        )
    elif release < 5:
        # By default mpirun looks for ssh even without other nodes, and fails without ssh.
        parameters["plm"] = "isolated"
    if launch.job:
        # mpirun must not read the allocation, because the hosts are given above.
        parameters["ras"] = "^slurm" if by_slurm else "^tm,lsf"
    return options + [word for item in parameters.items() for word in ("--mca", *item)]


def _hydra_options(launch: Launch, processes: int) -> Command:
    """Return the options of `mpirun` of MPICH and Intel MPI, which start by Hydra.

    Raises
    ------
    InputError : the processes are not on this machine only.
    """
    here = socket.gethostname()
    others = [n.host for n in launch.nodes if not slurm.same_host(n.host, here)]
    if launch.job and others:
        reason = "is started on this machine only by mpirun of MPICH or Intel MPI"
        remedy = "use the program with Open MPI, or layouts of one node"
        raise InputError("layout", ", ".join(others), reason, remedy)
    # Each rank binds itself to the cores of its place.
    unbound = ["-genv", "I_MPI_PIN", "0"]
    return [
        "-launcher",
        "fork",
        "-iface",
        launch.nodes[0].interface,
        *unbound,
        "-n",
        str(processes),
    ]


def start_on_nodes(
    launch: Launch, program: Command, environment: Environment, log: Path
) -> subprocess.Popen:
    """Start a program once on each node of a run, alongside its ranks."""
    if launch.launcher in (SRUN, SSH) or len(launch.nodes) > 1 or launch.names:
        options, count = (f"--job-name={_step_name(launch.job)}",), len(launch.nodes)
        step = allocation.step(launch.job, count, count, launch.names, options=options)
        program = [*step, *program]
    return children.start(program, environment, log)


def _step_name(job: str) -> str:
    """Return the name of the job step that this process starts in an allocation."""
    return f"escala-{job}-{os.getpid()}"


def end_job_step(launch: Launch) -> None:
    """End the job step of `srun`, which may still run on other nodes. Without a job, do nothing."""
    if launch.job is None or launch.launcher != SRUN:
        return
    ask = ["squeue", "--steps", f"--jobs={launch.job}", "--noheader", "--format=%i %j"]
    for line in slurm.output_of(ask).splitlines():
        number, _, name = line.strip().partition(" ")
        if name.strip() == _step_name(launch.job):
            slurm.output_of(["scancel", "--signal=KILL", number])
