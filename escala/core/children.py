"""Processes that never outlive the one that started them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with_parent() -> None:
    """Ask the kernel to kill this process when its parent dies, even by SIGKILL."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def start(
    command: Sequence[str], environment: Mapping[str, str], output: Path | None
) -> subprocess.Popen:
    """Start a command in a process group of its own.

    Parameters
    ----------
    output : file to append the output to; None leaves it where this process prints.
    """
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(output, "ab")) if output else None
        return subprocess.Popen(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT if log else None,
            start_new_session=True,
            preexec_fn=die_with_parent,
        )


def stop(processes: Sequence[subprocess.Popen], grace_seconds: float = 3.0) -> None:
    """End processes and all their descendants: SIGTERM, and SIGKILL after a grace time."""
    family = [p for process in processes for p in _family(process)]
    for process in processes:
        _signal_group(process, signal.SIGTERM)
    deadline = time.monotonic() + grace_seconds
    while any(p.poll() is None for p in processes) and time.monotonic() < deadline:
        time.sleep(0.05)
    for process in processes:
        _signal_group(process, signal.SIGKILL)
    for member in family:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    for process in processes:
        process.wait()


def _family(process: subprocess.Popen) -> list[psutil.Process]:
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _signal_group(process: subprocess.Popen, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
