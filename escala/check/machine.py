"""Check what this machine can run: each ability with yes or no, and the remedy for a no.

A check is one function with the decorator `check`. For a yes it returns a detail. For a no it
raises `Unavailable` with the reason, or an `InputError` with the reason and a remedy.
"""

from __future__ import annotations

import os
import queue
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from escala.core import proc
from escala.core.children import capture
from escala.core.engines import ENGINES
from escala.core.errors import Answer, InputError, Unavailable
from escala.core.hardware import Driver, available_cores
from escala.engines import environments
from escala.runtime import launch, mpi, slurm
from escala.runtime.node import LOOPBACK, describe
from escala.strategies import STRATEGIES

#: Seconds that all checks together may take. A check without an answer after this time is a no.
LIMIT_SECONDS = 20.0
#: Seconds that a program that a check calls may take.
_PROGRAM_SECONDS = 10.0
POWERCAP = Path("/sys/class/powercap")

#: The function of a check; see `Check.examine`.
Examine = Callable[[], str]


@dataclass(frozen=True)
class Check:
    """One ability of a machine.

    Attributes
    ----------
    name : the printed name.
    remedy : what to do about a no.
    examine : returns a detail for a yes; raises `Unavailable` or `InputError` for a no.
    """

    name: str
    remedy: str
    examine: Examine


#: The checks, in the order in which they are printed.
CHECKS: list[Check] = []


def check(name: str, remedy: str, among: list[Check] = CHECKS) -> Callable[[Examine], Examine]:
    """Return a decorator that puts a function at the end of the list `among`, as a check."""

    def register(examine: Examine) -> Examine:
        among.append(Check(name, remedy, examine))
        return examine

    return register


def answers(checks: Sequence[Check], limit_seconds: float = LIMIT_SECONDS) -> Iterator[Answer]:
    """Run checks side by side and yield their answers in order.

    A check that hangs keeps a daemon thread. The process can end without waiting for such a thread.

    Parameters
    ----------
    limit_seconds : the time after which a check without an answer is a no.
    """
    deadline = time.monotonic() + limit_seconds
    queues: list[queue.SimpleQueue[Answer]] = [queue.SimpleQueue() for _ in checks]

    def answer_into(one: Check, into: queue.SimpleQueue[Answer]) -> None:
        into.put(_answer(one))

    for one, queue_of_one in zip(checks, queues, strict=True):
        threading.Thread(target=answer_into, args=(one, queue_of_one), daemon=True).start()
    for one, queue_of_one in zip(checks, queues, strict=True):
        try:
            yield queue_of_one.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            yield Answer(one.name, False, f"no answer within {limit_seconds:g} s", one.remedy)


def _answer(one: Check) -> Answer:
    try:
        return Answer(one.name, True, one.examine())
    except InputError as error:
        return Answer(one.name, False, f"{error.value}: {error.reason}", error.remedy)
    except (Unavailable, OSError) as error:
        reason, _, remedy = str(error).partition(". Remedy: ")
        return Answer(one.name, False, reason, remedy or one.remedy)
    except Exception as error:  # A broken check must not hide the other answers.
        return Answer(one.name, False, f"{type(error).__name__}: {error}", one.remedy)


@check("cores", "ask for two cores or more; processes that share one cannot be faster than one")
def _cores() -> str:
    cores = len(available_cores())
    if cores < 2:
        raise Unavailable("this process may use one core only")
    return f"{cores} for this process"


@check("C++ compiler", "on Debian: apt-get install g++ make")
def _compiler() -> str:
    """Look for the programs that compile Horovod during the installation."""
    lacking = [name for name in ("g++", "make") if shutil.which(name) is None]
    if lacking:
        raise Unavailable(f"{', '.join(lacking)}: not found on the PATH")
    return str(shutil.which("g++"))


def _framework(engine: str) -> str:
    """Import the packages of an engine in its environment, and return their versions."""
    try:
        python = environments.python(engine)
    except Unavailable:
        if os.environ.get(ENGINES[engine].environment.variable):
            raise
        raise Unavailable("not installed yet") from None
    return environments.describe(engine, python)


for _name, _engine in ENGINES.items():
    check(
        _engine.title,
        "the first experiment that needs it installs it; for nodes without a network: "
        f"{environments.remedy(_name)}",
    )(partial(_framework, _name))


@check("MPI", "programs without MPI do not need it; otherwise install Escala again")
def _mpi() -> str:
    processes, strategy = 2, STRATEGIES["mpi"]
    one_node = launch.Launch(launch.MPIRUN, [describe(LOOPBACK, 1)], None)
    say_rank = [sys.executable, "-c", "import os; print(os.environ['OMPI_COMM_WORLD_RANK'])"]
    with launch.command_line(one_node, strategy, [{}] * processes, say_rank) as (command, _):
        try:
            environment = os.environ | mpi.project_mpi()
            done = capture(command, env=environment, timeout=_PROGRAM_SECONDS)
        except FileNotFoundError:
            raise Unavailable("there is no mpirun") from None
        except subprocess.TimeoutExpired:
            raise Unavailable(f"mpirun did not end within {_PROGRAM_SECONDS:g} s") from None
    if done.returncode:
        cause = mpi.cause(done.stderr) or mpi.cause(done.stdout) or "no message"
        raise Unavailable(f"mpirun ended with {done.returncode}: {cause}")
    # The lines of two ranks may be mixed, so their words are sorted.
    ranks = sorted("".join(done.stdout.split()))
    if ranks != ["0", "1"]:
        raise Unavailable(f"mpirun started ranks {', '.join(ranks) or 'none'} in place of 0, 1")
    return f"mpirun starts {processes} processes"


@check(
    "direct copies",
    "in Docker: docker run --cap-add=SYS_PTRACE, or a seccomp profile with process_vm_readv; "
    "elsewhere: sysctl kernel.yama.ptrace_scope=1",
)
def _direct_copies() -> str:
    """Check whether MPI ranks may read each other's memory; else exchanges are copied twice."""
    if not proc.can_read_child():
        raise Unavailable(
            "process_vm_readv is forbidden here: MPI ranks copy through shared memory"
        )
    return "MPI ranks read each other's memory"


@check("SLURM", "call it on a cluster's login node, after `module load slurm` if that is needed")
def _slurm() -> str:
    slurm.require_controller()
    inside = "SLURM_JOB_ID" in os.environ
    return "its controller answers" + "; to check a node: srun --ntasks=1 escala check" * (
        not inside
    )


@check(
    "GPU",
    "install NVIDIA's driver, or in a job ask for one: --gres=gpu:1; without a GPU all strategies "
    "run on cores",
)
def _gpu() -> str:
    with Driver() as driver:
        if driver.missing is not None:
            raise Unavailable(f"NVML: {driver.missing}")
        names = [driver.read("Name", gpu) for gpu in driver.gpus]
    if not names:
        raise Unavailable("the driver knows no GPU")
    return ", ".join(names)


@check("energy counters", "an Intel or AMD processor that is not virtual has them")
def _energy() -> str:
    counters = sorted(POWERCAP.glob("intel-rapl:*/energy_uj"))
    if not counters:
        raise Unavailable(f"{POWERCAP} has no intel-rapl")
    try:
        for counter in counters:
            counter.read_text(encoding="utf-8")
    except PermissionError as error:
        raise InputError(
            POWERCAP,
            error.filename,
            "no permission to read it",
            f"as root: chmod a+r {POWERCAP}/intel-rapl:*/energy_uj (until the next start)",
        ) from None
    return ", ".join(counter.parent.name for counter in counters)
