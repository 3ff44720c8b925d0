"""Start the lab, show its state, and remove it."""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from escala.core import environment
from escala.core.errors import InputError
from escala.core.hardware import available_cores, hardware_threads
from escala.lab import daemons, network
from escala.lab.state import (
    FOLDER,
    LOGS,
    SPOOL,
    Lab,
    Node,
    call,
    lock,
    read_lab,
    require_lab,
    write_lab,
)
from escala.runtime import slurm

#: SLURM removes `SLURM_CONF` from the environment of jobs, so its configuration must be here.
CONFIGURATION = Path("/etc/slurm/slurm.conf")
# `CONFIGURATION` is a link to this file. A link appears atomically, and its target shows that the
# lab made it.
_LAB_FILE = FOLDER / "slurm.conf"
PARTITION = "lab"
_NAME = "escala"
READY_SECONDS = 60

# Program -> its Debian package.
_PROGRAMS = {
    "munged": "munge",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "sbatch": "slurm-wlm",
    "ip": "iproute2",
    "tc": "iproute2",
    "iperf3": "iperf3",
    "ping": "iputils-ping",
    "nsenter": "util-linux",
    "taskset": "util-linux",
    "hostname": "hostname",
}

# SLURM opens this library by a name that only the development package of Debian installs.
_PMIX = "libpmix.so"

# SLURM watches memory by the processes of a job, because cgroups may be unavailable.
# `%n` is a node's name. TmpFS: in a shared /tmp, PMIx would mix the folders of the nodes.
_SLURM = f"""\
ClusterName={_NAME}
SlurmctldHost={daemons.SCHEDULER}({{scheduler}})
CommunicationParameters=NoCtldInAddrAny
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={daemons.SOCKET}
StateSaveLocation={SPOOL}/slurmctld
SlurmdSpoolDir={SPOOL}/%n
TmpFS={SPOOL}/tmp_%n
SlurmctldPidFile={FOLDER}/slurmctld.pid
SlurmdPidFile={FOLDER}/slurmd_%n.pid
SlurmctldLogFile={LOGS}/slurmctld.log
SlurmdLogFile={LOGS}/slurmd_%n.log
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=5
JobAcctGatherParams=OverMemoryKill
MailProg=/bin/true
SlurmdParameters=config_overrides
JobRequeue=0
KillWait=5
SlurmdTimeout=10
ReturnToService=2
{{nodes}}
PartitionName={PARTITION} Nodes=ALL Default=YES State=UP MaxTime=INFINITE OverSubscribe=NO
"""


@dataclass(frozen=True)
class State:
    """The state of a node.

    Attributes
    ----------
    state : SLURM's word for the state, or why SLURM gives no state.
    daemon : whether its `slurmd` runs.
    cut : whether its link is down.
    rates : the rates of the ends of the link, at the bridge and in the node, in Mbit/s; None:
        native.
    """

    node: Node
    state: str
    daemon: bool
    cut: bool
    rates: list[float | None]


