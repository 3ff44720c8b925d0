"""What is said of the end of a program or of ranks, from what they and the kernel leave."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from escala.programs import child, printed
from escala.record import diagnose
from escala.runtime import mpi
from escala.runtime.mpi import cause
from tests.calls import python
from tests.unit.test_machines import RANK

#: Starts programs with a terminal. One writes more than a read gives, which is 4 KiB, and its
#: output is read slowly; one asks for the size of its terminal and for input.
ON_TERMINAL = """
import os, sys, time
from types import SimpleNamespace
from escala.programs import child
class Written:
    data = b""
    def add(self, data, when):
        self.data += data
        time.sleep(0.02)
def said(*command):
    program, written = SimpleNamespace(terminal=True, directory=None), Written()
    child.run(program, command, {**os.environ, "MARK": "1"}, "MARK", written)
    return written.data.decode().split()
says = "import os; os.write(1, b'x' * 50_000 + b'last'); os._exit(0)"
print(said(sys.executable, "-c", says)[-1][-4:])
print(*said("sh", "-c", "stty size; cat; cat; echo end"))
"""


@pytest.mark.parametrize(
    ("code", "last", "words"),
    [
        (1, "ValueError: 7", "exit code 1"),
        (143, "", "exit code 143 (of signal 15, Terminated)"),
        (255, "", "exit code 255"),
        (-11, "", "signal 11 (Segmentation fault)"),
        (-34, "", "signal 34 (Real-time signal 0)"),
        (1, "ModuleNotFoundError: No module named 'torch'", "environment: {python"),
        (1, "the input device is not a TTY", "terminal: true"),
        (1, "OSError: [Errno 25] Inappropriate ioctl for device", "terminal: true"),
        (1, "RuntimeError: Address already in use", "{port}"),
    ],
)
def test_the_end_is_told_in_words_with_the_key_that_mends_it(code, last, words):
    found = child.how_ended(code, last)
    assert words in found
    # Nobody knows whether an early line is the cause.
    early = child.how_ended(code, f"{last}\n" + "loads\n" * 9)
    assert (found == early) == words.startswith(("exit", "signal"))


@pytest.mark.parametrize(
    ("first", "words"),
    [
        ("#!/bin/bash\r\n", ["'/bin/bash\\r'", "not there", "sed -i"]),
        ("#!/no/such/python -u\n", ["'/no/such/python',", "not there"]),
        ("echo 1\n", ["names no interpreter", "#!/bin/sh"]),
        (None, ["No such file", "PATH", "sh -c"]),
    ],
)
def test_a_script_that_cannot_start_tells_of_its_first_line(first, words, tmp_path):
    script = tmp_path / "run.sh"
    if first:
        script.write_bytes(first.encode() + b"no-such-program\r\n")
        script.chmod(0o755)
    with pytest.raises(OSError) as refused:
        subprocess.run([script], capture_output=True)
    why = child.why_not_started(script, refused.value)
    assert "Remedy: " in why and all(word in why for word in words), why
    denied = PermissionError(errno.EACCES, "Permission denied")
    assert not first or "chmod +x" in child.why_not_started(script, denied)


@pytest.mark.parametrize("rank", ["", "[rank1]: "])
def test_a_program_that_went_on_after_an_error_has_not_failed(rank):
    """A program may log that a service does not answer yet, and ask again."""
    error = f"{rank}Traceback (most recent call last)\n" + f"{rank}  File 'a.py'\n" * 30
    error += f"{rank}TimeoutError: no answer"
    epochs = "\n".join(f"epoch {n}" for n in range(30))
    assert printed.has_failed(error) and printed.has_failed(f"{epochs}\n{error}\nwaits\nends")
    assert printed.has_failed(f"{error}\n{epochs}\n{error}")
    assert not printed.has_failed(f"{error}\n{epochs}") and not printed.has_failed(epochs)
    # After these, Python goes on.
    for before in (
        "Exception ignored in: <function Left.__del__>",
        "Task exception was never retrieved\nfuture: <Task finished coro=<work()>>",
        "Task was destroyed but it is pending!\ntask: <Task pending coro=<work()>>",
        "--- Logging error ---",
    ):
        assert not printed.has_failed(f"{before}\n{error.replace(rank, '')}")


def test_the_first_error_is_told_where_a_trace_of_the_stack_hides_it(tmp_path):
    fatal = "F1128 21:10:11.605540   20595 rendezvous.cc:161] Only 1 of 2 threads arrived"
    warned = "W1128 21:09:31.601473   20595 rendezvous.cc:116] Waits"
    frames = [f"    @     0x7f7a4f04063{n}  xla::internal::Await()" for n in range(9)]
    (tmp_path / "rank0.log").write_text("\n".join([warned, fatal, "*** stack trace: ***", *frames]))
    assert f"; its first error: {fatal}; its last lines: " in diagnose.tail(tmp_path, 0)


def test_a_program_on_a_terminal_knows_its_size_and_gets_an_empty_input():
    assert python("-c", ON_TERMINAL).stdout.splitlines() == ["last", "24 120 end"]


def mpirun(*options: str, rank: str = "pass", before: str = "true") -> str:
    """Return what mpirun prints when it starts two ranks, after a command of the shell."""
    base = [mpi.MPIRUN_PROGRAM, "--mca", "plm", "isolated", "--host", "localhost:2", "-np", "2"]
    call = [f"{sys.prefix}/bin/{base[0]}", *base[1:], *options, sys.executable, "-c", rank]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", f'{before} && exec "$@"', "sh", *call],
        env=os.environ | mpi.project_mpi(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert done.returncode
    return done.stdout


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount; run as root")
@pytest.mark.parametrize(
    ("rank", "before", "first"),
    [
        (
            RANK,
            "mount -t tmpfs -o size=64k tmpfs /dev/shm",
            "It appears as if there is not enough space for /dev/shm/vader_segment",
        ),
        ("import os; os._exit(3)", "true", "Exit code:    3"),
        ("raise KeyError('why')", "true", "KeyError: 'why'"),
    ],
)
def test_the_cause_is_what_mpirun_prints_first(rank, before, first):
    # Open MPI loses help messages of ranks that fail at the same moment.
    tries = (mpirun("--mca", "btl", "self,vader", rank=rank, before=before) for _ in range(20))
    found = cause(next(said for said in tries if first in said))
    assert found.startswith(first) and "---" not in found and "Primary job" not in found


def test_what_follows_from_another_message_comes_after_it_and_little_is_better_than_nothing():
    rule = "-" * 74 + "\n"
    follows = f"{rule}At least one pair of MPI processes are unable to reach each other for\n{rule}"
    log = "[n:1] [[1,0],0] ORTE_ERROR_LOG: Out of resource in file a/show_help.c at line 501\n"
    full = f"{rule}It appears as if there is not enough space for /dev/shm/a\n{rule}"
    assert cause(log + follows + full).startswith("It appears as if there is not enough space")
    assert cause(log + follows).startswith("At least one pair")
    assert cause("-----\n\n  Exit code:    3\n-----\n") == "Exit code:    3"
    assert cause("----\n  Process name: [[16903,1],1]\n") == "Process name: [[16903,1],1]"
    assert cause("\n---\n") == ""


def logs(folder: Path, said: str, **ranks: str) -> Path:
    (folder / "launcher.log").write_text(said)
    for name, text in ranks.items():
        (folder / f"{name}.log").write_text(text)
    return folder


def failed(folder: Path, rank: int, reason: str, **more: object) -> None:
    error = {"status": "failed", "reason": reason} | more
    (folder / f"rank{rank}.error.json").write_text(json.dumps(error))


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
    ("said", "rank", "error"),
    [
        (KILLED.format(6), "terminate called after throwing an instance of 'std::bad_alloc'", ""),
        (
            KILLED.format(9) + "\nslurmstepd: error: Detected 1 oom-kill event(s) in step 7.0",
            "epoch",
            "",
        ),
        ("srun: error: n1: task 1: Out Of Memory", "epoch", ""),
        ("", "Traceback", "UnknownError: OOM when allocating tensor with shape[9]"),
    ],
)
def test_memory_may_run_out_in_other_ways(tmp_path, said, rank, error):
    logs(tmp_path, said, rank1=rank)
    if error:
        failed(tmp_path, 1, error)
    outcome = diagnose.failure(1, tmp_path, diagnose.memory_kills())
    assert outcome.status == "out-of-memory"
    assert outcome.reason.startswith("out of memory: ") and "rank 1" in outcome.reason
    assert error in outcome.reason and "Remedy: a smaller batch" in outcome.reason


@pytest.mark.parametrize(
    "said",
    [
        "srun: error: n2: task 1: Exited with exit code 3\nsrun: error: n1: task 0: Exited\n",
        "mpirun detected that one or more\n  Process name: [[16903,1],1]\n  Exit code:    3\n---\n",
    ],
)
def test_a_rank_that_told_of_no_error_is_the_cause_of_what_others_told(tmp_path, said):
    logs(tmp_path, said, rank1="out of patience")
    silent = diagnose.failure(1, tmp_path, {})
    assert silent.reason.startswith("the launcher ended with exit code 1")
    failed(tmp_path, 0, "RuntimeError: Connection closed by peer")
    found = diagnose.failure(1, tmp_path, {})
    assert found.reason.startswith("rank 1 ended with exit code 3 and reported no error")
    assert "out of patience" in found.reason
    failed(tmp_path, 1, "own", at=-1.0)
    assert diagnose.failure(1, tmp_path, {}).reason.startswith("rank 1: own")


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
