"""Find the cause of a failed run: the rank that failed first, how it ended, and its last lines."""

from __future__ import annotations

import os
import re
import shutil
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from escala.core import variables
from escala.core.files import read_json
from escala.core.hardware import control_groups
from escala.core.readable import size, with_noun
from escala.programs import marks, printed
from escala.programs.copy import COPY
from escala.programs.program import Program
from escala.record.schema import Outcome
from escala.runtime.mpi import cause

#: What libraries, the kernel and schedulers write when memory runs out.
_NO_MEMORY = re.compile(
    r"out of memory|out-of-memory|oom[-_ ]?kill|OOM when allocating|RESOURCE_EXHAUSTED"
    r"|ResourceExhausted|bad_alloc|Cannot allocate memory|Unable to allocate|\bMemoryError\b"
    r"|CUDA_ERROR_OUT_OF_MEMORY|failed to allocate|exceeded memory limit",
    re.I,
)
#: What to do about a run that takes too much memory.
_REMEDIES = "a smaller batch, a larger `accumulation`, or fewer processes on a node"
#: Numbers of last lines of a log: lines that are shown, and lines that are searched for the first
#: error.
_LAST_LINES, _ERROR_LINES = 5, 100
#: Lines that are not of a program: those of the rank that starts it, and those of Open MPI on its
#: choice of a transport.
_NOT_OF_PROGRAM = re.compile(r" escala: (starts \[.*|done)$|^\[\S+:\d+\] (mca: |select)")
#: What `escala.runtime.spawn`, mpirun and srun print of the first rank that ended without success.
_ENDED = (
    r"^process rank (\d+) exited with code (\d+)$",
    r"^ *Process name: \[(?:\[\d+,\d+\]|\S+),(\d+)\]\n *Exit code: +(\d+)$",
    r"^srun: error: \S+: tasks? (\d+)\S*: Exited with exit code (\d+)$",
)
#: Bytes that an MPI rank takes of the shared memory (Open MPI's `btl_vader_segment_size`).
_SHARED_BYTES = 4 * 2**20
SHARED_MEMORY = Path("/dev/shm")


