"""Submit Snakemake's jobs to SLURM, and detect the end of a job by its output files.

The executor of `snakemake-executor-plugin-slurm` asks the scheduler at growing intervals, each 10 s
longer than the one before, up to 180 s. This executor looks for the files of the jobs every second,
without a request to the scheduler. It asks the scheduler as soon as a job has made all of its
files, and otherwise about all jobs at once every `seconds-between-status-checks`.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from snakemake_executor_plugin_slurm import Executor as PluginExecutor
from snakemake_interface_common.exceptions import WorkflowError
from snakemake_interface_executor_plugins.executors.base import SubmittedJobInfo

from escala.core import clock
from escala.core.errors import InputError
from escala.runtime import slurm
from escala.runtime.slurm import require_controller

#: Seconds between two searches for output files, which do not involve the scheduler.
_LOOK_SECONDS = 1
#: Seconds that a job has to end after its output exists.
_ENDING_SECONDS = 2
#: Most requests about a job because its output exists: a job that hangs at its end must not cause
#: requests for hours.
_MOST_LOOKS = 10
#: Seconds that one of these programs may take when the workflow is interrupted.
_PATIENCE_SECONDS = 5
#: Names of the jobs that this project submits begin so.
JOB_NAME = "escala"
_ASKING = {"sbatch", "squeue", "sacct", "sacctmgr", "scontrol", "sinfo", "sshare"}


class Executor(PluginExecutor):
    """Submit jobs like the plugin, and react sooner to their end and to an interruption."""

    def __post_init__(self, test_mode: bool = False) -> None:
        """Check that the scheduler answers, if any job will be submitted.

        Raises
        ------
        WorkflowError : it does not answer, or SLURM's programs are not installed.
        """
        if any(not job.is_local for job in self.workflow.dag.needrun_jobs()):
            try:
                require_controller()
            except InputError as error:
                raise WorkflowError(str(error)) from None
        # The plugin calls SLURM's programs in the environment of this process.
        for name in os.environ.keys() - slurm.environment().keys():
            del os.environ[name]
        os.environ.pop("SLURM_TIME_FORMAT", None)
        settings = self.workflow.executor_settings
        if not (settings.jobname_prefix or "").startswith(JOB_NAME):
            settings.jobname_prefix = "_".join(filter(None, [JOB_NAME, settings.jobname_prefix]))
        super().__post_init__(test_mode)

    async def sleep(self) -> None:
        """Wait until the next request to the scheduler, or the end of the workflow.

        A job that has made all of its files is about to end.
        """
        settings = self.workflow.remote_execution_settings
        due = time.monotonic() + settings.seconds_between_status_checks
        ending: list[SubmittedJobInfo] = []
        while self.wait and time.monotonic() < due:
            await asyncio.sleep(_LOOK_SECONDS)
            if not ending:
                ending = [info for info in self._active() if _has_made_its_files(info)]
                if ending:
                    due = min(due, time.monotonic() + _ENDING_SECONDS)
        for info in ending:
            info.aux["looks"] = _looks(info) + 1

    def _active(self) -> list[SubmittedJobInfo]:
        with self.lock:
            return list(self.active_jobs)

    def cancel(self) -> None:
        """Cancel all jobs, also those that are being submitted, and end.

        A submission that does not end is abandoned after some seconds.
        """
        with _programs_given_up():
            # A job that is submitted after the others are cancelled would remain in the queue.
            self._job_submission_executor.shutdown(wait=True, cancel_futures=True)
            super().cancel()

    def cancel_jobs(self, active_jobs: list[SubmittedJobInfo]) -> None:
        """Cancel jobs, or name them if the scheduler does not answer."""
        numbers = [info.external_jobid for info in active_jobs if info.external_jobid]
        if not numbers:
            return
        try:
            require_controller()
        except InputError as error:
            self.logger.warning(f"{error}\nNot cancelled: {', '.join(numbers)}")
        else:
            super().cancel_jobs(active_jobs)


def _has_made_its_files(info: SubmittedJobInfo) -> bool:
    made = all(Path(file).exists() for file in info.job.output)
    return made and _looks(info) < _MOST_LOOKS


def _looks(info: SubmittedJobInfo) -> int:
    return info.aux.get("looks", 0)


@contextmanager
def _programs_given_up() -> Iterator[None]:
    """Within the block, end programs that wait too long for the scheduler's answer."""
    over = threading.Event()

    def give_up() -> None:
        while not over.wait(0.2):
            for child in psutil.Process().children(recursive=True):
                with suppress(psutil.NoSuchProcess, FileNotFoundError, ProcessLookupError):
                    if child.name() in _ASKING and clock.age(child.pid) > _PATIENCE_SECONDS:
                        child.kill()

    watcher = threading.Thread(target=give_up, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
