"""The SLURM job that a call is inside: what is read of it, what is refused, and who gets nodes."""

from __future__ import annotations

import itertools
import os
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from escala.core.errors import InputError
from escala.experiment import Run
from escala.measure.allocated import Allocated
from escala.runtime import allocation, asking
from escala.runtime.layout import Layout

#: As SLURM 22.05 prints it. The user's words hold what looks like keys.
SAID = """\
JobId=17 JobName=a EndTime=2020-01-01T00:00:00 OverSubscribe=OK
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   Priority=4294901759 Nice=0 Account=(null) QOS=(null)
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   RunTime=00:00:01 TimeLimit=00:10:00 TimeMin=N/A
   SubmitTime=2026-11-27T09:00:00 EligibleTime=2026-11-27T09:00:00
   AccrueTime=2026-11-27T09:00:00
   StartTime=2026-11-27T09:01:00 EndTime=2026-11-27T09:11:00 Deadline=N/A
   Partition=lab AllocNode:Sid=scheduler:1
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n[1-4]
   BatchHost=n1
   NumNodes=4 NumCPUs=4 NumTasks=4 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   OverSubscribe=NO Contiguous=0 Licenses=(null) Network=(null)
   Command=/tmp/job.sh NodeList=other
   Comment=StartTime=2020-01-01T00:00:00
"""


def test_what_slurm_says_of_a_job_is_read_and_not_what_its_user_says():
    job = allocation.described("17", SAID)
    assert (job.nodes, job.exclusive) == ("n[1-4]", True)
    times = [datetime(2026, 11, 27, 9, minute).astimezone() for minute in (0, 1, 11)]
    assert [job.submitted, job.started, job.ends] == times


@pytest.mark.parametrize(
    ("text", "exclusive", "ends"),
    [
        (SAID.replace("   OverSubscribe=NO", "   OverSubscribe=OK"), False, True),
        (SAID.replace("   OverSubscribe=NO", "   OverSubscribe=YES"), False, True),
        (SAID.replace("EndTime=2026-11-27T09:11:00", "EndTime=Unknown"), True, False),
        ("slurm_load_jobs error: Invalid job id specified", None, False),
    ],
)
def test_a_job_that_shares_nodes_has_no_end_or_is_unknown(text, exclusive, ends):
    job = allocation.described("17", text)
    assert (job.exclusive, job.ends is not None) == (exclusive, ends)


#: Of an array: a task that waits has the number of the array, as has the one that runs.
WAITING = """\
JobId=17 ArrayJobId=17 ArrayTaskId=3-9 JobName=a
   JobState=PENDING Reason=Priority Dependency=(null)
   SubmitTime=2026-11-27T07:00:00 EligibleTime=2026-11-27T07:00:01
   StartTime=2026-11-28T12:00:00 EndTime=2026-11-28T14:00:00 Deadline=N/A
   NodeList=(null)
   OverSubscribe=OK Contiguous=0 Licenses=(null)

"""
OTHER = SAID.replace("JobId=17", "JobId=18").replace("n[1-4]", "n[5-8]") + "\n"


@pytest.mark.parametrize("text", [WAITING + SAID, OTHER + WAITING + SAID, SAID + "\n" + OTHER])
def test_of_a_job_array_the_task_of_this_job_is_read(text):
    assert allocation.described("17", text) == allocation.described("17", SAID)


def test_names_of_a_host_with_and_without_its_domain_are_one():
    for same in ("c12", "c12.cluster.org", "C12"):
        assert allocation.same_host("c12", same) and allocation.same_host(same, "c12")
    for other in ("c1", "c123", "c12-a", "c1.cluster.org"):
        assert not allocation.same_host("c12", other)
    assert not allocation.same_host("c12.one.org", "c12.other.org")


def test_addresses_of_a_run_are_asked_for_its_nodes_only(inside, tmp_path, monkeypatch):
    inside(SAID)
    answer = "NodeName=n3 NodeAddr=10.0.0.3\nNodeName=n1 NodeAddr=10.0.0.1"
    (tmp_path / "scontrol").write_text(
        f'#!/bin/sh\necho "$*" >> {tmp_path}/asked\n'
        f'case "$*" in *"show job"*) cat {tmp_path}/job;; *) printf "{answer}\\n";; esac\n'
    )
    (tmp_path / "srun").write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/step\nexit 1\n')
    (tmp_path / "srun").chmod(0o755)
    for names, asked in (("n3", "n1"), "n3,n1"), ((), "n[1-4]"):
        ask = asking.Asking("17", Layout.parse("2x1"), names, None, 1)
        with pytest.raises(RuntimeError, match="srun failed"):
            ask.nodes(False)
        last = (tmp_path / "asked").read_text().splitlines()[-1]
        assert last == f"--oneliner show node {asked}"
    assert '"n3": "10.0.0.3"' in (tmp_path / "step").read_text()


