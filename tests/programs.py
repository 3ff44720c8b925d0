"""What tests of users' own programs share: an experiment, a program of MPI, what a run leaves."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil

from escala.data import kind_of
from escala.data.settings import derive
from escala.experiment import Experiment

#: Joins the others through MPI, by the names of Open MPI 4 in mpi.h.
JOINING = """
import ctypes
from escala_steps import begin, epoch, score
mpi = ctypes.CDLL("libmpi.so.40", mode=ctypes.RTLD_GLOBAL)
begin()
mpi.MPI_Init(None, None)
world, size = ctypes.byref(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world")), ctypes.c_int()
mpi.MPI_Comm_size(world, ctypes.byref(size))
mpi.MPI_Barrier(world)
epoch()
score(world=size.value)
mpi.MPI_Finalize()
"""


def experiment_on(name: str, workloads: dict, **changes: object) -> dict:
    """Return a small experiment on programs: one process of each, under `processes`, once."""
    return {
        "experiment": name,
        "title": f"The experiment {name}",
        "repeats": 1,
        "oversubscribe": True,
        "datasets": {"none": {"kind": "files"}},
        "workloads": workloads,
        "variants": {"plain": {"cores_per_process": 1}},
        "configurations": [{"strategy": "processes", "layouts": ["1x1"]}],
    } | changes


def prepare(experiment: Experiment, folder: Path) -> None:
    """Prepare the first dataset of an experiment in a new folder."""
    (name, settings), *_ = experiment.datasets.items()
    folder.mkdir()
    inputs = derive("preparation_inputs", settings, folder)
    preparation = derive("preparation", settings)
    kind_of(settings).load("arrays").prepare(name, preparation, 1, inputs, folder)


def with_marks(folder: Path) -> list[psutil.Process]:
    """Return the processes that programs of runs in a folder started, however far they went."""
    found = []
    for process in psutil.process_iter():
        try:
            steps = process.environ().get("ESCALA_STEPS", "")
            if str(folder) in steps and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def eventually(holds: Callable[[], object], seconds: float = 60) -> bool:
    """Wait until something holds, and return whether it does."""
    deadline = time.monotonic() + seconds
    while not (held := holds()) and time.monotonic() < deadline:
        time.sleep(0.1)
    return bool(held)
