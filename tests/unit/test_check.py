"""What a machine can run: yes, no with a remedy, and never a wait without end."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path

import pytest

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


def test_checks_have_names_of_their_own_and_remedies_of_one_line():
    names = [each.name for each in check.CHECKS]
    assert len(set(names)) == len(names) >= 9
    assert all(each.remedy and "\n" not in each.remedy for each in check.CHECKS)


def _program(folder: Path, name: str, *lines: str) -> None:
    path = folder / name
    path.write_text("\n".join(["#!/bin/sh", *lines]) + "\n")
    path.chmod(0o755)


@pytest.fixture
def only(tmp_path, monkeypatch) -> Path:
    """A folder that is all of the PATH."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def test_a_compiler_needs_make_beside_it(only):
    assert "g++, make: not found" in _the("C++ compiler").detail
    _program(only, "g++")
    assert _the("C++ compiler").detail.startswith("make: not found")
    _program(only, "make")
    assert _the("C++ compiler").able


def test_slurm_is_there_if_its_controller_answers(only):
    assert "sbatch" in _the("SLURM").detail
    for name in ("sbatch", "squeue", "scancel", "scontrol", "srun"):
        _program(only, name)
    _program(only, "sinfo", "echo debug")
    assert _the("SLURM").able
    _program(only, "sinfo", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert "Unable to contact slurm controller" in _the("SLURM").detail


def test_a_program_that_does_not_end_is_a_no(monkeypatch):
    monkeypatch.setattr(check, "_PROGRAM_SECONDS", 0.2)
    with pytest.raises(Unavailable, match=r"sleep did not end within 0\.2 s"):
        check._output(["sleep", "1000"])


def test_a_browser_needs_its_driver(only):
    assert not _the("browser").able
    _program(only, "chromedriver")
    assert _the("browser").able


@pytest.mark.parametrize(("cores", "able"), [(1, False), (2, True)])
def test_a_second_process_needs_a_second_core(monkeypatch, cores, able):
    monkeypatch.setattr(check, "available_cores", lambda: list(range(cores)))
    assert _the("cores").able == able


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


def test_genomes_are_fasta_files_in_the_folder_named(tmp_path, monkeypatch):
    monkeypatch.delenv(check.GENOMES, raising=False)
    assert "is not set" in _the("real genomes").detail
    monkeypatch.setenv(check.GENOMES, str(tmp_path))
    assert "holds no" in _the("real genomes").detail
    (tmp_path / "EBOLA.fasta.gz").touch()
    assert _the("real genomes").detail.startswith("1 FASTA file")


def test_mpirun_that_starts_too_few_is_a_no(monkeypatch):
    monkeypatch.setattr(check, "_output", lambda *_: "0\n")
    answer = _the("MPI")
    assert not answer.able and "started ranks 0" in answer.detail
