"""When the executor for SLURM asks the scheduler: no job is submitted here."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from escala.runtime import slurm_executor
from escala.runtime.slurm_executor import Executor


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(slurm_executor, "_LOOK_SECONDS", 0.01)
    monkeypatch.setattr(slurm_executor, "_ENDING_SECONDS", 0.02)


def executor(*outputs: Path, seconds: float = 3600) -> Executor:
    """Return an executor with one active job of these files, which no workflow has started."""
    made = Executor.__new__(Executor)
    settings = SimpleNamespace(seconds_between_status_checks=seconds)
    made.workflow = SimpleNamespace(remote_execution_settings=settings)
    made.lock, made.wait = threading.Lock(), True
    made.active_jobs = [SimpleNamespace(job=SimpleNamespace(output=outputs), aux={})]
    return made


def sleep(made: Executor) -> None:
    asyncio.run(asyncio.wait_for(made.sleep(), timeout=60))


def test_the_scheduler_is_asked_once_a_job_has_made_all_of_its_files(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.touch()
    made = executor(first, second)
    timer = threading.Timer(0.2, second.touch)
    timer.start()
    sleep(made)
    timer.join()
    assert second.exists()


def test_a_job_that_hangs_at_its_end_is_asked_about_so_only_a_few_times(tmp_path):
    (tmp_path / "made").touch()
    made = executor(tmp_path / "made")
    for _ in range(slurm_executor._MOST_LOOKS):
        sleep(made)
    with pytest.raises(asyncio.TimeoutError):
        asyncio.run(asyncio.wait_for(made.sleep(), timeout=0.3))


def test_jobs_without_their_files_are_asked_about_at_the_profiles_interval(tmp_path):
    sleep(executor(tmp_path / "absent", seconds=0.1))


def test_jobs_are_named_after_the_project_and_asked_for_in_a_plain_form(monkeypatch):
    monkeypatch.setattr(
        slurm_executor.PluginExecutor, "__post_init__", lambda self, test_mode: None
    )
    for name in ("SLURM_TIME_FORMAT", "SQUEUE_STATES", "SACCT_FORMAT"):
        monkeypatch.setenv(name, "%H")
    made = executor()
    made.workflow.dag = SimpleNamespace(needrun_jobs=list)
    for given, name in ((None, "escala"), ("mine", "escala_mine"), ("escala_mine", "escala_mine")):
        made.workflow.executor_settings = SimpleNamespace(jobname_prefix=given)
        made.__post_init__()
        assert made.workflow.executor_settings.jobname_prefix == name
    assert not {"SLURM_TIME_FORMAT", "SQUEUE_STATES", "SACCT_FORMAT"} & os.environ.keys()
