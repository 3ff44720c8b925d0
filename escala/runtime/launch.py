"""Start the processes of a run: on this machine, by `mpirun`, or by SLURM's `srun`.

| launcher | chosen by `auto` for |
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
from pathlib import Path

from escala.core import children, variables
from escala.core.errors import InputError, Unavailable
from escala.core.variables import CALLERS_PATH
from escala.runtime import slurm
from escala.runtime.layout import Layout
from escala.runtime.messages import cause
from escala.runtime.node import LOOPBACK, MARK, describe
from escala.runtime.placement import EXTRA_PORTS, Node, processes_per_node
from escala.runtime.spawn import PROCESS
from escala.strategies import STRATEGIES, Strategy
from escala.strategies.knobs import readable
from escala.workloads.program import Program
from escala.workloads.program_environment import passed_on, which

LOCAL, MPIRUN, SRUN = LAUNCHERS = ("local", "mpirun", "srun")

MPIRUN_PROGRAM = "mpirun"

Command = list[str]
Environment = dict[str, str]

_ALLOCATION = ("SLURM_JOB_ID", "SLURM_JOBID")

# Without both, Open MPI starts nothing for root.
_AS_ROOT = ("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM")

_SINGLE_COPY = "OMPI_MCA_btl_vader_single_copy_mechanism"

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
    for name in (PROCESS, "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
        if name in os.environ:
            return int(os.environ[name])
    return 0


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
        chosen = MPIRUN if strategy.mpi else LOCAL
        return Launch(chosen if asked == "auto" else asked, [describe(LOOPBACK, ports)], None)
    job = _allocation()
    if job is None or not _has("srun"):
        several = layout.nodes > 1
        raise InputError(
            "layout" if several else "launcher",
            str(layout) if several else asked,
            "needs several nodes, and this is one machine"
            if several
            else "needs a SLURM allocation",
            f"use {'a layout 1xN' if several else 'auto'}, or run through SLURM: "
            "snakemake --profile profiles/slurm",
        )
    nodes, world = _ask_nodes(job, layout, interface, ports, strategy.mpi)
    chosen = SRUN if not strategy.mpi or world == layout.nodes else MPIRUN
    return Launch(chosen if asked == "auto" else asked, nodes, job)


def require_host_of_allocation() -> None:
    """Refuse to measure runs of one node beside an allocation, as in the shell of `salloc`.

    Raises
    ------
    InputError : this shell holds an allocation, and this machine is none of its nodes.
    """
    job, nodes = _allocation(), os.environ.get("SLURM_JOB_NODELIST")
    # SLURM names the node to every process that it starts on one.
    if job is None or nodes is None or "SLURMD_NODENAME" in os.environ:
        return
    here = socket.gethostname()
    names = _output(["scontrol", "show", "hostnames", nodes]).split() if _has("scontrol") else []
    if {here, here.partition(".")[0]} & {*names, nodes}:
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
    return next((os.environ[name] for name in _ALLOCATION if os.environ.get(name)), None)


def _has(program: str) -> bool:
    return shutil.which(program) is not None


def _ask_nodes(
    job: str, layout: Layout, interface: str | None, ports: int, mpi: bool
) -> tuple[list[Node], int | None]:
    """Run `escala.runtime.node` on each node, without MPI if `srun` does not support it."""
    options = ["--ports", str(ports), "--addresses", json.dumps(_addresses())]
    options += ["--interface", interface] if interface else []
    base = _srun(job, layout.nodes, layout.nodes)
    program = [sys.executable, "-m", "escala.runtime.node", *options]
    calls = [[*base, "--mpi=none", *program]]
    if mpi and "pmix" in _output(["srun", "--mpi=list"]):
        calls.insert(0, [*base, "--mpi=pmix", *program, "--mpi"])
    for call in calls:
        done = subprocess.run(
            call,
            env=_slurm_environment(job) | own_mpi(),
            capture_output=True,
            text=True,
            timeout=_SURVEY_SECONDS,
        )
        said = [
            json.loads(line.partition(MARK)[2]) for line in done.stdout.splitlines() if MARK in line
        ]
        if done.returncode == 0 and len(said) == layout.nodes:
            break
    else:
        raise RuntimeError(f"srun failed on the nodes: {cause(done.stderr)}")
    said.sort(key=lambda node: node.pop("number"))
    world = min((node.pop("world") or 1) for node in said)
    return [Node(**node) for node in said], world


def _addresses() -> dict[str, str]:
    """Return the address of every node of the cluster, as SLURM knows it."""
    said = _output(["scontrol", "--oneliner", "show", "nodes"])
    return dict(re.findall(r"NodeName=(\S+).*?NodeAddr=(\S+)", said))


def _output(command: Command) -> str:
    done = slurm.call(command, _SURVEY_SECONDS)
    return done.stdout + done.stderr


def environment(
    strategy: str, knobs: dict, launch: Launch | None = None, program: Program | None = None
) -> Environment:
    """Return the environment of every process: what reaches it of this one's, and its own.

    Parameters
    ----------
    program : what the processes start, if they train nothing themselves. It also gets the variables
        that it names, and the project's Open MPI only where it needs it.
    """
    inherited = variables.passed()
    if program:
        inherited |= passed_on(program)
    threads, across = knobs["threads"]["intra_op"], {}
    if launch and launch.job:
        interface = launch.nodes[0].interface
        across = {
            "SLURM_JOB_ID": launch.job,
            # By this older name mpirun recognises that srun starts its daemons.
            "SLURM_JOBID": launch.job,
            "OMPI_MCA_btl_tcp_if_include": interface,
            "OMPI_MCA_oob_tcp_if_include": interface,
        }
    return (
        inherited
        | (
            {CALLERS_PATH: inherited.get(CALLERS_PATH, inherited.get("PATH", ""))}
            if program
            else {}
        )
        | (own_mpi() if program is None or _needs_own_mpi(strategy, program) else _as_root())
        | {
            "TF_CPP_MIN_LOG_LEVEL": inherited.get("TF_CPP_MIN_LOG_LEVEL", "2"),
        }
        | ({"OMP_NUM_THREADS": str(threads)} if threads else {})
        | ({_SINGLE_COPY: single_copy(launch.nodes)} if launch and STRATEGIES[strategy].mpi else {})
        | across
        | STRATEGIES[strategy].environment(readable(knobs, strategy))
    )


def _needs_own_mpi(strategy: str, program: Program) -> bool:
    """Return whether a program needs the variables of the project's Open MPI to find it."""
    starts = which(program, program.command[0])
    return _is_own(starts) or (STRATEGIES[strategy].mpi and _is_own(mpirun(program)))


