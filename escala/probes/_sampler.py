"""Sample a node while its ranks run, from one process alongside them.

A rank announces itself in the run's `ranks/` folder, by `rank{n}.pid`. The sampler writes
`node{n}.{probe}.csv` there until all ranks of its node have ended. It starts with the ranks, so it
loads no module that it does not need.
"""

from __future__ import annotations

import csv
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil

from escala.core import proc
from escala.core.children import die_with_parent
from escala.core.files import read_json, write_json
from escala.core.variables import MARKS

if TYPE_CHECKING:
    import pandas as pd

SAMPLE_SECONDS = 0.5
#: What ranks have announced, by number: `node`, `pid`, `started`, and what their probe adds.
Announced = dict[int, dict]


def announce(folder: Path, rank: int, node: int, **more: object) -> None:
    """Write `rank{rank}.pid`, by which the sampler of `node` finds this process."""
    content = {"node": node, "pid": os.getpid(), "started": proc.started(), **more}
    write_json(folder / f"rank{rank}.pid", content, durable=False)


def sample(
    folder: Path,
    node: int,
    probe: str,
    columns: Sequence[str],
    rows: Callable[[Announced], Iterable[Sequence]],
    seconds: float,
) -> Path:
    """Write rows every `seconds`, until all ranks of the node have ended; return the table's path.

    Ranks may announce themselves and end at any time. If no rank ever announces itself, this
    continues until it is stopped.

    Parameters
    ----------
    rows : returns the rows of a moment, from the ranks that have announced themselves so far.
    """
    output, ranks = folder / f"node{node}.{probe}.csv", {}
    begin = time.monotonic()
    with open(output, "w", newline="", buffering=1, encoding="utf-8") as handle:
        writer = csv.writer(handle)
        writer.writerow(columns)
        for number in count(1):
            for path in folder.glob("rank*.pid"):
                rank = int(re.search(r"\d+", path.name)[0])
                if rank not in ranks:
                    ranks[rank] = read_json(path)
            own = {rank: said for rank, said in ranks.items() if said["node"] == node}
            ended = own and not any(proc.is_running(s["pid"], s["started"]) for s in own.values())
            writer.writerows(rows(own))
            if ended:
                return output
            time.sleep(max(0.0, begin + number * seconds - time.monotonic()))


def tables(folder: Path, probe: str) -> dict[int, pd.DataFrame]:
    """Return the samples of each node of a run by its number, with NaN for missing values."""
    import pandas as pd

    return {
        int(path.name.partition(".")[0].removeprefix("node")): pd.read_csv(path)
        for path in sorted(folder.glob(f"node*.{probe}.csv"))
    }


def command(module: str, folder: Path, seconds: float, of: str) -> list[str]:
    """Return the command that starts the sampler of a probe; `of` is what else it needs."""
    return [sys.executable, "-m", module, str(folder), f"{seconds:g}", of]


def arguments() -> tuple[Path, int, float, str]:
    """Return folder, node, seconds and `of` of this sampler. It dies with its parent."""
    die_with_parent()
    folder, seconds, of = sys.argv[1:]
    return Path(folder), int(os.environ.get("SLURM_NODEID", 0)), float(seconds), of


_STATE = re.compile(rb"^State:\s+(\S)", re.MULTILINE)
_SWITCHES = re.compile(rb"^(?:non)?voluntary_ctxt_switches:\s+(\d+)", re.MULTILINE)
_ENDED = (psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError)

#: Use in percent and memory in bytes of GPUs, None where they are not known, by process id.
GpuUse = Mapping[int, tuple[float | None, int | None]]


