"""What becomes of a run whose ranks die, hang or are asked to listen where they should not."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import psutil
import pytest

from escala.core.errors import InputError
from escala.core.files import read_json
from escala.core.hardware import available_gpus
from escala.record.plan import make_plan, resumption
from escala.record.run import measure, write_lost
from escala.runtime import mpi
from escala.strategies.base import GRADIENT
from escala.training.checkpoint import FOLDER, Checkpoint
from tests.programs import eventually
from tests.workflow.conftest import begin_with, measured

PATIENCE_SECONDS = 120
TRAINING = "epoch 1/"
# Code that every Python process begins with: rank 1 does not join the others before a file exists;
# rank 1 pauses for longer than TensorFlow waits for a heartbeat by default.
LATE = """
import time
from pathlib import Path
from escala.engines.base import Engine

begin = Engine.__init__

def late(self, plan, group):
    while group.place.process == 1 and not Path({joins!r}).exists():
        time.sleep(0.05)
    begin(self, plan, group)

Engine.__init__ = late
"""
PAUSING = """
import os, signal, time
from escala.training.checkpoint import Checkpoint

due = Checkpoint.due

def paused(self, epoch):
    rank = os.getpid()
    if epoch == 1 and self.process == 1 and os.fork() == 0:
        os.kill(rank, signal.SIGSTOP)
        time.sleep(25)
        os.kill(rank, signal.SIGCONT)
        os._exit(0)
    return due(self, epoch)

Checkpoint.due = paused
"""


def ranks_of(folder: Path) -> list[psutil.Process]:
    """Return the live rank processes of the run in `folder`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            asked = Path(process.cwd(), command[-1]) if command else folder
            if command[1:3] == ["-m", "escala.training.rank"] and folder in asked.parents:
                found.append(process)
    return found


def kill_rank(folder: Path, rank: int) -> None:
    names = {"OMPI_COMM_WORLD_RANK": str(rank), "ESCALA_PROCESS": str(rank)}
    for process in ranks_of(folder):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(process.environ().get(name) == value for name, value in names.items()):
                process.kill()


@dataclass
class Killed:
    """A run of two ranks, which of them is killed, and the addresses its processes listen on."""

    folder: Path
    rank: int
    dense_exchange: str
    reason: str = ""
    listening: dict[str, set[str]] = field(
        default_factory=lambda: {"launcher": set(), "mpirun": set(), "ranks": set()}
    )

    def look(self) -> None:
        launcher = psutil.Process()
        found = [launcher, *launcher.children(recursive=True)]
        ranks = ranks_of(self.folder)  # Also those that have begun since.
        for process in found:
            role = "launcher" if process == launcher else "ranks" if process in ranks else "mpirun"
            with contextlib.suppress(psutil.NoSuchProcess):
                for connection in process.net_connections(kind="inet"):
                    if connection.status in (psutil.CONN_LISTEN, psutil.CONN_NONE):
                        self.listening[role].add(connection.laddr.ip)


@pytest.fixture(
    scope="module",
    # Under MPI the ranks wait for each other in memory.
    params=[
        pytest.param(("horovod-gloo", "allreduce"), id="horovod-gloo"),
        pytest.param(("horovod-mpi", "shared-memory"), id="horovod-mpi", marks=pytest.mark.sweep),
    ],
)
def killed(request, small_split, request_for, tmp_path_factory) -> Killed:
    """A run whose timeline is captured, a rank of which is killed while it trains.

    Rank 1 does not join the other before that one is seen to listen, which Gloo's ranks do only
    while they connect; those of MPI do not listen at all.
    """
    (strategy, dense_exchange), folder = request.param, tmp_path_factory.mktemp("killed")
    joins = folder / "joins"
    run = Killed(folder, 0 if strategy == "horovod-gloo" else 1, dense_exchange)

    def look() -> bool:
        run.look()
        if strategy == "horovod-mpi" or run.listening["ranks"]:
            joins.touch()
        events = folder / "ranks" / "timeline.raw"
        exchanged = events.exists() and "ALLREDUCE" in events.read_text(errors="replace")
        log = folder / "ranks" / f"rank{run.rank}.log"
        return exchanged and log.exists() and TRAINING in log.read_text()

    def watch() -> None:
        eventually(look, PATIENCE_SECONDS)
        kill_rank(folder, run.rank)

    killer = threading.Thread(target=watch)
    killer.start()
    settings = {"epochs": 100_000, "save_model": True, "instrument": "timeline"}
    asked = request_for(strategy, "1x2", knobs={"dense_exchange": dense_exchange}, **settings)
    with pytest.MonkeyPatch.context() as patch:
        # No forks: what listens are children of this process.
        patch.delenv("PYTHONPATH")
        begin_with(LATE.format(joins=str(joins)), folder / "site", patch)
        limit = PATIENCE_SECONDS * 2
        run.reason = measured(asked, small_split, folder, "failed", limit)["reason"]
    killer.join()
    return run