NAMES = st.lists(st.text("abc123", min_size=1), min_size=1, max_size=9, unique=True)


@given(names=NAMES, repeat=st.integers(1, 50))
def test_smaller_layouts_are_on_nodes_of_larger_ones_of_the_same_repeat(names, repeat):
    chosen = [allocation.nested(names, count, repeat) for count in range(1, len(names) + 1)]
    for fewer, more in itertools.pairwise(chosen):
        assert more[: len(fewer)] == fewer
    assert sorted(chosen[-1]) == sorted(names)


@given(names=NAMES)
def test_every_node_is_the_one_node_equally_often(names):
    alone = [allocation.nested(names, 1, repeat) for repeat in range(1, 2 * len(names) + 1)]
    assert sorted(alone) == sorted([name] for name in [*names, *names])
    assert allocation.nested(names, 1, 1) == names[:1]


@pytest.fixture
def inside(tmp_path, monkeypatch):
    """A process on the node n1 of a job, of which SLURM says a text."""

    def written(text: str, node: str = "n1") -> None:
        (tmp_path / "job").write_text(text)
        monkeypatch.setenv("SLURM_JOB_ID", "17")
        monkeypatch.setenv("SLURM_JOB_NODELIST", "n[1-4]")
        if node:
            monkeypatch.setenv("SLURMD_NODENAME", node)
        else:
            monkeypatch.delenv("SLURMD_NODENAME", raising=False)

    answers = f'case "$2" in job) cat {tmp_path}/job;; *) printf "n1\\nn2\\nn3\\nn4\\n";; esac'
    (tmp_path / "scontrol").write_text(f"#!/bin/sh\n{answers}\n")
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return written


def call(local: bool = True, main: bool = True) -> Allocated:
    return Allocated(allocation.number() if main else None, lambda: local)


def run(layout: str, repeat: int | None = 1) -> Run:
    return Run("e", "d", "w", "single", Layout.parse(layout), "v", "native", repeat)


def test_runs_of_a_call_inside_a_job_are_given_nodes_and_those_of_its_jobs_are_not(inside):
    inside(SAID)
    allocated = call()
    allocated.require([run("1x1"), run("4x1")])
    assert allocated.nodes_of(run("2x3", 4)) == ["n4", "n1"]
    assert allocated.nodes_of(run("1x1", None)) == ["n1"]
    assert call(main=False).nodes_of(run("2x3")) == []


def test_a_job_of_one_node_is_this_machine(inside, tmp_path):
    inside(SAID.replace("=NO", "=OK"))
    (tmp_path / "scontrol").write_text(
        f'#!/bin/sh\n[ "$2" = job ] && cat {tmp_path}/job || echo n1\n'
    )
    allocated = call()
    allocated.require([run("1x1")])
    assert allocated.nodes_of(run("1x1")) == []


@pytest.mark.parametrize(
    ("text", "node", "local", "layout", "reason"),
    [
        (
            SAID,
            "",
            True,
            "1x1",
            r"is an allocation of n\[1-4\], and .* is not part of it.*srun --jobid",
        ),
        (SAID.replace("=NO", "=OK"), "n1", True, "1x1", "shares its nodes.*--exclusive"),
        (SAID, "n1", True, "5x1", "needs 5 nodes, and the job 17 has 4.*--nodes=5"),
        (SAID, "n1", False, "1x1", "inside a job.*without --profile"),
    ],
)
def test_what_a_job_cannot_measure_is_refused_with_the_remedy(
    inside, text, node, local, layout, reason
):
    inside(text, node)
    with pytest.raises(InputError, match=reason):
        call(local).require([run(layout)])


@pytest.mark.parametrize(
    ("minutes", "has_measured", "remedy"),
    [
        (4, False, "the same call, or the same script, goes on"),
        (20, False, "sbatch --time="),
        (20, True, "the same call, or the same script, goes on"),
    ],
)
def test_a_repeat_that_no_job_of_this_length_holds_needs_a_longer_one(
    inside, minutes, has_measured, remedy
):
    """The job of 10 minutes is long over: nothing more fits into it."""
    inside(SAID)
    allocated = call()
    assert allocated.late([None, None], False) is None, (
        "nothing is known: the first repeat is begun"
    )
    why = allocated.late([minutes * 30.0, minutes * 30.0], has_measured)
    assert "the runs of the repeat take" in why
    assert remedy in allocated.remedy


def test_a_run_is_not_recorded_where_the_job_has_lost_a_node(tmp_path, monkeypatch):
    lost = tmp_path / "srun"
    lost.write_text('#!/bin/sh\ncase "$*" in *--nodelist=n3*) exit 1;; esac\n')
    lost.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    asking.require_answers([])
    asking.require_answers(["n1", "n2"])
    with pytest.raises(InputError, match=r"SLURM_JOB_ID.*17.*no longer has n3,"):
        asking.require_answers(["n2", "n3"])
