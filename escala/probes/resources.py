"""Sample the resources of the ranks of one node, from a process outside them.

`python -m escala.probes.resources FOLDER --node N --interface NAME` samples the ranks that have
announced themselves in a run's `ranks/` folder. It writes `node{n}.resources.csv` there until all
of them have ended. A value that cannot be read is empty, never 0.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import re
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import psutil

from escala import cli
from escala.core import clock
from escala.core.children import die_with_parent
from escala.core.files import read_json, write_json
from escala.probes._started import Started, cpu_seconds
from escala.probes.base import Probe, section

if (
    TYPE_CHECKING
):  # The sampler runs while ranks start, so it does not load modules that it does not need.
    import pandas as pd

SAMPLE_SECONDS = 0.5

#: The columns of `node{n}.resources.csv`: one row per rank and sample.
COLUMNS = (
    "seconds",
    "rank",
    "cpu_percent",
    "threads",
    "threads_running",
    "voluntary_switches",
    "involuntary_switches",
    "rss_bytes",
    "sent_bytes",
    "received_bytes",
    "gpu_percent",
    "gpu_memory_bytes",
)

_STATE = re.compile(rb"^State:\s+(\S)", re.MULTILINE)
_SWITCHES = re.compile(rb"^(?:non)?voluntary_ctxt_switches:\s+(\d+)", re.MULTILINE)


def _quantity(kind: str, description: str, unit: str | None = None) -> dict:
    """Return the JSON Schema of a number that may not have been read."""
    schema = {"description": description, "type": [kind, "null"], "minimum": 0}
    return schema if unit is None else schema | {"unit": unit}


def _number_of(description: str, unit: str | None = None) -> dict:
    """Return the JSON Schema of an integer that is always known."""
    return _quantity("integer", description, unit) | {"type": "integer"}


_RESULT = {
    "rank": _number_of("Number of the process."),
    "samples": _number_of("Samples taken during the training steps.", "samples"),
    "cpu_percent_mean": _quantity("number", "Mean use of the processor, 100 for one core.", "%"),
    "rss_bytes_max": _quantity("integer", "Largest resident memory.", "bytes"),
    "threads_max": _quantity("integer", "Most threads.", "threads"),
    "threads_running_mean": _quantity(
        "number", "Mean number of threads that ran or waited for a core.", "threads"
    ),
    "voluntary_switches_per_second": _quantity(
        "number", "Context switches because a thread waited, of all threads.", "1/s"
    ),
    "involuntary_switches_per_second": _quantity(
        "number", "Context switches because the core was taken away, of all threads.", "1/s"
    ),
    "sent_bytes": _quantity(
        "integer", "What the run's interface sent, for all processes that share it.", "bytes"
    ),
    "sent_bytes_per_second": _quantity("number", "The same per second.", "bytes/s"),
    "received_bytes": _quantity(
        "integer", "What the run's interface received, for all processes that share it.", "bytes"
    ),
    "received_bytes_per_second": _quantity("number", "The same per second.", "bytes/s"),
    "gpu_percent_mean": _quantity(
        "number", "Mean use of the GPUs it computed on, for all processes that do.", "%"
    ),
    "gpu_memory_bytes_max": _quantity("integer", "Most memory of these GPUs.", "bytes"),
}


class Resources(Probe):
    """Processor, memory and network use of each process, sampled by a process of its node."""

    scope = "node"
    kinds = frozenset({"steps", "command"})
    settings = section(
        "A separate run of every program, and of one epoch of every gradient-trained "
        "configuration, in which a process outside the ranks samples what they use.",
        enabled=False,
        seconds={
            "description": "Seconds from one sample to the next.",
            "type": "number",
            "exclusiveMinimum": 0,
            "maximum": 3600,
            "default": SAMPLE_SECONDS,
        },
    )
    result: ClassVar[dict] = {
        "description": "What each process used during the training steps, sampled from outside; "
        "null unless that is what the run captured.",
        "type": ["array", "null"],
        "items": {
            "type": "object",
            "additionalProperties": False,
            "required": list(_RESULT),
            "properties": _RESULT,
        },
    }
    temporary = ("rank*.pid",)
    tabulated = True

    def program(self, interface):
        options = ["--interface", interface, "--seconds", f"{self.values['seconds']:g}"]
        return [sys.executable, "-m", __name__, str(self.folder), *options]

    @contextmanager
    def around(self, process, node):
        starts = read_json(self.folder / "request.json")["kind"] == "command"
        announce(self.folder, process, node, starts)
        yield

    def read(self, processes):
        return summary(read(self.folder), trained(processes))


def announce(folder: Path, rank: int, node: int, starts: bool = False) -> None:
    """Write `rank{rank}.pid`, by which the sampler of `node` finds this process.

    Parameters
    ----------
    starts : whether it starts a program, whose processes are sampled in its place.
    """
    content = {"node": node, "pid": os.getpid(), "started": clock.started(), "starts": starts}
    write_json(folder / f"rank{rank}.pid", content, durable=False)


def trained(processes: list[dict]) -> dict[int, tuple[float, float] | None]:
    """Return when the training steps of each process began and ended, by its number.

    A process that only serves others has the steps of one that trains on the same machine. None
    stands for a run that was resumed after its last epoch.

    Parameters
    ----------
    processes : the measurements of each process, in their order; moments in `time.monotonic`.
    """
    own = {number: _steps(each) for number, each in enumerate(processes) if "epochs" in each}
    of_machine = {processes[number]["boot"]: moments for number, moments in own.items()}
    return {number: of_machine.get(each["boot"]) for number, each in enumerate(processes)} | own


def _steps(process: dict) -> tuple[float, float] | None:
    """Return when the training steps of a process began and ended, since its last resumption."""
    epochs = process["epochs"][max(process.get("resumed_after", ()), default=0) :]
    if not epochs:
        return None
    return epochs[0]["began"], epochs[-1]["began"] + epochs[-1]["train_seconds"]


def sample(folder: Path, node: int, interface: str, seconds: float = SAMPLE_SECONDS) -> Path:
    """Write a row for each of the node's ranks every `seconds`, until all of them have ended.

    Ranks may announce themselves and end at any time. If no rank ever announces itself, this
    continues until it is stopped.

    Parameters
    ----------
    folder : the run's `ranks/` folder.
    interface : the network interface whose counters are read, in each rank's own network namespace.

    Returns
    -------
    The written table, with `COLUMNS`. `seconds` is in `time.monotonic`, one clock for all processes
    of a machine, which is never set. `cpu_percent` is for the time since the rank's previous
    sample, 100 for one core. `threads_running` counts threads that run or wait for a core. Switches
    are totals over all threads; for threads that have ended, the last sample counts. Bytes are the
    counters of the interface, for all processes that share it. `gpu_percent` is the sum over the
    GPUs on which the rank computes, for all processes on them.
    """
    output = folder / f"node{node}.resources.csv"
    ranks: dict[int, _Rank] = {}
    gpus = Gpus()
    begin = time.monotonic()
    with open(output, "w", newline="", buffering=1) as handle:
        writer = csv.DictWriter(handle, COLUMNS)
        writer.writeheader()
        for number in count(1):
            _meet(folder, node, ranks)
            on_gpus = gpus.use()
            for rank in ranks.values():
                row = rank.sample(interface)
                if row is not None:
                    writer.writerow(row | rank.on_gpus(on_gpus))
            if ranks and all(rank.ended for rank in ranks.values()):
                return output
            time.sleep(max(0.0, begin + number * seconds - time.monotonic()))


def _meet(folder: Path, node: int, ranks: dict[int, _Rank]) -> None:
    """Add to `ranks` those of the node that have announced themselves since the last call."""
    for path in folder.glob("rank*.pid"):
        number = int(re.search(r"\d+", path.name)[0])
        if number not in ranks:
            announced = read_json(path)
            if announced["node"] == node:
                ranks[number] = _Rank(
                    number, announced["pid"], announced["started"], announced["starts"]
                )


class _Rank:
    """A rank's process, or those of the program that it starts, and their state between samples."""

    def __init__(self, number: int, pid: int, started: float, starts: bool = False):
        self.number, self.pid = number, pid
        self._process = _process(pid, started)
        self._started = Started(self._process) if starts and self._process else None
        self._sampled: list[psutil.Process] = []
        self._cpu: tuple[float, float] | None = None
        self._seen: dict[str, tuple[int, int]] = {}
        self._switches = (0, 0)

    @property
    def ended(self) -> bool:
        return self._process is None

    def sample(self, interface: str) -> dict | None:
        """Return the row of this moment, or None if the process has ended."""
        if self._process is None:
            return None
        try:
            return self._row(self._process, interface)
        except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
            # A process of a program may end before the rank does.
            if not (self._started and _runs(self._process)):
                self._process = None
            return None

    def on_gpus(self, use: Mapping[int, tuple[float | None, int | None]]) -> dict:
        """Return the use of GPUs by what was sampled last, from that of each process."""
        found = [use[process.pid] for process in self._sampled if process.pid in use]
        percent, memory = zip(*found, strict=True) if found else ((None,), (None,))
        return {"gpu_percent": _sum(*percent), "gpu_memory_bytes": _sum(*memory)}

    def _row(self, process: psutil.Process, interface: str) -> dict | None:
        if not _runs(process):
            raise psutil.NoSuchProcess(self.pid)
        seconds = time.monotonic()
        self._sampled = sampled = self._started.processes() if self._started else [process]
        if not sampled:
            return None
        with process.oneshot():
            cpu_percent = _unless_denied(self._cpu_percent, sampled)
            memory = _unless_denied(_memory, sampled)
        threads = _unless_denied(_threads, sampled)
        voluntary, involuntary = self._count(threads) if threads else (None, None)
        sent, received = _unless_denied(_traffic, self.pid, interface) or (None, None)
        return {
            "seconds": f"{seconds:.6f}",
            "rank": self.number,
            "cpu_percent": cpu_percent,
            "threads": threads and len(threads),
            "threads_running": threads and sum(state == b"R" for state, _ in threads.values()),
            "voluntary_switches": voluntary,
            "involuntary_switches": involuntary,
            "rss_bytes": memory,
            "sent_bytes": sent,
            "received_bytes": received,
        }

    def _cpu_percent(self, processes: list[psutil.Process]) -> float | None:
        """Return the use of the processor since the last call, in percent, at first None."""
        now = (time.monotonic(), cpu_seconds(processes, ended=self._started is not None))
        before, self._cpu = self._cpu, now
        if before is None:
            return None
        return round(100 * max(0.0, now[1] - before[1]) / (now[0] - before[0]), 2)

    def _count(self, threads: dict[str, tuple[bytes, tuple[int, int]]]) -> tuple[int, int]:
        """Add the counts of the threads since the last sample: a thread's counter ends with it."""
        for thread, (_, counted) in threads.items():
            before = self._seen.get(thread, (0, 0))
            self._switches = tuple(
                total + now - then
                for total, now, then in zip(self._switches, counted, before, strict=True)
            )
        self._seen = {thread: counted for thread, (_, counted) in threads.items()}
        return self._switches


