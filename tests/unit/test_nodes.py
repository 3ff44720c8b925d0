"""Jobs of several nodes: their allocation, and a job for each number of nodes."""

from __future__ import annotations

import itertools
import json
import os
import re
import socket
import subprocess
import sys
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from escala.core.errors import InputError
from escala.core.files import write_text
from escala.core.hardware import available_cores
from escala.experiment import Run, load
from escala.experiment.scaling import smaller_size
from escala.measure import table
from escala.measure.allocated import Allocated
from escala.measure.plan import Plan, by_nodes, plan_session, table_of
from escala.runtime import allocation, asking, slurm
from escala.runtime.layout import Layout, Node
from escala.runtime.node import MARK
from escala.workflow.experiments import Experiments
from escala.workflow.plans import Jobs, Plans
from tests.conftest import ROOT
from tests.unit.test_workflow_package import Planned, measured

#: As SLURM 22.05 prints it, in part. The user's words hold what looks like keys.
SAID = """\
JobId=17 JobName=a EndTime=2020-01-01T00:00:00 OverSubscribe=OK
   JobState=RUNNING Reason=None Dependency=(null)
   RunTime=00:00:01 TimeLimit=00:10:00 TimeMin=N/A
   SubmitTime=2026-11-27T09:00:00 EligibleTime=2026-11-27T09:00:00
   StartTime=2026-11-27T09:01:00 EndTime=2026-11-27T09:11:00 Deadline=N/A
   ReqNodeList=(null) ExcNodeList=(null)
   NodeList=n[1-4]
   OverSubscribe=NO Contiguous=0 Licenses=(null) Network=(null)
   Command=/tmp/job.sh NodeList=other
   Comment=StartTime=2020-01-01T00:00:00
"""


def test_what_slurm_says_of_a_job_is_read_and_not_what_its_user_says():
    job = slurm.parse_job("17", SAID)
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
    job = slurm.parse_job("17", text)
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


def test_of_a_job_array_the_task_of_this_job_is_read():
    for text in (WAITING + SAID, OTHER + WAITING + SAID, SAID + "\n" + OTHER):
        assert slurm.parse_job("17", text) == slurm.parse_job("17", SAID)


def test_names_of_a_host_with_and_without_its_domain_are_one():
    for same in ("c12", "c12.cluster.org", "C12"):
        assert slurm.same_host("c12", same) and slurm.same_host(same, "c12")
    for other in ("c1", "c123", "c12-a", "c1.cluster.org"):
        assert not slurm.same_host("c12", other)
    assert not slurm.same_host("c12.one.org", "c12.other.org")


@given(st.lists(st.text("abc123", min_size=1), min_size=1, max_size=9, unique=True))
def test_smaller_layouts_are_on_nodes_of_larger_ones_and_every_node_serves_equally_often(names):
    for repeat in range(1, 5):
        chosen = [slurm.rotate_nodes(names, count + 1, repeat) for count in range(len(names))]
        for fewer, more in itertools.pairwise(chosen):
            assert more[: len(fewer)] == fewer
        assert sorted(chosen[-1]) == sorted(names)
    alone = [slurm.rotate_nodes(names, 1, repeat + 1) for repeat in range(2 * len(names))]
    assert sorted(alone) == sorted([name] for name in [*names, *names])
    assert slurm.rotate_nodes(names, 1, 1) == names[:1]


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
    return Allocated(allocation.job_number() if main else None, lambda: local)


def run(layout: str, repeat: int | None = 1) -> Run:
    return Run("e", "d", "w", "single", Layout.parse(layout), "v", "native", repeat)


