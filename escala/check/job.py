"""Check a node inside a job of SLURM: resources that jobs get, and a login node does not."""

from __future__ import annotations

import os
import re
import socket
import tempfile
from datetime import UTC, datetime
from pathlib import Path

import psutil

from escala.check.machine import Check, check
from escala.core.children import capture
from escala.core.errors import Unavailable
from escala.core.hardware import available_cores, control_groups
from escala.core.readable import duration, with_noun
from escala.runtime import slurm

#: The checks, in the order in which they are printed.
CHECKS: list[Check] = []
PROCESSORS = Path("/sys/devices/system/cpu")
RDMA = Path("/sys/class/infiniband")
#: Types of file systems that several nodes see. Other types are taken as local to a node.
SHARED = {
    "afs", "beegfs", "ceph", "fuse.ceph", "fuse.glusterfs", "gpfs", "lustre", "nfs", "nfs4",
    "panfs", "pvfs2", "smb3", "wekafs",
}  # fmt: skip
#: Seconds that a program that a check calls may take.
_PROGRAM_SECONDS = 15


def in_a_job() -> bool:
    """Return whether this process is in a job of SLURM."""
    return slurm.job_number() is not None


@check("PMIx", "mpirun starts the ranks instead; or ask for SLURM with PMIx", among=CHECKS)
def pmix(listed: str | None = None) -> str:
    """Return the versions of PMIx that `srun --mpi=list` prints; `Unavailable` without PMIx."""
    listed = listed or slurm.output_of(["srun", "--mpi=list"], _PROGRAM_SECONDS)
    versions = sorted(set(re.findall(r"\bpmix\w*", listed)))
    if not versions:
        others = sorted(set(re.findall(r"^(?:srun: )?\s*(\w+)$", listed, re.MULTILINE)))
        raise Unavailable(f"srun --mpi=list has {', '.join(others) or 'nothing'}, and no pmix")
    return ", ".join(versions)


@check(
    "control groups",
    "the site does not bind jobs to their cores: submit with --exclusive, so that no other job is "
    "on the nodes",
    among=CHECKS,
)
def _groups() -> str:
    settings = slurm.output_of(["scontrol", "show", "config"], _PROGRAM_SECONDS)
    line = re.search(r"^TaskPlugin *= *(.*?) *$", settings, re.MULTILINE)
    plugins = line[1] if line else "unknown"
    if "cgroup" not in plugins:
        raise Unavailable(f"TaskPlugin is {plugins}")
    versions = {version for version, _ in control_groups("cpuset")}
    return f"{plugins}; version {', '.join(map(str, sorted(versions))) or 'unknown'}"


@check(
    "physical cores",
    "submit with --hint=nomultithread, or let a process have both threads of its cores: "
    "cores_per_process: 2",
    among=CHECKS,
)
def physical_cores(cores: list[int] | None = None, folder: Path = PROCESSORS) -> str:
    """Return the number of physical cores of some logical cores; `Unavailable` if two share one.

    `cores` are the logical cores; by default those of this process. The kernel describes cores in
    `folder` (`admin-guide/cputopology`).
    """
    siblings, cores = set(), cores or available_cores()
    for core in cores:
        file = folder / f"cpu{core}/topology/thread_siblings_list"
        siblings.add(file.read_text(encoding="utf-8").strip() if file.exists() else str(core))
    if len(siblings) < len(cores):
        raise Unavailable(
            f"the {len(cores)} cores of this process are threads of "
            f"{with_noun(len(siblings), 'physical core')}"
        )
    return f"{len(cores)}, and this process has one thread of each"