def _process(pid: int, started: float) -> psutil.Process | None:
    """Return the process that announced itself, or None if it has ended."""
    try:
        # Another process may have this number by now.
        return psutil.Process(pid) if clock.started(pid) == started else None
    except (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
        return None


def _runs(process: psutil.Process) -> bool:
    """Return false for another process with the same id, and for one that waits to be reaped."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _memory(processes: list[psutil.Process]) -> int:
    """Return the resident memory of some processes; what they share counts for each of them."""
    return sum(process.memory_info().rss for process in processes)


def _threads(processes: list[psutil.Process]) -> dict[str, tuple[bytes, tuple[int, int]]]:
    """Return the state, and the voluntary and involuntary switches, of each thread (man 5 proc).

    `psutil.Process.num_ctx_switches` has only those of the main thread.
    """
    found = {}
    for task in (f"/proc/{process.pid}/task" for process in processes):
        for thread in os.listdir(task):  # noqa: PTH208 - twice as fast
            try:
                status = Path(f"{task}/{thread}/status").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue  # It has ended since it was listed.
            voluntary, involuntary = map(int, _SWITCHES.findall(status))
            found[thread] = (_STATE.search(status)[1], (voluntary, involuntary))
    if not found:
        raise ProcessLookupError("the process has no threads left")
    return found


def _traffic(pid: int, interface: str) -> tuple[int, int] | None:
    """Return the bytes an interface of a process's network namespace has sent and received."""
    for line in Path(f"/proc/{pid}/net/dev").read_text().splitlines():
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


class Gpus:
    """The NVIDIA GPUs of this node; none without a driver."""

    def __init__(self):
        import pynvml

        self._nvml = pynvml
        try:
            pynvml.nvmlInit()
            number = pynvml.nvmlDeviceGetCount()
            self._devices = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(number)]
        except pynvml.NVMLError:
            self._devices = []

    def use(self) -> dict[int, tuple[float | None, int | None]]:
        """Return, by process id, use in percent and memory in bytes over the process's GPUs.

        Use is of the whole GPU, by all its processes; memory is that of the process.
        """
        found: dict[int, tuple[float | None, int | None]] = {}
        for device in self._devices:
            rates = self._read(self._nvml.nvmlDeviceGetUtilizationRates, device)
            processes = self._read(self._nvml.nvmlDeviceGetComputeRunningProcesses, device)
            for process in processes or []:
                before = found.get(process.pid, (0, 0))
                here = (rates and rates.gpu, process.usedGpuMemory)
                found[process.pid] = tuple(map(_sum, before, here))
        return found

    def _read(self, read: Callable, device: object) -> Any:
        try:
            return read(device)
        except self._nvml.NVMLError:
            return None