def test_runs_of_a_call_inside_a_job_are_given_nodes_and_those_of_its_jobs_are_not(
    inside, tmp_path
):
    inside(SAID)
    allocated = call()
    allocated.require([run("1x1"), run("4x1")])
    assert allocated.nodes_of(run("2x3", 4)) == ["n4", "n1"]
    assert allocated.nodes_of(run("1x1", None)) == ["n1"]
    assert call(main=False).nodes_of(run("2x3")) == []
    # A job of one node is this machine.
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
        (SAID, "", True, "1x1", r"of n\[1-4\], and .* is not part of it.*srun --jobid"),
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
    assert allocated.lack_of_time([None, None], False) is None, (
        "nothing is known: the first repeat is begun"
    )
    why = allocated.lack_of_time([minutes * 30.0, minutes * 30.0], has_measured)
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
    with pytest.raises(InputError, match=r"job.*17.*no longer has n3,"):
        asking.require_answers(["n2", "n3"])


def test_nodes_are_described_without_an_mpi_that_does_not_answer(tmp_path, monkeypatch):
    srun = tmp_path / "srun"
    node = Node("n1", "eth0", "10.0.0.1", [0], [4000], {})
    answer = json.dumps(vars(node) | {"number": 0, "world": None})
    srun.write_text(
        '#!/bin/sh\ncase "$*" in --mpi=list) echo pmix;; *--mpi=pmix*) exec sleep 60;; '
        f"*) echo '{MARK}{answer}';; esac\n"
    )
    srun.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(asking, "_SURVEY_SECONDS", 1)
    call = "17", 1, ["n1"], None, 1
    assert asking.describe_nodes(*call, mpi=True) == ([node], 1)
    srun.write_text("#!/bin/sh\nexec sleep 60\n")
    with pytest.raises(RuntimeError, match="no answer in 1 seconds"):
        asking.describe_nodes(*call, mpi=False)


ONE, TWO, FOUR = "1x1", "2x1", "4x1"


def study_of(**changes: object) -> Experiments:
    """Return the default experiment with configurations on one, two and four nodes."""
    configurations = [
        {"strategy": "single", "layouts": [ONE], "variants": ["tuned"]},
        {"strategy": "horovod-mpi", "layouts": [TWO, FOUR], "variants": ["tuned"]},
    ]
    alone = {"strategy": "single", "layout": ONE, "variant": "tuned"}
    probes = {name: {"enabled": False} for name in ("resources", "clocks", "timeline")}
    given = {"configurations": configurations, "references": [alone], "jobs_by_nodes": True}
    return Experiments(ROOT, ROOT, [], given | probes | {"repeats": 2} | changes)


def layouts(plan: Plan) -> list[set[str]]:
    return [{each.run.layout for each in group} for group in plan.groups]


def test_each_number_of_nodes_has_a_job_with_its_references_and_no_more_nodes(monkeypatch):
    monkeypatch.chdir(ROOT)
    study = study_of()
    plans = Plans(study, False, lambda: False, set, set)
    jobs = Jobs(study, plans, lambda: None)
    demo = SimpleNamespace(experiment="demo")
    assert plans.parts_of(demo) == [table_of("demo", nodes) for nodes in (1, 2, 4)]
    for nodes, layout in (("2", TWO), ("4", FOUR)):
        part = SimpleNamespace(experiment="demo", nodes=nodes)
        assert layouts(plans.plan_of(part)) == [{ONE, layout}] * 2
        assert jobs.nodes(part) == int(nodes)
    assert jobs.nodes(demo) == 4


def test_both_sizes_of_a_doubling_are_measured_in_one_job(monkeypatch):
    monkeypatch.chdir(ROOT)
    layouts_of_study = [ONE, TWO, FOUR]
    scaling = {"kind": "strong", "strategies": ["horovod-mpi"], "layouts": layouts_of_study}
    study = study_of(scaling=scaling | {"variants": ["tuned"]})
    parts = by_nodes(plan_session(study.default))
    by_steps = {
        nodes: [run for run in runs if run.workload == "virus-cnn"] for nodes, runs in parts.items()
    }
    assert {run.layout for run in by_steps[4]} == {FOUR} and 2 in parts
    [run, *_] = by_steps[4]
    assert {each.layout for each in study.default.references_of(run)} == {ONE, TWO}
    # A study of programs has one process under its own strategy.
    two = run.configuration._replace(layout=Layout.parse(TWO))
    smaller = smaller_size(two, study.default.settings["scaling"])
    assert {each.strategy for each in smaller} == {"single", "horovod-mpi"}
    assert {each.layout for each in smaller} == {Layout.parse(ONE)}