class Rank:
    """A rank's process, or those of the program that it starts, and their state between samples.

    Parameters
    ----------
    number : the rank's.
    pid, started : its process, and when it began (`escala.core.proc.started`).
    starts : whether it starts a program, whose processes are read in its place. They have the
        variable of the marks, or a process of the program started them. What else the rank starts,
        such as a neighbour that keeps its cores busy, does not count.
    """

    def __init__(self, number: int, pid: int, started: float, starts: bool = False):
        self.number, self._pid, self._began, self._starts = number, pid, started, starts
        self._members: set[int] = set()
        self._read: list[psutil.Process] = []
        self._cpu: tuple[float, float] | None = None
        self._seen: dict[str, tuple[int, int]] = {}
        self._switches = (0, 0)

    def row(self, interface: str) -> dict | None:
        """Return what it uses at this moment, None if it has ended or its program does not run.

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
        self._read = read = self._program(process) if self._starts else [process]
        if not read:
            return None
        threads = _unless_denied(_threads, read)
        voluntary, involuntary = self._count(threads) if threads else (None, None)
        sent, received = _unless_denied(_traffic, self._pid, interface) or (None, None)
        return {
            "seconds": f"{seconds:.6f}",
            "rank": self.number,
            "cpu_percent": _unless_denied(self._cpu_percent, read),
            "threads": threads and len(threads),
            "threads_running": threads and sum(state == b"R" for state, _ in threads.values()),
            "voluntary_switches": voluntary,
            "involuntary_switches": involuntary,
            # What processes share counts for each of them.
            "rss_bytes": _unless_denied(lambda: sum(each.memory_info().rss for each in read)),
            "sent_bytes": sent,
            "received_bytes": received,
        }

    def on_gpus(self, use: GpuUse) -> dict:
        """Return the use of GPUs by the processes of the last row."""
        found = [use[process.pid] for process in self._read if process.pid in use]
        percent, memory = zip(*found, strict=True) if found else ((None,), (None,))
        return {"gpu_percent": total(*percent), "gpu_memory_bytes": total(*memory)}

    def _program(self, rank: psutil.Process) -> list[psutil.Process]:
        """Return the processes of the program that run now."""
        found = []
        for process in rank.children(recursive=True):
            with suppress(psutil.Error, OSError):
                if process.pid not in self._members:
                    variables = Path(f"/proc/{process.pid}/environ").read_bytes().split(b"\0")
                    marked = any(each.startswith(f"{MARKS}=".encode()) for each in variables)
                    if not (marked or process.ppid() in self._members):
                        continue
                    self._members.add(process.pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def _cpu_percent(self, processes: list[psutil.Process]) -> float | None:
        """Return the use of the processor since the last call; a program's includes what ended."""
        names = ["user", "system"] + ["children_user", "children_system"] * self._starts
        times = [process.cpu_times() for process in processes]
        now = (time.monotonic(), sum(getattr(each, name) for each in times for name in names))
        before, self._cpu = self._cpu, now
        if before is None:
            return None
        return round(100 * max(0.0, now[1] - before[1]) / (now[0] - before[0]), 2)

    def _count(self, threads: dict[str, tuple[bytes, tuple[int, int]]]) -> tuple[int, int]:
        """Add the counts of the threads since the last call: a thread's counter ends with it."""
        for thread, (_, counted) in threads.items():
            before = self._seen.get(thread, (0, 0))
            grown = zip(self._switches, counted, before, strict=True)
            self._switches = tuple(total + now - then for total, now, then in grown)
        self._seen = {thread: counted for thread, (_, counted) in threads.items()}
        return self._switches


def total(*numbers: float | None) -> float | None:
    """Return a sum, or None if one of the numbers is not known."""
    return None if None in numbers else sum(numbers)


def _threads(processes: list[psutil.Process]) -> dict[str, tuple[bytes, tuple[int, int]]]:
    """Return the state, and the voluntary and involuntary switches, of each thread.

    `psutil.Process.num_ctx_switches` has only those of the main thread.
    """
    found = {}
    for task in (f"/proc/{process.pid}/task" for process in processes):
        for thread in os.listdir(task):  # noqa: PTH208 - twice as fast
            with suppress(FileNotFoundError, ProcessLookupError):  # It ended since it was listed.
                status = Path(f"{task}/{thread}/status").read_bytes()
                voluntary, involuntary = map(int, _SWITCHES.findall(status))
                found[thread] = (_STATE.search(status)[1], (voluntary, involuntary))
    if not found:
        raise ProcessLookupError("the process has no threads left")
    return found


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