def _is_own(path: str | None) -> bool:
    """Return whether a program is one of the project's environment."""
    return path is not None and Path(path).parent == Path(sys.prefix) / "bin"


def mpirun(program: Program | None = None) -> str:
    """Return the path of `mpirun`: that which a program finds by itself, or the project's.

    A program of the project's environment, with its Horovod, has the project's.

    Raises
    ------
    InputError : what the program finds is another MPI than Open MPI.
    """
    own = Path(sys.prefix) / "bin" / MPIRUN_PROGRAM
    if program is None or (own.exists() and _is_own(which(program, program.command[0]))):
        return str(own)
    found = which(program, MPIRUN_PROGRAM)
    if found and not _is_own(found) and "Open MPI" not in _output([found, "--version"]):
        raise InputError(
            f"{program.where}.environment",
            found,
            "is not of Open MPI, and the processes of a run are started by its options",
            "use own-launcher, and start the ranks in the command: mpirun -n {ranks_of_node} …",
        )
    return found or str(own)


def single_copy(nodes: Sequence[Node]) -> str:
    """Return the mechanism by which MPI ranks of one node copy from each other's memory.

    Returns
    -------
    `cma`, by which a rank reads the memory of the other one, or `none` where that is forbidden: the
    sender copies into shared memory, and the receiver out of it. Left to itself, Open MPI takes
    the first without trying it.
    """
    return "cma" if all(node.single_copy for node in nodes) else "none"