def up(
    count: int,
    cores_per_node: int | None,
    say: Callable[[str], None] = print,
    subnet: str = network.SUBNET,
) -> Lab:
    """Start a lab, and wait until all of its nodes are idle. A running lab is not changed.

    Parameters
    ----------
    count : the number of nodes. Their names are `n1`, `n2`, and so on.
    cores_per_node : None: the nodes divide the cores of the machine, and each has at least one
        core. Nodes share cores if there are too few.
    say : called with a line on each step.
    subnet : 256 IPv4 addresses that nothing else uses, such as `198.18.0.0/24`.

    Raises
    ------
    InputError : the machine lacks a requirement; or a name, an address or a file of the lab is
        already in use.
    OSError : a part could not be started. The other parts are removed.
    """
    require_machine()
    with lock(FOLDER.parent):
        lab = read_lab()
        if lab and any_process_runs():
            say(f"The lab is up, with {len(lab.nodes)} nodes.")
            return lab
        if lab:
            say("All processes of the lab were killed: taking down what is left of it.")
            _remove()
        if FOLDER.exists() or SPOOL.exists() or _is_lab_configuration() or network.namespaces():
            remedy = f"remove it: {environment.call('lab down')}"
            raise InputError(FOLDER, str(FOLDER), "is a remaining part of a lab", remedy)
        if CONFIGURATION.exists() and not _is_lab_configuration():
            raise InputError(
                CONFIGURATION,
                str(CONFIGURATION),
                "belongs to a SLURM cluster that is not the lab",
                "use that cluster (--profile profiles/slurm), or move the file away",
            )
        nodes = plan_nodes(count, cores_per_node, available_cores(), subnet)
        lab = Lab(nodes, network.scheduler_address(subnet))
        network.refuse_taken(lab)
        try:
            _build(lab, say)
        except BaseException:
            say("Taking down what has been made.")
            _remove()
            raise
    return lab


def _build(lab: Lab, say: Callable[[str], None]) -> None:
    """Make the folders, the network and the files of a lab, and start its daemons."""
    of_nodes = [SPOOL / f"{prefix}{node.name}" for node in lab.nodes for prefix in ("", "tmp_")]
    for folder in (LOGS, SPOOL / "slurmctld", *of_nodes):
        folder.mkdir(parents=True)
    network.create(lab, secrets.token_hex(16))
    say(f"network: bridge {network.BRIDGE} and {len(lab.nodes)} links")
    _LAB_FILE.write_text(configuration(lab), encoding="utf-8")
    CONFIGURATION.symlink_to(_LAB_FILE)
    addresses = [(lab.scheduler, daemons.SCHEDULER), *((n.address, n.name) for n in lab.nodes)]
    lines = ["127.0.0.1 localhost", *(" ".join(pair) for pair in addresses)]
    daemons.HOSTS.write_text("\n".join(lines) + "\n", encoding="utf-8")
    daemons.start_munge()
    daemons.start_scheduler()
    say("daemons: munged and slurmctld")
    for node in lab.nodes:
        daemons.start_node(node)
        cores = ",".join(map(str, node.cores))
        say(f"daemons: slurmd of {node.name}, {node.address}, cores {cores}")
    _wait(lab, say)
    write_lab(lab)


def _wait(lab: Lab, say: Callable[[str], None]) -> None:
    """Wait until all nodes are idle, and print how many are idle."""
    deadline, before = time.monotonic() + READY_SECONDS, -1
    while True:
        states = _states()
        idle = sum(states.get(node.name) == "idle" for node in lab.nodes)
        if idle != before:
            say(f"nodes: {idle} of {len(lab.nodes)} idle")
        if idle == len(lab.nodes):
            return
        if time.monotonic() > deadline:
            logs = {path.name: path.read_text(encoding="utf-8") for path in sorted(LOGS.iterdir())}
            last = [f"{name}: {log.splitlines()[-1]}" for name, log in logs.items() if log]
            reason = "\n".join([f"not all nodes are idle after {READY_SECONDS} s", *last])
            raise TimeoutError(0, reason, "lab")
        before = idle
        time.sleep(0.5)


def any_process_runs() -> bool:
    """Return whether any process of a lab runs."""
    return any(True for _ in daemons.processes())


def down() -> None:
    """Remove the lab, or the remaining parts of a lab.

    Raises
    ------
    InputError : the user is not root, or the machine lacks a requirement.
    """
    require_machine()
    with lock(FOLDER.parent):
        _remove()


def _remove() -> None:
    daemons.stop_all()
    network.remove()
    if _is_lab_configuration():
        CONFIGURATION.unlink()
    for folder in (SPOOL, FOLDER):
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)


