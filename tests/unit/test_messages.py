"""The cause of a failure, out of what launchers, libraries and the kernel say."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from escala.record import diagnose
from escala.runtime import mpi
from escala.runtime.mpi import cause
from tests.unit.test_machines import RANK


def mpirun(*options: str, rank: str = "pass", before: str = "true") -> str:
    """Return what mpirun prints when it starts two ranks, after a command of the shell."""
    base = [mpi.MPIRUN_PROGRAM, "--mca", "plm", "isolated", "--host", "localhost:2", "-np", "2"]
    call = [f"{sys.prefix}/bin/{base[0]}", *base[1:], *options, sys.executable, "-c", rank]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f'{before} && exec "$@"', "sh", *call],
        env=os.environ | mpi.own_mpi(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert done.returncode
    return done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount; run as root")
@pytest.mark.parametrize(
    ("arguments", "first"),
    [
        (
            {
                "rank": RANK,
                "before": "mount -t tmpfs -o size=64k tmpfs /dev/shm",
            },
            "It appears as if there is not enough space for /dev/shm/vader_segment",
        ),
        ({"rank": "import os; os._exit(3)"}, "Exit code:    3"),
        ({"rank": "raise KeyError('why')"}, "KeyError: 'why'"),
        ({"rank": "import no_such_module"}, "ModuleNotFoundError: No module named"),
    ],
)
def test_the_cause_is_what_mpirun_prints_first(arguments, first):
    # Open MPI loses help messages of ranks that fail at the same moment.
    tries = (mpirun("--mca", "btl", "self,vader", **arguments) for _ in range(20))
    found = cause(next(said for said in tries if first in said))
    assert found.startswith(first)
    assert "---" not in found and "Primary job" not in found and found


def test_what_follows_from_another_message_comes_after_it():
    rule = "-" * 74 + "\n"
    follows = f"{rule}At least one pair of MPI processes are unable to reach each other for\n{rule}"
    log = "[n:1] [[1,0],0] ORTE_ERROR_LOG: Out of resource in file a/show_help.c at line 501\n"
    full = f"{rule}It appears as if there is not enough space for /dev/shm/a\n{rule}"
    assert cause(log + follows + full).startswith("It appears as if there is not enough space")
    assert cause(log + follows).startswith("At least one pair")


def test_one_line_that_says_little_is_better_than_none():
    assert cause("-----\n\n  Exit code:    3\n-----\n") == "Exit code:    3"
    assert cause("----\n  Process name: [[16903,1],1]\n") == "Process name: [[16903,1],1]"
    assert cause("\n---\n") == ""


def logs(folder: Path, said: str, **ranks: str) -> Path:
    (folder / "launcher.log").write_text(said)
    for name, text in ranks.items():
        (folder / f"{name}.log").write_text(text)
    return folder


KILLED = "mpirun noticed that process rank 1 with PID 0 on node n exited on signal {} (…)."


def test_what_the_kernel_counts_since_the_begin_tells_who_killed(tmp_path, monkeypatch):
    folder = logs(tmp_path, KILLED.format(9), rank1="epoch 1/3")
    monkeypatch.setattr(diagnose, "memory_kills", lambda: {"/proc/vmstat": 3})
    same = diagnose.failure(137, folder, {"/proc/vmstat": 3})
    assert (same.status, "memory" in same.reason) == ("failed", False)
    risen = diagnose.failure(137, folder, {"/proc/vmstat": 2})
    assert risen.status == "out-of-memory"
    assert "Remedy: a smaller batch" in risen.reason and "epoch 1/3" in risen.reason


@pytest.mark.parametrize(
    ("said", "rank"),
    [
        (KILLED.format(6), "terminate called after throwing an instance of 'std::bad_alloc'"),
        (
            KILLED.format(9) + "\nslurmstepd: error: Detected 1 oom-kill event(s) in step 7.0",
            "epoch",
        ),
        ("srun: error: n1: task 1: Out Of Memory", "epoch"),
    ],
)
def test_memory_may_run_out_in_other_ways(tmp_path, said, rank):
    outcome = diagnose.failure(1, logs(tmp_path, said, rank1=rank), diagnose.memory_kills())
    assert outcome.status == "out-of-memory"
    assert outcome.reason.startswith("out of memory: ") and "rank 1" in outcome.reason
    assert "Remedy: a smaller batch" in outcome.reason


LEAVES = """
import os, time
if os.environ["OMPI_COMM_WORLD_RANK"] == "0": time.sleep(0.2); os._exit(1)
os._exit(3)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount; run as root")
def test_a_rank_that_told_of_no_error_is_the_cause_of_what_others_told_by_mpirun(tmp_path):
    logs(tmp_path, mpirun(rank=LEAVES), rank1="out of patience")
    silent = diagnose.failure(1, tmp_path, {})
    assert silent.reason.startswith("the launcher ended with exit code 1")
    error = {"status": "failed", "reason": "RuntimeError: Connection closed by peer"}
    (tmp_path / "rank0.error.json").write_text(json.dumps(error))
    found = diagnose.failure(1, tmp_path, {})
    assert found.reason.startswith("rank 1 ended with exit code 3 and reported no error")
    assert "out of patience" in found.reason


def test_a_rank_that_told_of_no_error_is_the_cause_of_what_others_told_by_srun(tmp_path):
    said = "srun: error: n2: task 1: Exited with exit code 3\nsrun: error: n1: task 0: Exited with "
    logs(tmp_path, f"{said}exit code 1\n", rank1="out of patience")
    error = {"status": "failed", "reason": "RuntimeError: Connection closed by peer"}
    (tmp_path / "rank0.error.json").write_text(json.dumps(error))
    assert diagnose.failure(1, tmp_path, {}).reason.startswith("rank 1 ended with exit code 3")
    (tmp_path / "rank1.error.json").write_text(json.dumps({**error, "at": -1.0, "reason": "own"}))
    assert diagnose.failure(1, tmp_path, {}).reason.startswith("rank 1: own")


def test_an_error_of_tensorflow_is_one_of_memory_whatever_its_class(tmp_path):
    logs(tmp_path, "", rank0="Traceback")
    error = {"status": "failed", "reason": "UnknownError: OOM when allocating tensor with shape[9]"}
    (tmp_path / "rank0.error.json").write_text(json.dumps(error))
    outcome = diagnose.failure(1, tmp_path, diagnose.memory_kills())
    assert outcome.status == "out-of-memory"
    assert outcome.reason.startswith("out of memory: rank 0: UnknownError")


def test_both_versions_of_control_groups_count(tmp_path):
    for name, text in {
        "membership": "3:memory:/a/b\n0::/u\n",
        "vmstat": "nr_free_pages 7\noom_kill 4\n",
        "groups/memory/a/memory.oom_control": "under_oom 0\noom_kill 2\n",
        "groups/u/memory.events": "oom 5\noom_kill 1\noom_group_kill 0\n",
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = diagnose.memory_kills(tmp_path / "vmstat", tmp_path / "membership", tmp_path / "groups")
    assert sorted(found.values()) == [1, 2, 4]