def test_a_killed_rank_ends_the_run(killed):
    assert f"rank {killed.rank} was ended by signal 9" in killed.reason
    assert "epoch" in killed.reason, "the rank's last lines are part of the reason"
    assert not ranks_of(killed.folder)
    assert not (killed.folder / "model.npz").exists()
    logs = {path.name for path in (killed.folder / "ranks").glob("*.log")}
    assert logs == {"launcher.log", "rank0.log", "rank1.log"}


def test_a_timeline_of_a_killed_run_is_valid_json(killed):
    events = read_json(killed.folder / "timeline.json")
    assert any("ALLREDUCE" in str(event.get("name")) for event in events)
    # Gradients that ranks add in memory are no operations of Horovod.
    exchanged = GRADIENT in (killed.folder / "timeline.json").read_text()
    assert exchanged == (killed.dense_exchange == "allreduce")
    assert read_json(killed.folder / "trace.json")["traceEvents"]


def test_ports_of_a_run_listen_on_loopback(killed):
    """All but mpirun's own: Open MPI 4.1 binds its out-of-band port to every address."""
    listening = killed.listening
    assert listening["launcher"] | listening["ranks"] <= {"127.0.0.1", "::1"}
    if not killed.rank:
        assert listening["launcher"] == {"127.0.0.1"}, "Gloo's rendezvous was seen"
        assert listening["ranks"] == {"127.0.0.1"}, "Gloo's own ports were seen"
        assert not listening["mpirun"]


@pytest.mark.sweep
def test_a_rank_that_is_silent_for_some_time_is_not_lost(
    small_split, request_for, tmp_path, imported
):
    """On a slow link a heartbeat waits behind gradients; here the rank itself pauses."""
    request = request_for("multiworker-mirrored", "1x2", epochs=2)
    imported(PAUSING)
    run = measured(request, small_split, tmp_path, limit=PATIENCE_SECONDS)
    assert run["epochs"][1]["epoch_wall_seconds"] > 20, "rank 0 waited"


def test_under_other_settings_a_run_begins_anew(small_split, request_for, tmp_path):
    request, description = request_for("single", "1x1"), read_json(small_split / "dataset.json")

    def resumed() -> dict:
        return resumption(make_plan(request, description, small_split), description, tmp_path)

    (tmp_path / "steps.csv").touch()
    kept = Checkpoint(tmp_path / FOLDER, 2, resumed()["digest"], process=0)
    kept.keep(2, [], [], {"epochs": []}, tmp_path / "steps.csv", lambda: None)
    assert resumed()["resume_after"] == 2
    request["training"]["epochs"] += 1
    assert resumed()["resume_after"] == 0
    assert not (tmp_path / FOLDER).exists()


def test_too_many_processes_are_refused_or_recorded_and_stopped_after_too_long(
    small_split, request_for, tmp_path
):
    layout = f"1x{len(psutil.Process().cpu_affinity()) + 1}"
    request = request_for("horovod-mpi", layout, epochs=100_000)
    with pytest.raises(InputError, match="oversubscribe: true"):
        measure(request | {"oversubscribe": False}, small_split, tmp_path / "no" / "run.json", 300)
    assert not (tmp_path / "no" / "run.json").exists()
    run = measured(request, small_split, tmp_path / "yes", "timeout", limit=2)
    assert "2 seconds" in run["reason"] and run["ranks"]["oversubscribed"] is True
    assert not ranks_of(tmp_path)


def test_damaged_arrays_are_refused(small_split, request_for, tmp_path):
    split = tmp_path / "split4"
    shutil.copytree(small_split, split)
    labels = np.load(split / "train_labels.npy")
    np.save(split / "train_labels.npy", np.zeros_like(labels))
    last = [tmp_path / "run" / name for name in ("run.json", "model.npz", "ranks/rank0.log")]
    (tmp_path / "run" / "ranks").mkdir(parents=True)
    for path in last:
        path.touch()
    with pytest.raises(InputError, match=r"train_labels.npy.*is damaged.*remove .*split4"):
        measure(request_for("single", "1x1"), split, tmp_path / "run" / "run.json", 300)
    assert all(path.exists() for path in last), "what was measured before is kept"
    request = request_for("horovod-mpi", "1x64") | {"oversubscribe": False}
    with pytest.raises(InputError, match="needs 64 cores"):
        measure(request, small_split, tmp_path / "run" / "run.json", 300)
    assert all(path.exists() for path in last)


