"""Start the processes of a run: on this machine, by `mpirun`, or by SLURM's `srun`.

| launcher | selected by `auto` for |
|---|---|
| `local` | one node, no MPI |
| `mpirun` | one node and MPI; several nodes if `srun` does not work with Open MPI |
| `srun` | several nodes, inside a SLURM allocation |

With every launcher, a process finds its number in the environment and its place in the run's plan.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from escala.core import children, variables
from escala.core.errors import InputError
from escala.core.variables import CALLERS_PATH
from escala.runtime import mpi, slurm
from escala.runtime.layout import Layout
from escala.runtime.messages import cause
from escala.runtime.mpi import own_mpi, single_copy
from escala.runtime.node import LOOPBACK, MARK, describe
from escala.runtime.placement import EXTRA_PORTS, Node, processes_per_node
from escala.runtime.spawn import PROCESS
from escala.strategies import STRATEGIES, Strategy
from escala.strategies.knobs import readable
from escala.workloads.program import Program
from escala.workloads.program_environment import passed_on

LOCAL, MPIRUN, SRUN = LAUNCHERS = ("local", "mpirun", "srun")

Command = list[str]
Environment = dict[str, str]

_SURVEY_SECONDS = 120


@dataclass(frozen=True)
class Launch:
    """The launcher of a run's processes, and its nodes, in the order of their ranks.

    `job` is SLURM's number of the allocation, or None without one.
    """

    launcher: str
    nodes: list[Node]
    job: str | None


def process_of_environment() -> int:
    """Return the number of this process, which its launcher has set."""
    names = (PROCESS, "OMPI_COMM_WORLD_RANK", "SLURM_PROCID")
    return int(next((os.environ[name] for name in names if name in os.environ), 0))


def survey(layout: Layout, strategy: type[Strategy], interface: str | None, asked: str) -> Launch:
    """Choose the launcher of a run, and read the description of each of its nodes.

    Parameters
    ----------
    interface : interface of the network to use between nodes; the default is the one by which the
        scheduler knows a node.
    asked : `auto` or one of `LAUNCHERS`.

    Raises
    ------
    InputError : several nodes, or `srun`, outside a SLURM allocation; one node, on a machine that
        is not of the allocation.
    """
    ports = processes_per_node(layout, strategy) + EXTRA_PORTS
    if layout.nodes == 1 and asked != SRUN:
        require_host_of_allocation()
        selected = MPIRUN if strategy.meets_by == "mpi" else LOCAL
        return Launch(selected if asked == "auto" else asked, [describe(LOOPBACK, ports)], None)
    job = _allocation()
    if job is None or not shutil.which("srun"):
        remedy = "or run through SLURM: snakemake --profile profiles/slurm"
        if layout.nodes > 1:
            reason = "needs several nodes, and this is one machine"
            raise InputError("layout", str(layout), reason, f"use a layout 1xN, {remedy}")
        raise InputError("launcher", asked, "needs a SLURM allocation", f"use auto, {remedy}")
    nodes, world = _ask_nodes(job, layout, interface, ports, strategy.meets_by == "mpi")
    selected = SRUN if strategy.meets_by != "mpi" or world == layout.nodes else MPIRUN
    return Launch(selected if asked == "auto" else asked, nodes, job)


def require_host_of_allocation() -> None:
    """Refuse to measure runs of one node outside an allocation, as in the shell of `salloc`.

    Raises
    ------
    InputError : this shell holds an allocation, and this machine is none of its nodes.
    """
    job, nodes = _allocation(), os.environ.get("SLURM_JOB_NODELIST")
    # SLURM names the node to every process that it starts on one.
    if job is None or nodes is None or "SLURMD_NODENAME" in os.environ:
        return
    here, names = socket.gethostname(), [nodes]
    if shutil.which("scontrol"):
        names += _printed(["scontrol", "show", "hostnames", nodes]).split()
    if {here, here.partition(".")[0]} & set(names):
        return
    raise InputError(
        "SLURM_JOB_ID",
        job,
        f"is an allocation of {nodes}, and {here} is not of it: runs of one node would be measured "
        "on this machine, and compared with those of the nodes",
        f"start the call on a node: srun --jobid={job} --nodes=1 --pty …; or in a job script; to "
        "measure this machine, leave the allocation",
    )


def _allocation() -> str | None:
    """Return SLURM's number of the allocation of this shell or job, or None."""
    return os.environ.get("SLURM_JOB_ID") or os.environ.get("SLURM_JOBID") or None


