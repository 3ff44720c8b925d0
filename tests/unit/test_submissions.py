"""When jobs are submitted to a cluster, and when the scheduler is asked: none is submitted here."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

from escala.experiment import Run
from escala.experiment.runs import DUPLICATE
from escala.runtime import slurm
from escala.workflow import internals, order
from escala.workflow.internals import JobScheduler
from escala.workflow.session import Session
from escala.workflow.study import Study
from escala.workflow.training import Training
from tests.conftest import ROOT


def test_a_scheduler_is_asked_at_one_interval_until_the_workflow_ends(monkeypatch):
    monkeypatch.setattr(RemoteExecutor, "sleep", None)
    internals.ask_at_one_interval()
    settings = SimpleNamespace(seconds_between_status_checks=0.2)
    workflow = SimpleNamespace(remote_execution_settings=settings)
    executor = SimpleNamespace(workflow=workflow, wait=True, next_seconds_between_status_checks=180)

    def seconds() -> float:
        began = time.monotonic()
        asyncio.run(asyncio.wait_for(RemoteExecutor.sleep(executor), timeout=60))
        return time.monotonic() - began

    assert 0.2 <= seconds() < 60
    settings.seconds_between_status_checks, executor.wait = 180, False
    assert seconds() < 60


def submissions(workflow: SimpleNamespace) -> ThreadPoolExecutor:
    internals.submit_in_order(workflow)
    return workflow.scheduler._executor._job_submission_executor


def scheduler(told: list) -> SimpleNamespace:
    """Return a workflow with what its scheduler has of submissions."""
    executor = SimpleNamespace(_job_submission_executor=None)
    return SimpleNamespace(
        scheduler=SimpleNamespace(_executor=executor, executor_error_callback=told.append)
    )


def test_jobs_are_submitted_in_the_order_in_which_they_are_chosen():
    made: list[int] = []

    def submit(number: int) -> None:
        time.sleep((5 - number) / 100)  # A later one takes less time.
        made.append(number)

    pool = submissions(scheduler([]))
    for number in range(5):
        pool.submit(submit, number)
    pool.shutdown(wait=True)
    assert made == list(range(5))


def test_a_job_that_cannot_be_submitted_ends_the_workflow():
    told: list = []
    pool = submissions(scheduler(told))
    pool.submit(lambda: 1 / 0)
    pool.shutdown(wait=True)
    assert [type(error) for error in told] == [ZeroDivisionError]


def test_an_interrupted_workflow_submits_nothing_more():
    told, made, began, go = [], [], threading.Event(), threading.Event()
    workflow = scheduler(told)
    pool = submissions(workflow)
    pool.submit(lambda: (began.set(), go.wait(60), made.append("first")))
    pool.submit(lambda: made.append("second"))
    assert began.wait(60)
    internals.submit_no_more(workflow)
    go.set()
    pool.shutdown(wait=True)
    assert made == ["first"] and not told


@pytest.fixture(scope="module")
def study() -> Study:
    return Study(ROOT, ROOT, [], {"noise_floor": True})


class Job(SimpleNamespace):
    __hash__ = object.__hash__
    __eq__ = object.__eq__


def job(rule: str, priority: float, **names: object) -> Job:
    return Job(
        rule=SimpleNamespace(name=rule),
        priority=priority,
        wildcards=SimpleNamespace(**names),
        is_group=lambda: False,
    )


def wildcards(run: Run) -> dict[str, str]:
    """Return the wildcards of a timing run's file."""
    names = ("dataset", "workload", "strategy", "layout", "variant", "network", "repeat")
    _, experiment, _, *parts, _ = run.file.split("/")
    return {"experiment": experiment, **dict(zip(names, parts, strict=True))}


def job_of(run: Run, training: Training) -> Job:
    names = wildcards(run)
    return job("train", training.priority(SimpleNamespace(**names)), **names)


def test_only_runs_of_the_repeat_that_is_being_measured_may_start(study):
    training = Training(study, lambda: None, lambda: None)
    jobs = {run: job_of(run, training) for run in study.default.largest.timed}
    repeats = {number: [jobs[run] for run in jobs if run.repeat == number] for number in (1, 2, 3)}
    assert len(repeats[1]) > 2
    other = job("codes", 0)

    def startable(ready: list, running: list) -> list:
        ready = random.Random(3).sample(ready, len(ready))
        found = order.startable(study, ready, running)
        return sorted(found, key=lambda job: -job.priority)

    everything = [*jobs.values(), other]
    assert startable(everything, []) == [*repeats[1], other]
    begun, later = repeats[1][:1], [*repeats[1][1:], *repeats[2]]
    assert startable(later, begun) == repeats[1][1:]
    assert startable(repeats[2], repeats[1]) == []
    assert startable([*repeats[2], *repeats[3]], [other]) == repeats[2]


def test_a_duplicate_belongs_to_its_repeat_and_a_probe_does_not(study):
    timed = next(run for run in study.default.largest.timed if run.series == DUPLICATE)

    def repeat(**changes: object) -> tuple | None:
        return order.repeat(study, job("train", 0, **wildcards(timed) | changes))

    assert repeat(repeat="rep1") == repeat(repeat="duplicate.rep1")
    assert repeat(repeat="rep1") != repeat(repeat="rep2")
    assert repeat(repeat="", instrument="clocks.rep1") not in (None, repeat(repeat="rep1"))
    assert order.repeat(study, job("codes", 0)) is None


def test_jobs_start_in_the_order_of_their_priority(monkeypatch):
    monkeypatch.setattr(JobScheduler, "job_selector", None)
    monkeypatch.setattr(internals, "_select", lambda scheduler, jobs: jobs)
    jobs = [job("train", number) for number in (2, 9, 4, 1)]
    internals.on_selection(lambda ready, running: [*ready[:2], ready[3]])
    scheduler = SimpleNamespace(workflow=None, running=set())
    assert [job.priority for job in JobScheduler.job_selector(scheduler, jobs)] == [9, 2, 1]


def test_how_a_job_ended_is_asked_before_slurm_forgets_it(study, monkeypatch, tmp_path):
    lost = job("train", 0)
    lost.wildcards = ["rep1"]
    workflow = SimpleNamespace(
        is_main_process=False, local_exec=False, scheduler=SimpleNamespace(failed={lost})
    )
    workflow.dag = SimpleNamespace(jobs=[])
    session = Session(workflow, study, ROOT, tmp_path)
    monkeypatch.setattr(slurm, "ending", lambda *asked: ("timeout", "TIMEOUT"))
    assert session._startable([], []) == []
    monkeypatch.setattr(slurm, "ending", lambda *asked: ("failed", ""))
    assert session._ending(lost) == ("timeout", "TIMEOUT")