def test_one_node_has_a_job_if_it_has_more_than_references_of_others(monkeypatch):
    monkeypatch.chdir(ROOT)
    plan = plan_session(study_of().default)
    workloads = {run.workload for run in by_nodes(plan)[1]}
    assert len(workloads) == 3
    scaled = tuple(group for group in plan.groups if group[0].run.workload == "virus-cnn")
    assert [*by_nodes(replace(plan, groups=scaled))] == [2, 4]
    sampled = by_nodes(plan_session(study_of(resources={"enabled": True}).default))
    assert {run.instrument for run in sampled[1]} == {None, "resources"}


def test_a_part_is_left_alone_when_a_later_one_measured_its_references_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    house = Planned(study_of())
    measured(Plan.read(house.call(experiment="demo")[1]))
    write_text(table_of("demo", 2), '{"format": 1, "runs": []}\n')
    assert not house.call(experiment="demo", nodes="2")[2]
    # The table of all does not tell of them, and is joined again.
    plan = Plan.read(house.call(experiment="demo")[1])
    assert plan.call
    write_text(table_of("demo"), table.text(plan))
    [across] = {each.file for each in plan.runs if (each.run.layout, each.run.repeat) == (FOUR, 2)}
    Path(across).unlink()
    assert not house.call(experiment="demo", nodes="2")[2]
    plans, file, is_new = house.call(experiment="demo", nodes="4")
    assert (
        is_new
        and across in plans.left
        and plans.left.keys() <= {each.file for each in Plan.read(file).groups[1]}
    )


def test_a_session_that_decides_needs_one_job(tmp_path):
    settings = yaml.safe_load((ROOT / "config.yaml").read_text()) | {"jobs_by_nodes": True}
    settings["repeats"] = {"decide": True}
    (tmp_path / "demo.yaml").write_text(yaml.safe_dump(settings))
    with pytest.raises(InputError, match="jobs_by_nodes"):
        load(tmp_path / "demo.yaml")


NAMES = st.from_regex(r"[a-z]{1,3}[0-9]{0,3}(-ib)?", fullmatch=True)
HOSTS = st.dictionaries(NAMES, st.integers(2, 5), min_size=1, max_size=4)


@given(HOSTS)
def test_all_forms_of_a_list_of_hosts_are_read_alike(slots):
    items = slots.items()
    texts = (
        "\n".join(name for name, count in items for _ in range(count)),  # PBS, LSF's file
        " ".join(f"{name} {count}" for name, count in items),  # LSF
        ",".join(f"{name}:{count}" for name, count in items),  # MPICH
        "\n".join(f"{name} slots={count} max_slots=99  # of Open MPI" for name, count in items),
    )
    assert [list(allocation.parse_hosts(text).items()) for text in texts] == [list(items)] * 4
    assert allocation.parse_hosts("\n".join(slots)) == dict.fromkeys(slots)


def test_ranges_of_hosts_stand_for_their_names_in_order():
    assert list(allocation.parse_hosts("n[08-11,3]-ib,m1")) == [
        *("n08-ib", "n09-ib", "n10-ib", "n11-ib", "n3-ib", "m1")
    ]
    assert allocation.parse_hosts("r[1-2]c[1-2]:4") == dict.fromkeys(
        ["r1c1", "r1c2", "r2c1", "r2c2"], 4
    )
    for text in ("4 n1", "n[a-b]", "n1:many", "n[3-1]", "n1:0", "sockets=2", "= n1"):
        with pytest.raises(ValueError, match=re.escape(text.split()[0])):
            allocation.parse_hosts(text)
    for text in ("n[1-2", "n1 1-2]"):
        with pytest.raises(ValueError, match="bracket"):
            allocation.parse_hosts(text)