def _printed(command: Command) -> str:
    return slurm.printed(command, _SURVEY_SECONDS)


def _ask_nodes(
    job: str, layout: Layout, interface: str | None, ports: int, mpi: bool
) -> tuple[list[Node], int | None]:
    """Run `escala.runtime.node` on each node, without MPI if `srun` does not support it."""
    # The address of every node of the cluster, as SLURM knows it.
    listed = _printed(["scontrol", "--oneliner", "show", "nodes"])
    addresses = dict(re.findall(r"NodeName=(\S+).*?NodeAddr=(\S+)", listed))
    program = [sys.executable, "-m", "escala.runtime.node", "--ports", str(ports)]
    program += ["--addresses", json.dumps(addresses)]
    program += ["--interface", interface] if interface else []
    base = _srun(job, layout.nodes, layout.nodes)
    calls = [[*base, "--mpi=none", *program]]
    if mpi and "pmix" in _printed(["srun", "--mpi=list"]):
        calls.insert(0, [*base, "--mpi=pmix", *program, "--mpi"])
    for call in calls:
        done = children.completed(
            call, env=_slurm_environment(job) | own_mpi(), timeout=_SURVEY_SECONDS
        )
        lines = [line for line in done.stdout.splitlines() if MARK in line]
        if done.returncode == 0 and len(lines) == layout.nodes:
            break
    else:
        raise RuntimeError(f"srun failed on the nodes: {cause(done.stderr)}")
    said = [json.loads(line.partition(MARK)[2]) for line in lines]
    said.sort(key=lambda node: node.pop("number"))
    world = min((node.pop("world") or 1) for node in said)
    return [Node(**node) for node in said], world


def environment(
    strategy: str, knobs: dict, launch: Launch | None = None, program: Program | None = None
) -> Environment:
    """Return the environment of every process: what reaches it of this one's, and its own.

    Parameters
    ----------
    program : what the processes start, if they train nothing themselves. It also gets the variables
        that it names, and the project's Open MPI only where it needs it.
    """
    declared, found = STRATEGIES[strategy], variables.passed()
    found.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if program:
        found |= passed_on(program)
        found.setdefault(CALLERS_PATH, found.get("PATH", ""))
    found |= mpi.variables(program, declared.meets_by == "mpi")
    if threads := knobs["threads"]["intra_op"]:
        found["OMP_NUM_THREADS"] = str(threads)
    if launch and declared.meets_by == "mpi":
        found["OMPI_MCA_btl_vader_single_copy_mechanism"] = single_copy(launch.nodes)
    if launch and launch.job:
        # By the older name mpirun recognises that srun starts its daemons.
        found |= dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), launch.job)
        includes = ("OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include")
        found |= dict.fromkeys(includes, launch.nodes[0].interface)
    return found | declared.environment(readable(knobs, strategy))


@contextmanager
def command_line(
    launch: Launch,
    strategy: type[Strategy],
    places: Sequence[dict],
    command: Command,
    program: Program | None = None,
) -> Iterator[tuple[Command, Environment]]:
    """Yield the one command that starts all processes, and the variables for their environment.

    Servers that they need, such as Horovod's rendezvous, run as long as the context.

    Parameters
    ----------
    program : see `environment`.
    """
    arguments = _STARTERS[launch.launcher](launch, strategy, len(places)) + command
    if launch.launcher == MPIRUN:
        arguments.insert(0, mpi.mpirun(program))
    if strategy.meets_by != "rendezvous":
        yield arguments, {}
        return
    first = launch.nodes[0]
    # By its name, so that only runs that need Horovod's server have it in their key.
    rendezvous = import_module(".rendezvous", __package__)
    with rendezvous.served(launch.nodes, places, first.address) as port:
        yield (
            arguments,
            {
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": first.address,
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
                "HOROVOD_GLOO_IFACE": first.interface,
            },
        )