def own_mpi() -> Environment:
    """Return the variables that select the environment's own Open MPI, if it has one.

    Horovod is linked with it. It is installed in another place than it was built for, and a system
    MPI must not be used instead.
    """
    prefix = Path(sys.prefix)
    if not (prefix / "bin" / MPIRUN_PROGRAM).exists():
        return _as_root()
    libraries = [str(prefix / "lib"), *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
    return {
        "LD_LIBRARY_PATH": ":".join(libraries),
        "OPAL_PREFIX": str(prefix),
    } | _as_root()


def _as_root() -> Environment:
    return dict.fromkeys(_AS_ROOT, "1") if os.geteuid() == 0 else {}


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
        arguments[0] = mpirun(program)
    if not strategy.rendezvous:
        yield arguments, {}
        return
    first = launch.nodes[0]
    with _rendezvous(launch.nodes, places, first.address) as port:
        yield (
            arguments,
            {
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": first.address,
                "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
                "HOROVOD_GLOO_IFACE": first.interface,
            },
        )


def _local(launch: Launch, strategy: type[Strategy], processes: int) -> Command:
    private = ["--private-network"] if strategy.listens else []
    return [sys.executable, "-m", "escala.runtime.spawn", *private, str(processes)]


def _mpirun(launch: Launch, strategy: type[Strategy], processes: int) -> Command:
    per_node = processes // len(launch.nodes)
    across = len(launch.nodes) > 1
    hosts = [node.host for node in launch.nodes] if across else ["localhost"]
    options = {
        "-np": [str(processes)],
        "--host": [",".join(f"{host}:{per_node}" for host in hosts)],
        # Each rank binds itself to the cores of its place.
        "--bind-to": ["none"],
        # The ranks of one node exchange through shared memory: no transport listens on a port.
        "--mca btl": ["self,vader,tcp" if across else "self,vader"],
        "--mca oob_tcp_if_include": [launch.nodes[0].interface],
    }
    if across:
        # mpirun starts its daemons on the other nodes by srun, and lets srun choose the nodes.
        options["--mca plm_slurm_args"] = [
            f"--nodes={len(hosts) - 1} --nodelist={','.join(hosts[1:])}"
        ]
        # It needs no more of the allocation than the hosts above.
        options["--mca ras"] = ["^slurm"]
    else:
        # By default mpirun looks for ssh even without other nodes, and fails if there is none.
        options["--mca plm"] = ["isolated"]
    arguments = [word for key, values in options.items() for word in [*key.split(), *values]]
    return [mpirun(), *arguments]


def _by_srun(launch: Launch, strategy: type[Strategy], processes: int) -> Command:
    return [
        *_srun(launch.job, len(launch.nodes), processes),
        # A probe's program is another job step at the same time.
        "--overlap",
        f"--mpi={'pmix' if strategy.mpi else 'none'}",
        "--kill-on-bad-exit=1",
        f"--job-name={step_name(launch.job)}",
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
    """Start a program once on each node of a run, beside its ranks."""
    if launch.launcher == SRUN or len(launch.nodes) > 1:
        nodes = len(launch.nodes)
        beside = [*_srun(launch.job, nodes, nodes), "--overlap", "--mpi=none"]
        program = [*beside, f"--job-name={step_name(launch.job)}", *program]
    return children.start(program, environment, log)


def _slurm_environment(job: str) -> Environment:
    return variables.passed() | {"SLURM_JOB_ID": job}


def step_name(job: str) -> str:
    """Return the name of the job step that this process starts in an allocation."""
    return f"escala-{job}-{os.getpid()}"


def end_job_step(launch: Launch) -> None:
    """End the job step of `srun`, which may still run on other nodes; do nothing without a job."""
    if launch.job is None or launch.launcher != SRUN:
        return
    said = _output(["squeue", "--steps", f"--jobs={launch.job}", "--noheader", "--format=%i %j"])
    for line in said.splitlines():
        number, _, name = line.strip().partition(" ")
        if name.strip() == step_name(launch.job):
            _output(["scancel", "--signal=KILL", number])


@contextmanager
def _rendezvous(nodes: Sequence[Node], places: Sequence[dict], address: str) -> Iterator[int]:
    """Serve Horovod's rendezvous on one address; Horovod's own class listens on every address.

    Raises
    ------
    Unavailable : Escala's own environment has no Horovod, as for programs alone.
    """
    try:
        from horovod.runner.common.util.hosts import get_host_assignments, parse_hosts
        from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer
        from horovod.runner.util.threads import in_thread
    except ModuleNotFoundError:
        raise Unavailable(
            "its processes find each other by Horovod's server, and Escala's own environment has "
            "no Horovod. Remedy: horovod-mpi, or own-launcher with horovodrun in the command, or "
            "Escala from its clone, by uv sync"
        ) from None

    per_node = places[0]["processes_per_node"]
    hosts = parse_hosts(",".join(f"{node.host}:{per_node}" for node in nodes))
    server = RendezvousHTTPServer((address, 0), RendezvousHandler, False)
    server.init(get_host_assignments(hosts, len(places)))
    thread = in_thread(target=server.serve_forever)
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