#: What each scheduler tells of a job of two hosts with four cores each.
TOLD = {
    "pbs": {"PBS_JOBID": "12.server", "PBS_NODEFILE": "{file}", "NCPUS": "4"},
    "lsf": {"LSB_JOBID": "12", "LSB_MCPU_HOSTS": "n1 4 n2 4"},
    "flux": {"FLUX_URI": "local:///tmp/flux-{name}/local-0"},
    "hosts": {"ESCALA_HOSTS": "n[1-2]:4"},
}


@pytest.mark.parametrize("scheduler", TOLD)
def test_each_scheduler_tells_the_hosts_of_a_job_and_their_cores(scheduler, tmp_path, monkeypatch):
    for name in ("SLURM_JOB_ID", "SLURM_JOBID"):
        monkeypatch.delenv(name, raising=False)
    # By its manual, `flux resource list` writes what its format asks for, in one line.
    answers = 'case "$1" in getattr) echo f12;; *) echo "n[1-2] 8 2";; esac'
    (tmp_path / "flux").write_text(f"#!/bin/sh\n{answers}\n")
    (tmp_path / "flux").chmod(0o755)
    (tmp_path / "file").write_text("n1\nn2\n")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for name, value in TOLD[scheduler].items():
        monkeypatch.setenv(name, value.format(file=tmp_path / "file", name=tmp_path.name))
    assert allocation.cores_by_host() == {"n1": 4, "n2": 4}
    job, allocated = allocation.ask_job(), call()
    assert (job.scheduler, allocation.hosts(job)) == (scheduler, ["n1", "n2"])
    assert re.fullmatch(r"[\w-]*12[\w-]*|hosts-\w+", job.number)
    assert allocated.nodes_of(run("2x3", 2)) == ["n2", "n1"]
    allocated.require([run("2x1")])
    with pytest.raises(InputError, match="needs 3 nodes"):
        allocated.require([run("3x1")])
    # The time of the job stands in the script that `escala submit` writes.
    assert allocated.lack_of_time([600.0], True) is None
    monkeypatch.setenv("ESCALA_JOB_TIME", f"{int(time.time()) - 600}:1000")
    assert "ends in 6 min" in allocated.lack_of_time([600.0], True)
    assert allocated.lack_of_time([100.0], True) is None
    assert (
        allocated.lack_of_time([1000.0], False) and "minutes, or escala submit" in allocated.remedy
    )


def test_a_list_of_hosts_that_cannot_be_read_is_refused_with_the_remedy(monkeypatch):
    for text in ("n1:many", " , ", "/no/such/file"):
        monkeypatch.setenv("ESCALA_HOSTS", text)
        with pytest.raises(InputError, match=r"ESCALA_HOSTS.*n1,n2"):
            allocation.cores_by_host()


def test_a_list_of_hosts_may_be_long_and_is_known_by_its_hosts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [f"node{number}.cluster.example.org" for number in range(40)]
    monkeypatch.setenv("ESCALA_HOSTS", ",".join(names))
    assert list(allocation.cores_by_host()) == names
    numbers = []
    for text in ("n1,n2", "n1 n2", "file", "file"):
        (tmp_path / "file").write_text("n1\nn2\n" if len(numbers) == 2 else "n7\nn8\n")
        monkeypatch.setenv("ESCALA_HOSTS", text)
        numbers.append(allocation.job_number())
    assert numbers[0] == numbers[1] == numbers[2] != numbers[3]


@pytest.mark.all_cores
@pytest.mark.usefixtures("cold")
def test_a_call_uses_no_more_cores_of_this_machine_than_its_job_has_here(tmp_path):
    """Not every scheduler binds the processes of a job."""
    if len(available_cores()) < 2:
        pytest.skip("needs two cores")
    words = [sys.executable, "-m", "escala.command", "check"]
    answers = []
    for count in (1, 2):
        variables = os.environ | {"ESCALA_HOSTS": f"{socket.gethostname()}:{count}"}
        done = subprocess.run(words, env=variables, cwd=tmp_path, capture_output=True, text=True)
        answers += re.findall(r"^cores +(\w+)", done.stdout, re.MULTILINE)
    assert answers == ["no", "yes"], done.stdout + done.stderr
