"""The job of this process: its nodes and its remaining time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import cached_property

from escala.core.errors import InputError
from escala.core.readable import duration
from escala.experiment import Run
from escala.runtime import allocation, slurm

#: Seconds at the end of a job in which no run is planned. A job asks for a signal 120 seconds
#: before its end, and SLURM may send the signal a minute earlier.
RESERVE_SECONDS = 180
#: Seconds that a run takes besides its measurement.
BESIDES_SECONDS = 5
#: The factor by which a run may take longer than before.
MARGIN = 1.1
#: Seconds at the beginning of a job until its first run begins.
BEGIN_SECONDS = 120


class Allocated:
    """The job of this process, if any. In a job of several nodes, runs are job steps.

    Parameters
    ----------
    number : the number of the job (`escala.runtime.allocation`); None outside of a job.
    is_here : returns whether the runs are measured in this job, and not in further jobs that this
        process submits.
    """

    def __init__(self, number: str | None, is_here: Callable[[], bool] = lambda: True):
        self._number, self._is_here = number, is_here
        self.remedy = f"the same call{', or the same script,' * bool(number)} goes on"

    @cached_property
    def job(self) -> slurm.Job | None:
        return allocation.ask_job() if self._number else None

    @property
    def names(self) -> list[str]:
        """The nodes that are given to the runs; empty if they use this machine."""
        names = allocation.hosts(self.job) if self.job and self._is_here() else []
        # The one host that a user names may be another machine.
        is_other = names and self.job.scheduler == "hosts" and not slurm.is_here(names[0])
        return names if len(names) > 1 or is_other else []

    def nodes_of(self, run: Run) -> list[str]:
        """Return the nodes of a run; empty if the run uses this machine."""
        if not self.names:
            return []
        return slurm.rotate_nodes(self.names, run.layout.nodes, run.repeat or 1)

    def require(self, runs: Iterable[Run]) -> None:
        """Refuse runs that cannot be measured in this job or from inside this job.

        Raises
        ------
        InputError : a run cannot be measured. The message has the remedy.
        """
        if self._number and not self._is_here():
            raise InputError(
                "executor: slurm",
                f"job {self._number}",
                "this call is inside a job, and would submit further jobs from there",
                "to measure on the nodes of this job: snakemake --cores all, without --profile; to "
                "submit them as a job, call it on the login node, outside of salloc",
            )
        if not self.names:
            return
        slurm.require_host()
        if self.job.exclusive is False:
            reason = "shares its nodes with other jobs, which would disturb the measurements"
            raise InputError("SLURM_JOB_ID", self._number, reason, "submit it with --exclusive")
        for layout in dict.fromkeys(run.layout for run in runs):
            if layout.nodes > len(self.names):
                reason = (
                    f"needs {layout.nodes} nodes, and the job {self._number} has {len(self.names)}"
                )
                remedy = f"submit the job with --nodes={layout.nodes}, or leave the layout out"
                if self.job.scheduler != "slurm":
                    remedy = "submit a job of more nodes, name more hosts, or leave the layout out"
                raise InputError("layout", layout, reason, remedy)

    def lack_of_time(self, seconds: Sequence[float | None], has_measured: bool) -> str | None:
        """Return why runs would not end within the job; None if they may end.

        The scheduler is asked each time, because the end of a job may change. If this call has
        measured no run, and the whole job is too short for the runs, `remedy` becomes a longer job.

        Parameters
        ----------
        seconds : the seconds that each run took before; None if unknown.
        has_measured : whether this call has already measured a run.
        """
        takes = seconds_needed(seconds)
        job = allocation.ask_job() if self._number and takes is not None else None
        if job is None or job.ends is None:
            return None
        left = (job.ends - datetime.now(UTC)).total_seconds()
        if takes <= left - RESERVE_SECONDS:
            return None
        whole = (job.ends - job.started).total_seconds() if job.started else math.inf
        if not has_measured and takes + RESERVE_SECONDS + BEGIN_SECONDS > whole:
            minutes = math.ceil((takes + RESERVE_SECONDS + BEGIN_SECONDS) / 60)
            time = f"sbatch --time={minutes} FILE"
            if job.scheduler != "slurm":
                time = f"{minutes} minutes"
            self.remedy = (
                f"submit it with more time, since no repeat fits: {time}, or escala submit again"
            )
        return (
            f"the runs of the repeat take {duration(takes)}, and this job ends in "
            f"{duration(max(0.0, left))}"
        )

    def sentence(self) -> str | None:
        """Return a sentence on the nodes; None if the runs use this machine."""
        if not self.names:
            return None
        are = "steps of" if self.job.scheduler == "slurm" else "started by ssh in"
        return (
            f"Runs are {are} the job {self._number} on {', '.join(self.names)}: the smaller "
            "layouts of a repeat use nodes of the larger ones, and each repeat begins with another "
            "node."
        )


def seconds_needed(seconds: Sequence[float | None]) -> float | None:
    """Return the seconds to leave for runs that took `seconds` before; None if all are unknown.

    A run of unknown time counts as the longest known time.
    """
    known = [time for time in seconds if time is not None]
    if not known:
        return None
    measured = sum(known) + (len(seconds) - len(known)) * max(known)
    return MARGIN * measured + BESIDES_SECONDS * len(seconds)