def memory_kills(
    vmstat: Path = Path("/proc/vmstat"),
    membership: Path = Path("/proc/self/cgroup"),
    groups: Path = Path("/sys/fs/cgroup"),
) -> dict[str, int]:
    """Return how many processes the kernel has killed for want of memory, on this node.

    Returns
    -------
    A number for the machine and one for each control group that counts them (kernel documentation,
    `admin-guide/cgroup-v2`, `cgroup-v1/memory`), by the name of the counter's file.
    """
    files = {vmstat}
    for version, folder in control_groups("memory", membership, groups):
        files.add(folder / ("memory.oom_control" if version == 1 else "memory.events"))
    counts = {}
    for file in files:
        with suppress(OSError):
            match = re.search(r"^oom_kill (\d+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            counts |= {str(file): int(match[1])} if match else {}
    return counts


def failure(code: int, folder: Path, kills: Mapping[str, int]) -> Outcome:
    """Return the outcome of a failed run: the first failed rank, the reason and its last lines.

    Parameters
    ----------
    code : the launcher's exit code.
    folder : the ranks' folder, with their logs.
    kills : what `memory_kills` returned before the run.
    """
    if not (folder / "launcher.log").exists():
        reason = "the folder of the run was removed while it ran. Remedy: let the program write "
        return Outcome("failed", f"{reason}only below {{output}}")
    outcome = _find_cause(code, folder, kills)
    # A fault of this machine, or of its files, may be the cause.
    hints = []
    for place in (SHARED_MEMORY, Path(os.environ.get("TMPDIR") or "/tmp")):
        with suppress(OSError):
            free = shutil.disk_usage(place).free
            if free < _SHARED_BYTES:
                hints.append(f"{place} is full ({size(free)} free): make space there")
    settings = [name for name in variables.describe()["files"] if "mca-params" in name]
    if settings and "the launcher ended" in outcome.reason:
        hints.append(f"Open MPI also reads {', '.join(settings)}: try without these lines")
    return Outcome(outcome.status, "; ".join([outcome.reason, *hints]))


def timeout(seconds: float, folder: Path, plan: Mapping) -> Outcome:
    """Return the outcome of a run that took longer than it may, with the ranks that still run."""
    processes = len(plan["places"])
    running = [rank for rank in range(processes) if not (folder / f"rank{rank}.json").exists()]
    who = ": every rank has written its result, but did not exit" * bool(processes and not running)
    if 0 < len(running) < processes:
        names, more = ", ".join(map(str, running[:5])), ", …" * (len(running) > 5)
        one = len(running) == 1
        who = f": rank{'' if one else 's'} {names}{more} still run{'s' if one else ''}"
        who += f", and {processes - len(running)} of {processes} have ended"
    hangs = ""
    # Did a program make its last epoch without an exit? If the command names no number of epochs,
    # the program must also have been silent for half of the time.
    program = Program.from_plan(plan["start"]["program"]) if "start" in plan else None
    for rank in running if program else ():
        log, marked = folder / f"rank{rank}.log", folder / f"marks{rank}"
        searched = marks.OutputSearch(program.epoch_ends, None)
        searched.feed(log.read_bytes() if log.exists() else b"", 0.0)
        by_process = [*marks.read_files(marked)[0], searched.marks]
        epochs = max(sum(mark.event == marks.EPOCH for mark in of_one) for of_one in by_process)
        written = [file.stat().st_mtime for file in (log, *marked.glob("*.jsonl")) if file.exists()]
        silent = time.time() - max(written, default=0.0)
        is_counted = "epochs" in program.placeholders
        is_done = epochs >= plan["epochs"] if is_counted else silent > seconds / 2
        if epochs and is_done:
            number = with_noun(epochs, "epoch")
            last = f"the last of its {number}" if is_counted else f"the last of {number} reported"
            hangs = (
                f"; {last} ended after {max(0.0, seconds - silent):.0f} s, but the program did not "
                "exit. Remedy: let it end what it started, such as a DDP model: `del` it before "
                "destroy_process_group()"
            )
            break
    lines = tail(folder, running[0] if running else 0)
    return Outcome("timeout", f"not finished after {seconds:.10g} seconds{who}{hangs}{lines}")


def _find_cause(code: int, folder: Path, kills: Mapping[str, int]) -> Outcome:
    """Return the outcome of a failed run, from the reports of its ranks and the launcher's log."""
    errors = {
        int(re.search(r"\d+", path.name)[0]): path for path in folder.glob("rank*.error.json")
    }
    ended_rank, ended_code = _find_ended_rank(folder, bool(errors)) or (None, 0)
    # A killed rank makes the other ranks fail, so their errors are not the cause. The other ranks
    # also report an error if they cannot reach a rank that ended without a report of an error.
    if ended_rank is not None and (ended_code < 0 or ended_rank not in errors):
        rank, code = ended_rank, ended_code
        who, lines = f"rank {rank}", tail(folder, rank)
        how = f"{who} ended with exit code {code} and reported no error"
        if code < 0:
            how = f"{who} was ended by signal {-code}"
    elif errors:
        # The first error caused the others.
        reports = [(rank, read_json(path)) for rank, path in errors.items()]
        rank, error = min(reports, key=lambda report: (report[1].get("at", 0.0), report[0]))
        reason, code = _without_copy(error["reason"], folder), error.get("code")
        # A refusal names its reason and remedy. The last lines of the log would be a traceback.
        lines = "" if error["status"] == "unavailable" else tail(folder, rank)
        killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)
        if (
            error["status"] == "out-of-memory"
            or _NO_MEMORY.search(reason)
            or (code and _NO_MEMORY.search(lines))
            or (killed and _is_short_of_memory(folder, kills))
        ):
            return _out_of_memory(f"rank {rank}: {reason}", lines)
        if finished := sorted(folder.glob("rank*[0-9].json")):
            lines = f"; rank {finished[0].stem.removeprefix('rank')} had ended before it{lines}"
        return Outcome(error["status"], f"rank {rank}: {reason}{lines}")
    else:
        how, who = f"the launcher ended with exit code {code}", "the launcher"
        lines = _launchers_cause(folder)
    if code == -signal.SIGKILL and _is_short_of_memory(folder, kills):
        return _out_of_memory(f"the kernel ended {who} (signal 9)", lines)
    if _NO_MEMORY.search(lines):
        return _out_of_memory(how, lines)
    return Outcome("failed", how + lines)


