"""What becomes of a run whose ranks die, hang or are asked to listen where they should not."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from escala.analysis.traces.horovod import diagnose, lines
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
# Code that every Python process begins with: rank 1 does not join the other before a file exists.
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


def test_a_killed_rank_ends_the_run_whose_ports_listen_on_loopback(
    small_split, request_for, tmp_path, monkeypatch
):
    """Rank 1 does not join the other before that one is seen to listen, as only then Gloo does."""
    folder, joins = tmp_path / "run", tmp_path / "joins"
    listening: dict[str, set[str]] = {"launcher": set(), "ranks": set()}

    def look() -> bool:
        launcher, ranks = psutil.Process(), ranks_of(folder)
        for process in (launcher, *launcher.children(recursive=True)):
            role = "launcher" if process == launcher else "ranks"
            with contextlib.suppress(psutil.NoSuchProcess):
                for connection in process.net_connections(kind="inet"):
                    if connection.status in (psutil.CONN_LISTEN, psutil.CONN_NONE):
                        listening[role].add(connection.laddr.ip)
        if listening["ranks"]:
            joins.touch()
        events, log = folder / "ranks" / "timeline.raw", folder / "ranks" / "rank0.log"
        exchanged = events.exists() and "ALLREDUCE" in events.read_text(errors="replace")
        begun = exchanged and log.exists() and "epoch 1/" in log.read_text()
        for process in ranks if begun else ():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.environ().get("ESCALA_PROCESS") == "0" and process.kill()
        return begun

    killer = threading.Thread(target=eventually, args=(look, PATIENCE_SECONDS))
    killer.start()
    settings = {"epochs": 100_000, "save_model": True, "instrument": "timeline"}
    # No forks: what listens are children of this process.
    monkeypatch.delenv("PYTHONPATH")
    begin_with(LATE.format(joins=str(joins)), tmp_path / "site", monkeypatch)
    asked = request_for("horovod-gloo", "1x2", **settings)
    reason = measured(asked, small_split, folder, "failed", PATIENCE_SECONDS * 2)["reason"]
    killer.join()
    assert "rank 0 was ended by signal 9" in reason
    assert "epoch" in reason, "the rank's last lines are part of the reason"
    assert not ranks_of(folder) and not (folder / "model.npz").exists()
    logs = {path.name for path in (folder / "ranks").glob("*.log")}
    assert logs == {"launcher.log", "rank0.log", "rank1.log"}
    # What it captured is valid JSON.
    events = read_json(folder / "timeline.json")
    assert any("ALLREDUCE" in str(event.get("name")) for event in events)
    assert GRADIENT in (folder / "timeline.json").read_text()
    assert read_json(folder / "trace.json")["traceEvents"]
    # It is diagnosed, also where its end was lost.
    for cut in (0, 20):
        (timeline := tmp_path / "timeline.json").write_bytes(
            (folder / "timeline.json").read_bytes()[: -cut or None]
        )
        text = "\n".join(lines(diagnose(timeline)))
        assert re.match(r"\d+ steps after the first; a step takes ", text), text
        assert ("Horovod did not end the file" in text) == bool(cut)
    # Gloo's rendezvous was seen, and its own ports.
    assert listening == {"launcher": {"127.0.0.1"}, "ranks": {"127.0.0.1"}}


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


@pytest.mark.parametrize(
    ("strategy", "layout", "knobs", "reason"),
    [
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