def status() -> list[State]:
    """Return the state of every node.

    Raises
    ------
    InputError : no lab is up.
    """
    require_machine()
    lab = require_lab()
    states = _states()
    return [
        State(
            node,
            states.get(node.name, "unknown: slurmctld does not answer"),
            daemons.slurmd_runs(node),
            network.is_cut(node),
            network.rates(node),
        )
        for node in lab.nodes
    ]


def shared_cores(nodes: Sequence[Node]) -> list[int]:
    """Return the logical cores whose physical core belongs to several nodes."""
    physical = {core: min(hardware_threads(core)) for node in nodes for core in node.cores}
    nodes_on = Counter(core for node in nodes for core in {physical[core] for core in node.cores})
    return sorted(logical for logical, core in physical.items() if nodes_on[core] > 1)


def plan_nodes(
    count: int, cores_per_node: int | None, cores: Sequence[int], subnet: str = network.SUBNET
) -> list[Node]:
    """Return the nodes of a lab. Cores are assigned in turn, and memory is divided.

    Raises
    ------
    InputError : there are too many nodes, a node would have more cores than the machine, or
        `subnet` is not 256 addresses.
    """
    if not 1 <= count <= network.MOST_NODES:
        raise InputError("nodes", count, "cannot be", f"ask for 1 to {network.MOST_NODES}")
    per_node = max(1, len(cores) // count) if cores_per_node is None else cores_per_node
    if not 1 <= per_node <= len(cores):
        raise InputError(
            "cores per node", per_node, f"cannot be: there are {len(cores)}", "ask for fewer"
        )
    memory = psutil.virtual_memory().total // 2**20 // count
    return [
        Node(
            f"n{number}",
            network.address(number, subnet),
            [cores[(per_node * (number - 1) + core) % len(cores)] for core in range(per_node)],
            memory,
        )
        for number in range(1, count + 1)
    ]


def configuration(lab: Lab) -> str:
    """Return the text of SLURM's configuration."""
    nodes = lab.nodes
    described = [
        f"NodeName={node.name} NodeHostname={node.name} NodeAddr={node.address} "
        f"CPUs={len(node.cores)} RealMemory={node.memory_mib} State=UNKNOWN"
        for node in nodes
    ]
    memory = min(node.memory_mib // len(node.cores) for node in nodes)
    lines = "\n".join([f"DefMemPerCPU={memory}", *described])
    return _SLURM.format(nodes=lines, scheduler=lab.scheduler)


def require_machine() -> None:
    """Refuse a machine that cannot run a lab.

    Raises
    ------
    InputError : programs are not installed, or the user is not root.
    """
    lacking = [program for program in _PROGRAMS if shutil.which(program) is None]
    packages = {_PROGRAMS[program] for program in lacking}
    try:
        ctypes.CDLL(_PMIX)
    except OSError:
        lacking.append(_PMIX)
        packages.add("libpmix-dev")
    if lacking:
        raise InputError(
            "lab",
            ", ".join(lacking),
            "not found",
            f"on Debian: apt-get install --no-install-recommends {' '.join(sorted(packages))}",
        )
    if os.geteuid() != 0:
        raise InputError("lab", "user", "is not root, who alone can make networks", "use sudo")


def abilities() -> str:
    """Return the requirements of a lab that this machine meets, for `escala check`.

    Raises
    ------
    InputError, OSError : a requirement is missing, for example the right to make networks.
    """
    require_machine()
    call("unshare", "--net", "true", timeout=10)
    return "root, its programs, and network namespaces"


def _is_lab_configuration() -> bool:
    return CONFIGURATION.is_symlink() and CONFIGURATION.readlink() == _LAB_FILE


def _states() -> dict[str, str]:
    """Return SLURM's state of each node by its name; empty while SLURM does not answer."""
    try:
        sinfo = "sinfo", "--noheader", "--Node", "--format=%N %t"
        lines = call(*sinfo, timeout=15, env=slurm.environment()).splitlines()
    except OSError:
        return {}
    return dict(map(str.split, lines))
