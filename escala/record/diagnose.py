"""Cause of a failed run: the rank that failed first, how it ended, and its last lines."""

from __future__ import annotations

import re
import signal
from pathlib import Path

from escala.core.files import read_json
from escala.record.outcome import Outcome


def failure(code: int, folder: Path) -> Outcome:
    """Return the outcome of a failed run: the first failed rank, the reason and its last lines."""
    killed = _killed_rank(folder)
    # A killed rank makes the other ranks fail, so their errors are not the cause.
    if killed:
        rank, number = killed
        return Outcome("failed", f"rank {rank} was ended by signal {number}{tail(folder, rank)}")
    errors = sorted(folder.glob("rank*.error.json"), key=lambda path: path.stat().st_mtime_ns)
    if errors:
        error, rank = read_json(errors[0]), int(re.search(r"\d+", errors[0].name)[0])
        # A refusal names its reason and remedy. Its last lines would be a traceback.
        lines = "" if error["status"] == "unavailable" else tail(folder, rank)
        return Outcome(error["status"], f"rank {rank}: {error['reason']}{lines}")
    return Outcome("failed", f"the launcher ended with exit code {code}{_launcher_tail(folder)}")


def _killed_rank(folder: Path) -> tuple[int, int] | None:
    """Return the rank that a signal ended, and the signal, from the launcher's output."""
    said = (folder / "launcher.log").read_text(errors="replace")
    # mpirun, and `escala.runtime.spawn`, which uses the same words.
    match = re.search(r"process rank (\d+).*?exited on\s+signal (\d+)", said, re.DOTALL)
    if match:
        return int(match[1]), int(match[2])
    # srun: later lines name the ranks that it ended because of this one.
    match = re.search(r"^srun: error: \S+: tasks? (\d+)\S*: ([A-Z].*)$", said, re.MULTILINE)
    by_name = {signal.strsignal(number): int(number) for number in signal.Signals}
    number = by_name.get(match[2].partition(" (")[0]) if match else None
    return (int(match[1]), number) if number else None


def tail(folder: Path, rank: int) -> str:
    log = folder / f"rank{rank}.log"
    return _last_lines(log if log.exists() and log.stat().st_size else folder / "launcher.log")


def _launcher_tail(folder: Path) -> str:
    return _last_lines(folder / "launcher.log")


def _last_lines(log: Path, lines: int = 5) -> str:
    last = log.read_text(errors="replace").strip().splitlines()[-lines:] if log.exists() else []
    return "; its last lines: " + " | ".join(last)[-800:] if last else ""
