"""Runs that ended with their session, because its process or its job was killed.

A session marks the run that it measures, and removes the mark when the run has ended. If a mark
stays after its session, SLURM is asked how the job ended, and the run is recorded as failed. So the
next session does not measure a run that would end this session, too.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from escala.core import proc
from escala.core.console import say
from escala.core.environment import session
from escala.core.errors import InputError
from escala.core.files import read_json, write_json
from escala.measure.plan import PlannedRun
from escala.record import key
from escala.runtime import slurm
from escala.runtime.slurm import same_host

#: The file of the mark, in the folder of the run.
_MARK = "begun.json"
#: A function that writes the `run.json` of a run, with a status and a reason.
Record = Callable[[PlannedRun, str, str], Any]


@contextmanager
def mark_run(planned: PlannedRun, job: slurm.Job | None) -> Iterator[None]:
    """Mark a run as begun by this process, in a job or in none, until the block ends.

    If a signal ends the block inside a job, the mark stays, because SLURM can tell the reason of
    the signal.
    """
    mark = {"session": session(), "host": socket.gethostname(), "pid": os.getpid()}
    mark |= {"started": proc.start_time(), "request_sha256": key.request_sha256(planned.request)}
    mark |= {"interrupted": False, "job": None, "log": None}
    # Nobody else tells how a job ended.
    if job and job.scheduler == "slurm":
        mark |= {"job": job.number, "log": job.output}
    write_json(_mark(planned), mark)
    try:
        yield
    except SystemExit:
        mark["interrupted"] = True
        raise
    finally:
        if mark["job"] and mark["interrupted"]:
            write_json(_mark(planned), mark)
        else:
            _mark(planned).unlink(missing_ok=True)


def record(runs: Iterable[PlannedRun], write: Record) -> None:
    """Record the marked runs of ended sessions as failed, and print a line on each.

    A call starts a session in a process or a job. If this process is killed and the call lives on,
    the call runs this function, and the run has failed. In three cases only the mark is removed:
    the job was cancelled or lost a node; the settings of the run have changed; the call itself was
    killed, without a job, so that a later call finds the mark.
    """
    for planned in find_marks(runs):
        mark = read_json(_mark(planned))
        ending = _find_ending(mark)
        if ending is None:
            continue
        status, reason = ending
        if status is None:
            say(f"{planned.file}: not recorded as failed, and still to be measured: {reason}")
        elif mark["request_sha256"] == key.request_sha256(planned.request):
            write(planned, status, reason)
            say(f"{planned.file}: recorded as {status}: {reason}")
        _mark(planned).unlink(missing_ok=True)


def require_ended(runs: Iterable[PlannedRun]) -> None:
    """Refuse to measure while a job of another call measures some of these runs.

    Raises
    ------
    InputError : such a job exists. The message has its number.
    """
    for planned in find_marks(runs):
        job = read_json(_mark(planned))["job"]
        if job and job != slurm.job_number() and slurm.state(job) == "RUNNING":
            reason = f"is measured by the job {job} of another call, which goes on"
            remedy = f"wait for its end, or end it: scancel {job}; then make this call again"
            raise InputError(planned.file, None, reason, remedy)


def find_marks(runs: Iterable[PlannedRun]) -> list[PlannedRun]:
    """Return the marked runs."""
    return [planned for planned in runs if _mark(planned).exists()]


def forget(runs: Iterable[PlannedRun]) -> None:
    """Remove the marks of this session after an interrupt: its runs have not failed."""
    for planned in find_marks(runs):
        # The name of a job's session begins with the name of its call's session.
        if f"{read_json(_mark(planned))['session']}-".startswith(f"{session()}-"):
            _mark(planned).unlink(missing_ok=True)


def _find_ending(mark: Mapping[str, Any]) -> tuple[str | None, str] | None:
    """Return how a marked run ended, as a status and a reason; None while the run goes on.

    The status is None if the run has not failed.
    """
    is_here = same_host(mark["host"], socket.gethostname())
    if is_here and proc.is_running(mark["pid"], mark["started"]):
        return None
    # Another job: SLURM knows how it ended. A job that SLURM has started again keeps its number.
    if mark["job"] and mark["job"] != slurm.job_number():
        log = Path(mark["log"]) if mark["log"] else None
        return slurm.job_ending(mark["job"], log, mark["interrupted"])
    # This job in an earlier start, or a process of this host that is gone.
    if mark["job"] or is_here:
        # Without a job, another session means that another call began the run.
        if not mark["job"] and mark["session"] != session():
            return None, "its call was killed"
        why = "its session was killed, and left no result"
        return None if mark["interrupted"] else "failed", why
    return None  # A process of another host: nothing is known, so take it as running.


def _mark(planned: PlannedRun) -> Path:
    return Path(planned.run.folder, _MARK)
