"""What SLURM says of a job that ended without a result."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

#: SLURM's state of a job -> the run's status; any other is `failed`.
STATUSES = {
    "DEADLINE": "timeout",
    "OUT_OF_MEMORY": "out-of-memory",
    "TIMEOUT": "timeout",
}
_MEANINGS = {"DEADLINE": "it had not begun after queue_minutes"}
_OVER_MEMORY = "exceeded memory limit"
# On some clusters with the name of the node.
_WORDS = re.compile(r"^slurmstepd\S*: error: (.+)$", re.MULTILINE)
_SECONDS = 60


def ending(rule: str, wildcards: list[str], logs: Path) -> tuple[str, str]:
    """Return the status of a run whose job ended without a result, and the reason.

    Parameters
    ----------
    rule, wildcards : of the job; Snakemake's executor for SLURM names it by them.
    logs : the folder in which that executor keeps what jobs printed.
    """
    name = "_".join(wildcards)
    state, said = _state(f"rule_{rule}_wildcards_{name}"), _said(logs / f"rule_{rule}" / name)
    if any(_OVER_MEMORY in line for line in said):
        state = "OUT_OF_MEMORY"
    words = [state or "", _MEANINGS.get(state or "", ""), *said[:1]]
    return (
        STATUSES.get(state or "", "failed"),
        ": ".join(["its job ended without a result", *filter(None, words)]),
    )


def _state(comment: str) -> str | None:
    """Return SLURM's state of the newest job of that comment, while it remembers it."""
    if shutil.which("squeue") is None:
        return None
    done = subprocess.run(
        ["squeue", "--noheader", "--states=all", "--format=%i|%T|%k"],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    jobs = [line.strip().split("|", 2) for line in done.stdout.splitlines() if "|" in line]
    states = {int(number): state for number, state, of in jobs if of == comment}
    return states[max(states)] if states else None


def _said(folder: Path) -> list[str]:
    """Return the scheduler's own words in the newest log of a job."""
    logs = sorted(folder.glob("*.log"), key=lambda log: log.stat().st_mtime)
    return _WORDS.findall(logs[-1].read_text(errors="replace")) if logs else []