def _sum(*numbers: float | None) -> float | None:
    return None if None in numbers else sum(numbers)


def read(folder: Path) -> pd.DataFrame:
    """Return the samples of all nodes of a run, in `COLUMNS`, with NaN for missing values.

    Raises
    ------
    ValueError : the folder holds no samples.
    """
    import pandas as pd

    return pd.concat(
        [pd.read_csv(path) for path in sorted(folder.glob("node*.resources.csv"))],
        ignore_index=True,
    )


def summary(table: pd.DataFrame, within: Mapping[int, tuple[float, float] | None]) -> list[dict]:
    """Summarise the samples of each rank taken between two moments, both included.

    The growth of a counter (context switches, bytes) is taken between the first and the last of
    those samples, and so is its rate per second. Bytes are those of the interface: ranks that share
    one have the same bytes, which must not be added.

    Parameters
    ----------
    table : the result of `read`.
    within : the two moments of each rank, in seconds of `time.monotonic` on its machine; None
        takes all its samples.

    Returns
    -------
    One entry per rank of the table, in their order; None stands for a value that was not read, or
    that needs more samples.
    """
    return [
        {"rank": int(rank), **_summary(_between(samples, within[rank]))}
        for rank, samples in table.groupby("rank")
    ]


def _between(samples: pd.DataFrame, moments: tuple[float, float] | None) -> pd.DataFrame:
    return samples if moments is None else samples[samples["seconds"].between(*moments)]


