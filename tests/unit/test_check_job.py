"""Checks inside a job of SLURM read what the kernel and SLURM's programs print."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from escala.check import job
from escala.check.machine import answers
from escala.core.errors import Unavailable

#: As SLURM 22.05 and 24.11 print it.
LISTS = {
    "pmix, pmix_v4": "MPI plugin types are...\n\tpmix\n\tnone\n\tpmi2\n"
    "specific pmix plugin versions available: pmix_v4\n",
    "pmix": "srun: MPI types are...\nsrun: none\nsrun: pmix\n",
}
NOW = datetime(2026, 1, 2, 11, 0, tzinfo=UTC)


def test_pmix_is_among_the_ways_of_srun():
    assert [job.pmix(text) for text in LISTS.values()] == list(LISTS)
    with pytest.raises(Unavailable, match="has none, pmi2, and no pmix"):
        job.pmix("MPI plugin types are...\n\tnone\n\tpmi2\n")


def _processors(folder: Path, siblings: dict[int, str]) -> Path:
    for core, text in siblings.items():
        (folder / f"cpu{core}/topology").mkdir(parents=True)
        (folder / f"cpu{core}/topology/thread_siblings_list").write_text(f"{text}\n")
    return folder


def test_two_threads_of_a_core_are_no_two_cores(tmp_path):
    folder = _processors(tmp_path, {0: "0,2", 1: "1,3", 2: "0,2", 3: "1,3"})
    assert job.physical([0, 1], folder).startswith("2,")
    with pytest.raises(Unavailable, match="4 cores of this process are threads of 2 physical"):
        job.physical([0, 1, 2, 3], folder)


def test_rdma_devices_are_named_with_link_state_and_rate(tmp_path):
    assert list(job.rdma(tmp_path / "absent")) == []
    port = tmp_path / "mlx5_0/ports/1"
    port.mkdir(parents=True)
    (port / "link_layer").write_text("InfiniBand\n")
    (port / "state").write_text("4: ACTIVE\n")
    (port / "rate").write_text("100 Gb/sec (4X EDR)\n")
    assert list(job.rdma(tmp_path)) == ["mlx5_0 InfiniBand ACTIVE 100 Gb/sec (4X EDR)"]


def test_the_file_system_of_a_folder_is_that_of_the_nearest_mount():
    assert job.file_system(Path("/proc/self")) == "proc"
    assert job.file_system(Path("/proc/self")) not in job.SHARED


def test_the_time_left_is_that_of_the_job_and_its_partition_has_a_limit():
    limits = "lab 30:00\ncpu 2-00:00:00\n"
    said = job.time_left(NOW + timedelta(minutes=90), "cpu", limits, NOW)
    assert said == "1 h 30 min are left; the partition cpu allows 2-00:00:00"
    with pytest.raises(Unavailable, match="does not say when"):
        job.time_left(None, "cpu", limits, NOW)


def test_outside_of_slurm_each_is_a_no_with_a_remedy(monkeypatch, tmp_path):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = {each.name: each for each in answers(job.CHECKS)}
    assert not any(found[name].able for name in ("PMIx", "control groups", "time limit"))
    assert all(each.able or each.remedy for each in found.values())
