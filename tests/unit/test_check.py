"""What a machine and a job of SLURM can run: yes, or no with a remedy, and no endless wait."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from escala.check import job
from escala.check import machine as check
from escala.check.machine import Check, answers
from escala.core.errors import InputError, Unavailable
from tests.unit.nvml import Gpu, Nvml


def _raising(error: Exception):
    def probe() -> str:
        raise error

    return probe


def _the(name: str) -> check.Answer:
    """Return the answer of one check of this machine, as its fakes make it."""
    [found] = [each for each in check.CHECKS if each.name == name]
    [answer] = answers([found])
    return answer


def test_each_is_answered_with_its_own_remedy_or_that_of_the_check():
    found = answers(
        [
            Check("able", "none", lambda: "two of them"),
            Check("unable", "buy one", _raising(Unavailable("there is none"))),
            Check("refused", "buy one", _raising(InputError("a", "b", "is closed", "open it"))),
            Check("broken", "mend it", _raising(KeyError("k"))),
        ]
    )
    assert list(map(str, found)) == [
        "able                  yes  two of them",
        "unable                no   there is none. Remedy: buy one",
        "refused               no   b: is closed. Remedy: open it",
        "broken                no   KeyError: 'k'. Remedy: mend it",
    ]


def test_one_that_hangs_is_a_no_and_holds_up_no_other():
    forever = threading.Event()
    hangs = Check("hangs", "wait", lambda: str(forever.wait()))
    begun = time.monotonic()
    first, second, third = answers([hangs, Check("able", "", lambda: "here"), hangs], 0.2)
    assert time.monotonic() - begun < 30
    forever.set()
    assert (first.able, third.able) == (False, False)
    assert first.detail == "no answer within 0.2 s" and first.remedy == "wait"
    assert second.able


def _program(folder: Path, name: str, *lines: str) -> None:
    path = folder / name
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)


@pytest.fixture
def only(tmp_path, monkeypatch) -> Path:
    """A folder that is all of the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_programs_are_there_and_slurm_if_its_controller_answers(only):
    for program in ("g++", "make"):
        answer = _the("C++ compiler")
        assert program in answer.detail and not answer.able
        _program(only, program)
    assert _the("C++ compiler").able
    assert "sbatch" in _the("SLURM").detail
    for name in ("sbatch", "squeue", "scancel", "scontrol", "srun"):
        _program(only, name)
    _program(only, "sinfo", "echo debug")
    assert _the("SLURM").able
    _program(only, "sinfo", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert "Unable to contact slurm controller" in _the("SLURM").detail


def test_energy_counters_are_absent_readable_or_forbidden(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "POWERCAP", tmp_path)
    assert "has no intel-rapl" in _the("energy counters").detail
    (tmp_path / "intel-rapl:0").mkdir()
    (tmp_path / "intel-rapl:0" / "energy_uj").write_text("17\n")
    assert _the("energy counters").detail == "intel-rapl:0"

    def forbidden(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    # Root may read everything, so that a mode would not do.
    monkeypatch.setattr(Path, "read_text", forbidden)
    answer = _the("energy counters")
    assert not answer.able and "no permission" in answer.detail
    assert answer.remedy.startswith("as root: chmod")


@pytest.mark.parametrize(
    ("gpus", "able", "detail"),
    [
        ([Gpu(name="A"), Gpu(name="B")], True, "A, B"),
        ([], False, "the driver knows no GPU"),
        (None, False, "NVML: no driver"),
    ],
)
def test_gpus_are_those_that_nvml_names(monkeypatch, gpus, able, detail):
    monkeypatch.setitem(sys.modules, "pynvml", Nvml(gpus))
    answer = _the("GPU")
    assert (answer.able, answer.detail) == (able, detail)


def test_counts_of_cores_and_ranks_decide(monkeypatch):
    for cores, able in ((1, False), (2, True)):
        monkeypatch.setattr(check, "available_cores", lambda cores=cores: list(range(cores)))
        assert _the("cores").able == able
    with monkeypatch.context() as patch:
        done = subprocess.CompletedProcess([], 0, "0\n", "")
        patch.setattr(check, "capture", lambda *_, **options: done)
        assert "started ranks 0" in _the("MPI").detail
    capture = check.capture
    monkeypatch.setattr(check, "_PROGRAM_SECONDS", 0.2)
    monkeypatch.setattr(check, "capture", lambda _, **options: capture(["sleep", "9"], **options))
    assert _the("MPI").detail == "mpirun did not end within 0.2 s"


def test_pmix_is_among_the_ways_of_srun():
    """As SLURM 22.05 and 24.11 print it."""
    old = "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\n"
    old += "specific pmix plugin versions available: pmix_v4\n"
    assert job.pmix(old) == "pmix, pmix_v4"
    assert job.pmix("srun: MPI types are...\nsrun: none\nsrun: pmix\n") == "pmix"
    with pytest.raises(Unavailable, match="has none, pmi2, and no pmix"):
        job.pmix("MPI plugin types are...\n\tnone\n\tpmi2\n")


def test_two_threads_of_a_core_are_no_two_cores(tmp_path):
    for core, text in {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"}.items():
        (tmp_path / f"cpu{core}/topology").mkdir(parents=True)
        (tmp_path / f"cpu{core}/topology/thread_siblings_list").write_text(f"{text}\n")
    assert job.physical_cores([0, 1], tmp_path).startswith("2,")
    with pytest.raises(Unavailable, match="4 cores of this process are threads of 2 physical"):
        job.physical_cores([0, 1, 2, 3], tmp_path)
    assert job.file_system(Path("/proc/self")) == "proc" and "proc" not in job.SHARED


def test_the_time_left_is_that_of_the_job_and_its_partition_has_a_limit():
    limits = "lab 30:00\ncpu 2-00:00:00\n"
    left = job.time_left(datetime.now(UTC) + timedelta(minutes=90.9), "cpu", limits)
    assert left == "1 h 30 min are left; the partition cpu allows 2-00:00:00"
    with pytest.raises(Unavailable, match="does not say when"):
        job.time_left(None, "cpu", limits)