def _summary(samples: pd.DataFrame) -> dict:
    sent, sent_rate = _growth(samples, "sent_bytes")
    received, received_rate = _growth(samples, "received_bytes")
    return {
        "samples": len(samples),
        "cpu_percent_mean": _number(samples["cpu_percent"].mean()),
        "rss_bytes_max": _whole(samples["rss_bytes"].max()),
        "threads_max": _whole(samples["threads"].max()),
        "threads_running_mean": _number(samples["threads_running"].mean()),
        "voluntary_switches_per_second": _growth(samples, "voluntary_switches")[1],
        "involuntary_switches_per_second": _growth(samples, "involuntary_switches")[1],
        "sent_bytes": sent,
        "sent_bytes_per_second": sent_rate,
        "received_bytes": received,
        "received_bytes_per_second": received_rate,
        "gpu_percent_mean": _number(samples["gpu_percent"].mean()),
        "gpu_memory_bytes_max": _whole(samples["gpu_memory_bytes"].max()),
    }


def _growth(samples: pd.DataFrame, counter: str) -> tuple[int | None, float | None]:
    """Return the growth of a counter, and its rate per second."""
    known = samples.sort_values("seconds").dropna(subset=counter)
    if len(known) < 2:
        return None, None
    grown, seconds = (float(known[c].iloc[-1] - known[c].iloc[0]) for c in (counter, "seconds"))
    return int(grown), grown / seconds


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


def _whole(value: float) -> int | None:
    return None if math.isnan(value) else int(value)


def main() -> None:
    die_with_parent()
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=Path, help="the run's ranks/ folder")
    node = int(os.environ.get("SLURM_NODEID", 0))
    parser.add_argument(
        "--node", type=int, default=node, help="its number, from 0; default: SLURM_NODEID"
    )
    parser.add_argument("--interface", required=True, help="interface of the ranks, such as eth0")
    parser.add_argument("--seconds", type=_positive, default=SAMPLE_SECONDS, help="between samples")
    arguments = parser.parse_args()
    sample(arguments.folder, arguments.node, arguments.interface, arguments.seconds)


def _positive(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is not above 0")
    return seconds


if __name__ == "__main__":
    raise SystemExit(cli.main(main))
