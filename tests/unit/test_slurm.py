"""What is made of SLURM's words about a job that ended without a result."""

from __future__ import annotations

import os

import pytest

from escala.core.errors import InputError
from escala.runtime import slurm

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


@pytest.mark.parametrize("script", ["exec sleep 60", "exit 1", None])
def test_a_job_has_an_ending_if_the_scheduler_does_not_answer(
    install, tmp_path, monkeypatch, script
):
    install("/bin" if script else "", squeue=script, sacct=script)
    monkeypatch.setattr(slurm, "_SECONDS", 0.2)
    log = tmp_path / "10.log"
    log.write_text(CANCELLED)
    status, reason = slurm.ending("10", log)
    assert status == "failed" and "DUE TO NODE FAILURE" in reason


def test_accounting_is_asked_for_a_job_that_the_queue_has_forgotten(install):
    install(squeue="exit 1", sacct="echo 'CANCELLED by 1000'")
    assert slurm.ending("10", None)[0] is None
    install(sacct="echo OUT_OF_MEMORY")
    assert slurm.ending("10", None)[0] == "out-of-memory"


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


def test_what_a_user_lets_squeue_print_does_not_hide_a_job(install, monkeypatch):
    install(squeue='[ -z "$SQUEUE_STATES" ] && echo "7|TIMEOUT"')
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")
    assert slurm.ending("7", None)[0] == "timeout"


def test_jobs_that_waited_too_long_are_told_from_others(install):
    install(squeue="printf '7|DEADLINE\\n8|FAILED\\n'")
    assert slurm.waited_too_long("name") == ["7"]


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