def _out_of_memory(how: str, lines: str) -> Outcome:
    remedy = "" if "Remedy: " in how else f". Remedy: {_REMEDIES}"
    return Outcome("out-of-memory", f"out of memory: {how}{remedy}{lines}")


def _is_short_of_memory(folder: Path, before: Mapping[str, int]) -> bool:
    """Return whether the kernel, or a scheduler on another node, says that memory ran out."""
    if any(count > before.get(name, 0) for name, count in memory_kills().items()):
        return True
    log = folder / "launcher.log"
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    return bool(_NO_MEMORY.search(text))


def _find_ended_rank(folder: Path, others_failed: bool) -> tuple[int, int] | None:
    """Return the first rank that ended without success, as the launcher's output names it.

    Parameters
    ----------
    others_failed : whether a rank reported an error. If no rank did, the summaries of mpirun and
        srun on exit codes are not read, because their other messages tell more.

    Returns
    -------
    The rank and its exit code, or minus the signal that ended it. None if no rank is named.
    """
    log = (folder / "launcher.log").read_text(encoding="utf-8", errors="replace")
    # mpirun, and `escala.runtime.spawn`, which uses the same words.
    if match := re.search(r"process rank (\d+).*?exited on\s+signal (\d+)", log, re.DOTALL):
        return int(match[1]), -int(match[2])
    # The first line of srun: later lines name the ranks that srun ended because of this rank.
    if match := re.search(r"^srun: error: \S+: tasks? (\d+)\S*: ([A-Z].*)$", log, re.MULTILINE):
        by_name = {signal.strsignal(number): int(number) for number in signal.Signals}
        by_name["Out Of Memory"] = int(signal.SIGKILL)
        if number := by_name.get(match[2].partition(" (")[0]):
            return int(match[1]), -number
    for pattern in _ENDED if others_failed else _ENDED[:1]:
        if match := re.search(pattern, log, re.MULTILINE):
            return int(match[1]), int(match[2])
    return None


def tail(folder: Path, rank: int) -> str:
    """Return the last lines of a rank's log, or the launcher's message if there is no such line."""
    log = folder / f"rank{rank}.log"
    text = printed.text(log.read_bytes()) if log.exists() else ""
    written = printed.lines_with_words(_without_copy(text, folder))
    last = [line for line in written if not _NOT_OF_PROGRAM.search(line)][-_LAST_LINES:]
    if not last:
        return "; it wrote nothing" if written else _launchers_cause(folder)
    # A program's own launcher writes a summary after the error of the program.
    errors = [line for line in written[-_ERROR_LINES:] if printed.ERROR.search(line)]
    first = f"; its first error: {errors[0][:200]}" if errors and errors[0] not in last else ""
    return f"{first}; its last lines: " + " | ".join(last)[-800:]


def _launchers_cause(folder: Path) -> str:
    """Return the launcher's message on the cause as a clause; empty without such a message."""
    log = folder / "launcher.log"
    text = cause(log.read_text(encoding="utf-8", errors="replace")) if log.exists() else ""
    return f"; it said: {text}" if text else ""


def _without_copy(text: str, folder: Path) -> str:
    """Return a text in which paths in a copy become paths in the program's folder."""
    return text.replace(str((folder / COPY).resolve()), "")