@pytest.mark.parametrize(
    ("strategy", "layout", "knobs", "reason"),
    [
        ("multiworker-mirrored", "1x2", {"communication": "nccl"}, "nccl takes GPUs, and there"),
        ("single", "1x1", {"device": "gpu"}, "device: gpu needs a GPU"),
        ("horovod-mpi", "1x2", {}, "no-such-mpirun"),
    ],
)
def test_without_a_gpu_or_a_launcher_that_it_takes_a_run_is_unavailable(
    small_split, request_for, tmp_path, monkeypatch, strategy, layout, knobs, reason
):
    if knobs and available_gpus():
        pytest.skip("this machine has a GPU")
    monkeypatch.setattr(mpi, "MPIRUN_PROGRAM", "no-such-mpirun")
    request = request_for(strategy, layout, knobs=knobs)
    told = measured(request, small_split, tmp_path, "unavailable", PATIENCE_SECONDS)["reason"]
    assert reason in told and "Traceback" not in told and "last lines" not in told
    assert not ranks_of(tmp_path)


#: Code that every Python process begins with: a rank goes into a control group and fills it.
FILLING = """
import os, sys
if sys.orig_argv[1:3] == ["-m", "escala.training.rank"]:
    open({group!r} + "/cgroup.procs", "w").write(str(os.getpid()))
    filled = bytearray(2**29)
"""


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group that allows 64 MiB of memory."""
    root = Path("/sys/fs/cgroup")
    old = (root / "memory").is_dir()
    group = (root / "memory" if old else root) / f"escala-test-{os.getpid()}"
    try:
        group.mkdir()
        limit = group / ("memory.limit_in_bytes" if old else "memory.max")
        limit.write_text(str(2**26))
    except OSError as error:
        group.is_dir() and group.rmdir()
        pytest.skip(
            f"no control group can be made: {error}; run as root on a machine that allows it"
        )
    yield group
    group.rmdir()


def test_a_rank_that_the_kernel_ends_for_memory_ran_out_of_memory(
    small_split, request_for, tmp_path, imported, small_group
):
    imported(FILLING.format(group=str(small_group)))
    request = request_for("single", "1x1", workload="majority")
    told = measured(request, small_split, tmp_path, "out-of-memory", PATIENCE_SECONDS)["reason"]
    assert told.startswith("out of memory: the kernel ended rank 0 (signal 9)")
    assert "Remedy: a smaller batch" in told


def test_a_reason_begins_with_what_open_mpi_began_with(
    small_split, request_for, tmp_path, monkeypatch
):
    parameters = tmp_path / ".openmpi" / "mca-params.conf"
    parameters.parent.mkdir()
    parameters.write_text("oob_tcp_if_exclude = eth0\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    run = measured(request_for("horovod-mpi", "1x2"), small_split, tmp_path, "failed")
    assert "it said: Both TCP interface include and exclude lists were spec" in run["reason"]
    assert "Open MPI also reads ~/.openmpi/mca-params.conf" in run["reason"]
    assert "---" not in run["reason"]


def test_a_full_temporary_folder_is_named(
    small_split, request_for, tmp_path, small_disk, monkeypatch
):
    with contextlib.suppress(OSError):
        (small_disk / "filled").write_bytes(bytes(2**21))
    monkeypatch.setenv("TMPDIR", str(small_disk))
    run = measured(request_for("horovod-mpi", "1x2"), small_split, tmp_path, "failed")
    assert "OUT-OF-RESOURCE" in run["reason"]
    assert f"{small_disk} is full (0 bytes free): make space there" in run["reason"]


def test_a_run_whose_job_was_lost_is_a_failed_run(small_split, request_for, tmp_path):
    request, log = request_for("horovod-mpi", "2x1"), tmp_path / "ranks" / "rank1.log"
    log.parent.mkdir()
    log.write_text("so far")
    (log.parent / "model.npz").touch()
    (tmp_path / "predictions.npy").touch()
    write_lost(
        request, small_split, tmp_path / "run.json", "timeout", "its job ended without a result"
    )
    run = read_json(tmp_path / "run.json")
    assert (run["status"], run["reason"]) == ("timeout", "its job ended without a result")
    assert (run["layout"], run["ranks"]["obtained"], run["epochs"]) == ("2x1", None, [])
    assert log.read_text() == "so far"
    assert not [*tmp_path.rglob("model.*"), *tmp_path.rglob("*.npy")]
