"""What is made of SLURM's words about a job that ended without a result."""

from __future__ import annotations

import os

import pytest

from escala.core.errors import InputError
from escala.runtime import slurm

WILDCARDS = ["across", "small", "rep1"]
NAME = "across_small_rep1"
KILLED = (
    "Job 0: Train\nslurmstepd-n1: error: StepId=4.batch exceeded memory limit (2 > 1), being killed"
    "\nslurmstepd-n1: error: Exceeded job memory limit\n"
)
CANCELLED = "slurmstepd: error: *** JOB 5 ON n1 CANCELLED AT 2026-01-02 DUE TO NODE FAILURE ***\n"


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Let programs be found, with scripts of a test's."""
    folder = tmp_path / "bin"
    folder.mkdir()

    def written(path: str = os.environ["PATH"], **scripts: str | None) -> None:
        for name, script in scripts.items():
            if script is not None:
                (folder / name).write_text(f"#!/bin/sh\n{script}\n")
                (folder / name).chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}:{path}")

    return written


@pytest.fixture
def squeue(install):
    """Answer as `squeue` does, with jobs that a test names."""
    return lambda *jobs: install(squeue="cat <<'END'\n{}\nEND".format("\n".join(jobs)))


@pytest.mark.parametrize(
    ("state", "log", "status", "reason"),
    [
        ("DEADLINE", None, "timeout", "DEADLINE: it had not begun after queue_minutes"),
        ("TIMEOUT", "", "timeout", "TIMEOUT"),
        ("OUT_OF_MEMORY", "", "out-of-memory", "OUT_OF_MEMORY"),
        ("FAILED", KILLED, "out-of-memory", "StepId=4.batch exceeded memory limit"),
        ("NODE_FAIL", CANCELLED, "failed", "DUE TO NODE FAILURE"),
    ],
)
def test_the_newest_job_of_a_run_says_how_it_ended(squeue, tmp_path, state, log, status, reason):
    squeue(
        f"9|COMPLETED|rule_train_wildcards_{NAME}",
        f"10|{state}|rule_train_wildcards_{NAME}",
        "11|RUNNING|rule_train_wildcards_another_rep1",
    )
    if log is not None:
        folder = tmp_path / "rule_train" / NAME
        folder.mkdir(parents=True)
        (folder / "10.log").write_text(log)
    found, said = slurm.ending("train", WILDCARDS, tmp_path)
    assert found == status
    assert said.startswith("its job ended without a result") and reason in said


def test_a_job_that_nobody_remembers_has_failed(squeue, tmp_path):
    squeue()
    ending = slurm.ending("train", WILDCARDS, tmp_path)
    assert ending == ("failed", "its job ended without a result")


@pytest.mark.parametrize("script", ["exec sleep 60", "exit 1", None])
def test_a_job_has_an_ending_if_the_scheduler_does_not_answer(
    install, tmp_path, monkeypatch, script
):
    install("/bin" if script else "", squeue=script)
    monkeypatch.setattr(slurm, "_SECONDS", 0.2)
    folder = tmp_path / "rule_train" / NAME
    folder.mkdir(parents=True)
    (folder / "10.log").write_text(CANCELLED)
    status, reason = slurm.ending("train", WILDCARDS, tmp_path)
    assert status == "failed" and "DUE TO NODE FAILURE" in reason


@pytest.fixture
def programs(install):
    """Let SLURM's programs be found, `sinfo` with a script of the test's, and no others."""
    return lambda sinfo: install("", **dict.fromkeys(slurm._PROGRAMS, "exit 1") | {"sinfo": sinfo})


@pytest.mark.parametrize(
    ("sinfo", "reason"),
    [
        ("echo 'sinfo: error: Zero Bytes were transmitted' >&2; exit 1", "Zero Bytes"),
        ("exit 3", "sinfo ended with 3"),
        ("exec /bin/sleep 300", "no answer within 0.2 s"),
    ],
)
def test_a_controller_that_does_not_answer_in_time_is_refused(programs, monkeypatch, sinfo, reason):
    programs("echo main")
    slurm.require_controller()
    programs(sinfo)
    monkeypatch.setattr(slurm, "_ANSWER_SECONDS", 0.2)
    with pytest.raises(InputError, match=f"does not answer: .*{reason}") as error:
        slurm.require_controller()
    assert "without --profile" in error.value.remedy


def test_programs_that_are_not_installed_are_named(programs):
    programs(None)
    with pytest.raises(InputError, match="'sinfo': not found on the PATH"):
        slurm.require_controller()


def test_what_a_user_lets_squeue_print_does_not_hide_a_job(install, tmp_path, monkeypatch):
    install(squeue='[ -z "$SQUEUE_STATES" ] && echo "7|TIMEOUT|rule_train_wildcards_a"')
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")
    assert slurm.ending("train", ["a"], tmp_path)[0] == "timeout"


@pytest.mark.parametrize(
    ("state", "ended", "code"),
    [
        ("COMPLETED", "0:0", 0),
        ("FAILED", "75:0", 75),
        ("FAILED", "2:0", 2),
        ("CANCELLED", "0:15", 143),
        # SLURM gives these no code of their own.
        ("TIMEOUT", "0:0", 1),
        ("NODE_FAIL", "0:0", 1),
    ],
)
def test_a_wait_ends_with_the_exit_code_of_the_job(install, tmp_path, state, ended, code):
    lines = ["   JobState={} Reason=None", "   Requeue=1 Reboot=0 ExitCode={}"]
    running, over = (
        "\n".join(lines).format(*each) for each in (("RUNNING", "0:0"), (state, ended))
    )
    asked = tmp_path / "asked"
    install(
        scontrol=f"""echo "$@" >> {asked}
        [ $(wc -l < {asked}) -lt 3 ] && echo '{running}' || echo '{over}'"""
    )
    assert slurm.wait("31", seconds=0.01) == code
    assert asked.read_text() == 3 * "show job 31\n"


def test_a_wait_that_is_ended_cancels_the_job(install, tmp_path, monkeypatch):
    install(
        scontrol="echo '   JobState=PENDING Reason=Priority'", scancel=f"echo $1 > {tmp_path}/gone"
    )

    def interrupted(seconds: float) -> None:
        raise SystemExit(130)

    monkeypatch.setattr(slurm.time, "sleep", interrupted)
    with pytest.raises(SystemExit):
        slurm.wait("31")
    assert (tmp_path / "gone").read_text() == "31\n"


def test_a_job_that_slurm_has_forgotten_has_ended(install):
    install(scontrol="echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    assert slurm.wait("31") == 1