def _local(launch: Launch, strategy: type[Strategy], processes: int) -> Command:
    private = ["--private-network"] if strategy.meets_by == "servers" else []
    return [sys.executable, "-m", "escala.runtime.spawn", *private, str(processes)]


def _mpirun(launch: Launch, strategy: type[Strategy], processes: int) -> Command:
    """Return the options of `mpirun`."""
    per_node = processes // len(launch.nodes)
    across = len(launch.nodes) > 1
    hosts = [node.host for node in launch.nodes] if across else ["localhost"]
    # Each rank binds itself to the cores of its place.
    options = ["-np", str(processes), "--bind-to", "none"]
    options += ["--host", ",".join(f"{host}:{per_node}" for host in hosts)]
    parameters = {
        # The ranks of one node exchange through shared memory: no transport listens on a port.
        "btl": "self,vader,tcp" if across else "self,vader",
        "oob_tcp_if_include": launch.nodes[0].interface,
    }
    if across:
        # mpirun starts its daemons on the other nodes by srun, and lets srun choose the nodes.
        others = f"--nodes={len(hosts) - 1} --nodelist={','.join(hosts[1:])}"
        # It needs no more of the allocation than the hosts above.
        parameters |= {"plm_slurm_args": others, "ras": "^slurm"}
    else:
        # By default mpirun looks for ssh even without other nodes, and fails if there is none.
        parameters["plm"] = "isolated"
    return options + [word for item in parameters.items() for word in ("--mca", *item)]


def _by_srun(launch: Launch, strategy: type[Strategy], processes: int) -> Command:
    return [
        *_srun(launch.job, len(launch.nodes), processes),
        # A probe's program is another job step at the same time.
        "--overlap",
        f"--mpi={'pmix' if strategy.meets_by == 'mpi' else 'none'}",
        "--kill-on-bad-exit=1",
        f"--job-name={_step_name(launch.job)}",
    ]


_STARTERS = {LOCAL: _local, MPIRUN: _mpirun, SRUN: _by_srun}


def _srun(job: str, nodes: int, tasks: int) -> Command:
    """Return the `srun` of a job step over all nodes whose processes bind themselves."""
    return [
        "srun",
        f"--jobid={job}",
        f"--nodes={nodes}",
        f"--ntasks={tasks}",
        f"--ntasks-per-node={tasks // nodes}",
        "--distribution=block",
        "--cpu-bind=none",
        "--export=ALL",
    ]


def on_each_node(
    launch: Launch, program: Command, environment: Environment, log: Path
) -> subprocess.Popen:
    """Start a program once on each node of a run, alongside its ranks."""
    if launch.launcher == SRUN or len(launch.nodes) > 1:
        step = _srun(launch.job, len(launch.nodes), len(launch.nodes))
        step += ["--overlap", "--mpi=none", f"--job-name={_step_name(launch.job)}"]
        program = [*step, *program]
    return children.start(program, environment, log)


def _slurm_environment(job: str) -> Environment:
    return variables.passed() | {"SLURM_JOB_ID": job}


def _step_name(job: str) -> str:
    """Return the name of the job step that this process starts in an allocation."""
    return f"escala-{job}-{os.getpid()}"


def end_job_step(launch: Launch) -> None:
    """End the job step of `srun`, which may still run on other nodes; do nothing without a job."""
    if launch.job is None or launch.launcher != SRUN:
        return
    said = _printed(["squeue", "--steps", f"--jobs={launch.job}", "--noheader", "--format=%i %j"])
    for line in said.splitlines():
        number, _, name = line.strip().partition(" ")
        if name.strip() == _step_name(launch.job):
            _printed(["scancel", "--signal=KILL", number])
