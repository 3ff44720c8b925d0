"""Sample what the ranks of a run use, from one process on each node.

This module, started on a node, writes `node{n}.resources.csv`.
A value that cannot be read is empty, never 0.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import psutil

from escala import cli
from escala.core import proc
from escala.core.files import read_json
from escala.core.hardware import Driver
from escala.core.variables import MARKS
from escala.probes._sampler import (
    SAMPLE_SECONDS,
    Announced,
    announce,
    command,
    read_arguments,
    read_samples,
    sample,
)
from escala.probes.base import Probe, object_schema, section, value

if TYPE_CHECKING:
    import pandas as pd

#: The columns of `node{n}.resources.csv`: one row per rank and sample. `seconds` is in
#: `time.monotonic`, one clock for all processes of a machine. `cpu_percent` is since the rank's
#: previous sample, 100 for one core; `threads_running` counts threads that run or wait for a core.
#: Switches are totals over all threads; for a thread that has ended, its last sample counts. Bytes
#: are the counters of the interface, in the rank's own network namespace, for all processes that
#: share it. `gpu_percent` is the sum over the GPUs on which the rank computes, and contains the use
#: by other processes. Bytes read and written are what the processes have moved from and to storage
#: since they began, without what a cache in memory held.
COLUMNS = (
    "seconds", "rank", "cpu_percent", "threads", "threads_running", "voluntary_switches",
    "involuntary_switches", "rss_bytes", "sent_bytes", "received_bytes", "gpu_percent",
    "gpu_memory_bytes", "read_bytes", "written_bytes",
)  # fmt: skip
_quantity = partial(value, minimum=0)
_INTERFACE = "the run's interface {}, for all processes that share it."
_RESULT = {
    "rank": _quantity("integer", "Number of the process."),
    "samples": _quantity("integer", "Samples taken during the training steps.", "samples"),
    "cpu_percent_mean": _quantity("number?", "Mean use of the processor, 100 for one core.", "%"),
    "rss_bytes_max": _quantity("integer?", "Largest resident memory.", "bytes"),
    "threads_max": _quantity("integer?", "Largest number of threads.", "threads"),
    "threads_running_mean": _quantity(
        "number?", "Mean number of threads that ran or waited for a core.", "threads"
    ),
    "voluntary_switches_per_second": _quantity(
        "number?", "Context switches because a thread waited, of all threads.", "1/s"
    ),
    "involuntary_switches_per_second": _quantity(
        "number?", "Context switches because the core was taken away, of all threads.", "1/s"
    ),
    "sent_bytes": _quantity("integer?", f"What {_INTERFACE.format('sent')}", "bytes"),
    "sent_bytes_per_second": _quantity("number?", "`sent_bytes` per second.", "bytes/s"),
    "received_bytes": _quantity("integer?", f"What {_INTERFACE.format('received')}", "bytes"),
    "received_bytes_per_second": _quantity("number?", "`received_bytes` per second.", "bytes/s"),
    "gpu_percent_mean": _quantity(
        "number?", "Mean use, by all processes, of the GPUs on which this process computed.", "%"
    ),
    "gpu_memory_bytes_max": _quantity("integer?", "Most memory on these GPUs.", "bytes"),
    "read_bytes_max": _quantity(
        "integer?",
        "What it read from storage until the training steps ended, without what memory held.",
        "bytes",
    ),
    "written_bytes_max": _quantity("integer?", "What it wrote to storage until then.", "bytes"),
}


class Resources(Probe):
    """Processor, memory and network use of each process, sampled by a process of its node."""

    captures_programs = True
    settings = section(
        "A separate run in which a process outside the ranks samples what they use.",
        enabled=False,
        seconds=value(
            "number",
            "Time between samples.",
            exclusiveMinimum=0,
            maximum=3600,
            default=SAMPLE_SECONDS,
        ),
    )
    result: ClassVar[dict] = value(
        "array?",
        "What each process used during the training steps, sampled from outside; null in a run "
        "without this probe.",
        items=object_schema(_RESULT),
    )
    temporary = ("rank*.pid",)
    tabulated = True

    def program(self, interface):
        return command(__name__, self.folder, self.values["seconds"], interface)

    @contextmanager
    def around(self, process, node):
        starts = "start" in read_json(self.folder / "plan.json")
        announce(self.folder, process, node, starts=starts)
        yield

    def read(self, processes):
        import pandas as pd

        samples = pd.concat(read_samples(self.folder, "resources").values(), ignore_index=True)
        return summary(samples, training_moments(processes))


def training_moments(processes: list[dict]) -> dict[int, tuple[float, float] | None]:
    """Return when the training steps of each process began and ended, by its number.

    A process that only serves others gets the moments of a process that trains on the same machine,
    or None if there is no such process.

    Parameters
    ----------
    processes : the measurements of each process, in the order of the processes. Moments are in
        `time.monotonic`.
    """
    trainers = {}
    for number, process in enumerate(processes):
        if epochs := process.get("epochs"):
            end = epochs[-1]["began"] + epochs[-1]["train_seconds"]
            trainers[number] = epochs[0]["began"], end
    by_machine = {processes[number]["boot"]: moments for number, moments in trainers.items()}
    of_machines = {n: by_machine.get(process["boot"]) for n, process in enumerate(processes)}
    return of_machines | trainers


class NodeRanks:
    """The ranks of a node, and what they use.

    Parameters
    ----------
    interface : the network interface whose counters are read.
    """

    def __init__(self, interface: str):
        self._interface, self._driver = interface, Driver()
        self._ranks: dict[int, Rank] = {}

    def rows(self, announced: Announced) -> Iterator[list]:
        """Yield the row of each rank that runs, in `COLUMNS`; see `_sampler.sample`."""
        for number, rank in announced.items():
            if number not in self._ranks:
                self._ranks[number] = Rank(number, rank["pid"], rank["started"], rank["starts"])
        use = gpu_use(self._driver)
        for rank in self._ranks.values():
            row = rank.row(self._interface)
            if row is not None:
                row |= rank.on_gpus(use)
                yield [row[column] for column in COLUMNS]


def gpu_use(driver: Driver) -> GpuUse:
    """Return, by process id, use in percent and memory in bytes over the process's GPUs.

    Use is of the whole GPU, by all its processes; memory is that of the process.
    """
    use: dict[int, tuple[float | None, int | None]] = {}
    for gpu in driver.gpus:
        rates = driver.read_or_none("UtilizationRates", gpu)
        for process in driver.read_or_none("ComputeRunningProcesses", gpu) or []:
            on_gpu = (rates and rates.gpu, process.usedGpuMemory)
            use[process.pid] = tuple(map(sum_or_none, use.get(process.pid, (0, 0)), on_gpu))
    return use


def summary(table: pd.DataFrame, within: Mapping[int, tuple[float, float] | None]) -> list[dict]:
    """Summarise the samples of each rank taken between two moments, both included.

    The growth of a counter (context switches, bytes) is taken between the first and the last of
    these samples, and so is its rate per second. Bytes are those of the interface: ranks that share
    an interface have the same bytes. Do not add them up.

    Parameters
    ----------
    table : samples in `COLUMNS`, with NaN for missing values.
    within : the two moments of each rank, in seconds of `time.monotonic` on its machine; None takes
        all samples of the rank.

    Returns
    -------
    One entry per rank of the table, by increasing rank. A value that was not read, or that needs
    more samples, is None.
    """
    summaries = []
    for rank, samples in table.groupby("rank"):
        if moments := within[rank]:
            samples = samples[samples["seconds"].between(*moments)]
        result = {"rank": int(rank), "samples": len(samples)}
        for name in ("cpu_percent", "threads_running", "gpu_percent"):
            result[f"{name}_mean"] = _or_none(float, samples[name].mean())
        for name in ("rss_bytes", "threads", "gpu_memory_bytes", "read_bytes", "written_bytes"):
            result[f"{name}_max"] = _or_none(int, samples[name].max())
        for name in ("voluntary_switches", "involuntary_switches", "sent_bytes", "received_bytes"):
            known, growth, rate = samples.sort_values("seconds").dropna(subset=name), None, None
            if len(known) > 1:
                first, last = known.iloc[0], known.iloc[-1]
                growth = int(last[name] - first[name])
                rate = float(last[name] - first[name]) / (last["seconds"] - first["seconds"])
            result[f"{name}_per_second"] = rate
            if name in _RESULT:
                result[name] = growth
        summaries.append(result)
    return summaries


def _or_none(kind: type, value: float) -> float | None:
    return None if math.isnan(value) else kind(value)


_STATE = re.compile(rb"^State:\s+(\S)", re.MULTILINE)
_SWITCHES = re.compile(rb"^(?:non)?voluntary_ctxt_switches:\s+(\d+)", re.MULTILINE)
_ENDED = (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError)

#: Use in percent and memory in bytes of GPUs, None where they are not known, by process id.
GpuUse = Mapping[int, tuple[float | None, int | None]]


class Rank:
    """A rank's process, or the processes of the program that the rank starts.

    Parameters
    ----------
    number : number of the rank.
    pid, started : id of the rank's process, and when the process began
        (`escala.core.proc.start_time`).
    starts : whether the rank starts a program. The processes of the program are then read in place
        of the rank's process: those with the variable of the marks, and their descendants. Other
        processes that the rank starts, such as a neighbour that keeps its cores busy, do not count.
    """

    def __init__(self, number: int, pid: int, started: float, starts: bool = False):
        self.number, self._pid, self._began, self._starts = number, pid, started, starts
        # Process ids of its program so far, and the processes of the last row.
        self._members: set[int] = set()
        self._processes: list[psutil.Process] = []
        # Moment and CPU seconds of the last row.
        self._cpu: tuple[float, float] | None = None
        # Voluntary and involuntary switches: of each thread at the last row, and in all.
        self._counts: dict[str, tuple[int, int]] = {}
        self._switches = (0, 0)

    def row(self, interface: str) -> dict | None:
        """Return what the rank uses now; None if it has ended, or if its program does not run.

        `cpu_percent` is for the time since the last call, at first None. A value that cannot be
        read is None.
        """
        if not proc.is_running(self._pid, self._began):
            return None
        with suppress(*_ENDED):
            return self._row(psutil.Process(self._pid), interface)
        return None

    def _row(self, process: psutil.Process, interface: str) -> dict | None:
        seconds = time.monotonic()
        self._processes = self._program(process) if self._starts else [process]
        if not self._processes:
            return None
        threads = _unless_denied(_threads, self._processes)
        voluntary, involuntary = None, None
        if threads:
            # The counter of a thread ends with the thread, so counters cannot be added as they are.
            for thread, (_, counts) in threads.items():
                before = self._counts.get(thread, (0, 0))
                parts = zip(self._switches, counts, before, strict=True)
                self._switches = tuple(total + now - then for total, now, then in parts)
            self._counts = {thread: counts for thread, (_, counts) in threads.items()}
            voluntary, involuntary = self._switches
        moved = _unless_denied(lambda: [process.io_counters() for process in self._processes])
        sent, received = _unless_denied(_traffic, self._pid, interface) or (None, None)
        return {
            "seconds": f"{seconds:.6f}",
            "rank": self.number,
            "cpu_percent": _unless_denied(self._cpu_percent, self._processes),
            "threads": threads and len(threads),
            "threads_running": threads and sum(state == b"R" for state, _ in threads.values()),
            "voluntary_switches": voluntary,
            "involuntary_switches": involuntary,
            # Memory that several processes share counts once for each process.
            "rss_bytes": _unless_denied(
                lambda: sum(process.memory_info().rss for process in self._processes)
            ),
            "sent_bytes": sent,
            "received_bytes": received,
            # Processes that have ended count for the process that waited for them.
            "read_bytes": moved and sum(counters.read_bytes for counters in moved),
            "written_bytes": moved and sum(counters.write_bytes for counters in moved),
        }

    def on_gpus(self, use: GpuUse) -> dict:
        """Return the use of GPUs by the processes of the last row."""
        used = [use[process.pid] for process in self._processes if process.pid in use]
        percent, memory = zip(*used, strict=True) if used else ((None,), (None,))
        return {"gpu_percent": sum_or_none(*percent), "gpu_memory_bytes": sum_or_none(*memory)}

    def _program(self, rank: psutil.Process) -> list[psutil.Process]:
        """Return the processes of the program that run now."""
        members = []
        for process in rank.children(recursive=True):
            with suppress(psutil.Error, OSError):
                if process.pid not in self._members:
                    variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
                    marked = any(line.startswith(f"{MARKS}=".encode()) for line in variables)
                    if not (marked or process.ppid() in self._members):
                        continue
                    self._members.add(process.pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    members.append(process)
        return members

    def _cpu_percent(self, processes: list[psutil.Process]) -> float | None:
        """Return the use of the processor since the last row, also by children that have ended."""
        names = ["user", "system"] + ["children_user", "children_system"] * self._starts
        times = [process.cpu_times() for process in processes]
        now = (time.monotonic(), sum(getattr(used, name) for used in times for name in names))
        before, self._cpu = self._cpu, now
        if before is None:
            return None
        return round(100 * max(0.0, now[1] - before[1]) / (now[0] - before[0]), 2)


def sum_or_none(*numbers: float | None) -> float | None:
    """Return a sum, or None if one of the numbers is not known."""
    return None if None in numbers else sum(numbers)


def _threads(processes: list[psutil.Process]) -> dict[str, tuple[bytes, tuple[int, int]]]:
    """Return the state, and the voluntary and involuntary switches, of each thread.

    `psutil.Process.num_ctx_switches` has only the switches of the main thread.
    """
    threads = {}
    for task in (f"/proc/{process.pid}/task" for process in processes):
        for thread in os.listdir(task):  # noqa: PTH208 - twice as fast
            with suppress(FileNotFoundError, ProcessLookupError):  # It ended since it was listed.
                status = Path(f"{task}/{thread}/status").read_bytes()
                voluntary, involuntary = map(int, _SWITCHES.findall(status))
                threads[thread] = (_STATE.search(status)[1], (voluntary, involuntary))
    if not threads:
        raise ProcessLookupError("the process has no threads left")
    return threads


def _traffic(pid: int, interface: str) -> tuple[int, int] | None:
    """Return the bytes an interface of a process's network namespace has sent and received."""
    for line in Path(f"/proc/{pid}/net/dev").read_text(encoding="utf-8").splitlines():
        name, _, counters = line.partition(":")
        if name.strip() == interface:
            received, sent = (int(counters.split()[place]) for place in (0, 8))
            return sent, received
    return None


def _unless_denied(read: Callable, *arguments: object) -> Any:
    try:
        return read(*arguments)
    except (psutil.AccessDenied, PermissionError):
        return None


def main() -> None:
    folder, node, seconds, interface = read_arguments()
    sample(folder, node, "resources", COLUMNS, NodeRanks(interface).rows, seconds)


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