@check("interfaces", "ranks of several nodes need one; ask which network nodes share", among=CHECKS)
def interfaces() -> str:
    """Return the interfaces with an IPv4 address, except loopback, and their rates if known."""
    states, described = psutil.net_if_stats(), []
    for name, addresses in sorted(psutil.net_if_addrs().items()):
        ipv4 = [address.address for address in addresses if address.family == socket.AF_INET]
        if ipv4 and name != "lo" and name in states and states[name].isup:
            rate = f" ({states[name].speed / 1000:g} Gbit/s)" * (states[name].speed > 0)
            described.append(f"{name} {ipv4[0]}{rate}")
    if not described:
        raise Unavailable("only loopback has an IPv4 address")
    return (
        f"{', '.join(described)}; networks: {{NAME: {{interface: …}}}} of an experiment names one"
    )


@check(
    "RDMA devices",
    "ranks then exchange over TCP; if the site has InfiniBand, ask for nodes that have it, by "
    "--constraint or --partition",
    among=CHECKS,
)
def rdma() -> str:
    """Return the ports of RDMA devices with their link, state and rate, as the kernel lists them.

    `Unavailable` if no port is active.
    """
    ports = []
    for port in sorted(RDMA.glob("*/ports/*")):
        properties = [
            (port / name).read_text(encoding="utf-8").strip().rpartition(": ")[2]
            for name in ("link_layer", "state", "rate")
            if (port / name).exists()
        ]
        ports.append(" ".join([port.parents[1].name, *properties]))
    if not any("ACTIVE" in port for port in ports):
        raise Unavailable(f"none is active: {', '.join(ports)}" if ports else f"{RDMA} has none")
    return f"{', '.join(ports)}; MPI uses them by transport: ucx"


@check(
    "shared files",
    "work in a clone on a file system that all nodes see, mostly in $HOME, $WORK or $SCRATCH",
    among=CHECKS,
)
def _shared() -> str:
    """Check that every node of the job sees a file that this node writes."""
    kind, nodes = file_system(Path.cwd()), int(os.environ.get("SLURM_JOB_NUM_NODES") or 1)
    if nodes == 1:
        if kind not in SHARED:
            raise Unavailable(
                f"{Path.cwd()} is on {kind}, which mostly belongs to one node; to be sure, check "
                "in a job of two nodes"
            )
        return f"{Path.cwd()} is on {kind}"
    with tempfile.NamedTemporaryFile(dir=Path.cwd(), prefix=".escala-check-") as file:
        step = ["srun", "--overlap", "--mpi=none", f"--nodes={nodes}", f"--ntasks={nodes}"]
        done = capture([*step, "test", "-e", file.name], timeout=_PROGRAM_SECONDS)
    if done.returncode:
        raise Unavailable(f"not all {nodes} nodes see {Path.cwd()}, which is on {kind}")
    return f"{nodes} nodes see {Path.cwd()}, which is on {kind}"


def file_system(folder: Path) -> str:
    """Return the type of the file system of a folder."""
    mounts = [
        mount
        for mount in psutil.disk_partitions(all=True)
        if folder.is_relative_to(mount.mountpoint)
    ]
    return max(mounts, key=lambda mount: len(mount.mountpoint)).fstype if mounts else "unknown"


@check("time limit", "submit with --time=HH:MM:SS", among=CHECKS)
def _time() -> str:
    limits = slurm.output_of(["sinfo", "--noheader", "--format=%R %l"], _PROGRAM_SECONDS)
    partition = os.environ.get("SLURM_JOB_PARTITION", "")
    return time_left(slurm.ask_job(slurm.job_number()).ends, partition, limits)


def time_left(ends: datetime | None, partition: str, limits: str) -> str:
    """Return how long a job may go on, and the limit of its partition.

    `limits` is what `sinfo` prints: a partition and its limit on each line.
    """
    if ends is None:
        raise Unavailable("SLURM does not say when this job ends")
    allowed = dict(line.split()[:2] for line in limits.splitlines() if len(line.split()) > 1)
    longest = f"; the partition {partition} allows {allowed[partition]}" * (partition in allowed)
    return f"{duration((ends - datetime.now(UTC)).total_seconds())} are left{longest}"
