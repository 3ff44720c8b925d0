"""What becomes of a run whose ranks die, hang or are asked to listen where they should not."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from escala.errors import InputError
from escala.files import read_json
from escala.measure import steps
from escala.measure.run import lost, measure
from escala.parallel import launch
from tests.workflow.conftest import SIMULATED, command, experiment_of

PATIENCE_SECONDS = 120
TRAINING = "epoch 1/"
BOTH = pytest.mark.parametrize("strategy", ["horovod-mpi", "horovod-gloo"])


def ranks_of(folder: Path) -> list[psutil.Process]:
    """Return the live rank processes of the run in `folder`."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            command = process.cmdline()
            asked = Path(process.cwd(), command[-1]) if command else folder
            if command[1:3] == ["-m", "escala.parallel.rank"] and folder in asked.parents:
                found.append(process)
    return found


def when(ready: Callable[[], bool], act: Callable[[], None]) -> threading.Thread:
    """Do `act` in the background as soon as `ready`."""

    def watch() -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not ready() and time.monotonic() < deadline:
            time.sleep(0.05)
        act()

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def says(folder: Path, rank: int, words: str) -> Callable[[], bool]:
    """Return whether a rank's log holds `words`, asked when called."""
    log = folder / "ranks" / f"rank{rank}.log"
    return lambda: log.exists() and words in log.read_text()


def kill_rank(folder: Path, rank: int) -> None:
    names = {"OMPI_COMM_WORLD_RANK": str(rank), "ESCALA_PROCESS": str(rank)}
    for process in ranks_of(folder):
        if any(process.environ().get(name) == value for name, value in names.items()):
            process.kill()


@BOTH
def test_a_killed_rank_ends_the_run(small_split, request_for, tmp_path, strategy):
    request = request_for(strategy, "1x2", epochs=100_000, save_model=True)
    killer = when(says(tmp_path, 1, TRAINING), lambda: kill_rank(tmp_path, 1))
    outcome = measure(request, small_split, tmp_path / "run.json", PATIENCE_SECONDS * 2)
    killer.join()
    assert outcome.status == "failed"
    assert "rank 1 was ended by signal 9" in outcome.reason
    assert "epoch" in outcome.reason, "the rank's last lines are part of the reason"
    assert not ranks_of(tmp_path)
    assert read_json(tmp_path / "run.json")["reason"] == outcome.reason
    assert not (tmp_path / "model.keras").exists()
    assert sorted(p.name for p in (tmp_path / "ranks").glob("*.log")) == [
        "launcher.log",
        "rank0.log",
        "rank1.log",
    ]


@BOTH
def test_a_timeline_of_a_killed_run_is_valid_json(small_split, request_for, tmp_path, strategy):
    request = request_for(strategy, "1x2", epochs=100_000, instrument="timeline")
    killer = when(says(tmp_path, 0, TRAINING), lambda: kill_rank(tmp_path, 0))
    outcome = measure(request, small_split, tmp_path / "run.json", PATIENCE_SECONDS * 2)
    killer.join()
    assert outcome.status == "failed"
    events = read_json(tmp_path / "timeline.json")
    assert any("ALLREDUCE" in str(event.get("name")) for event in events)
    assert read_json(tmp_path / "trace.json")["traceEvents"]


@pytest.mark.parametrize(
    ("strategy", "layout"),
    [
        ("single", "1x1"),
        ("horovod-mpi", "1x2"),
        ("hybrid", "1x2"),
        ("multiworker-mirrored", "1x2"),
    ],
)
def test_a_run_that_was_ended_goes_on_from_its_checkpoint_to_the_same_losses(
    small_split, request_for, tmp_path, strategy, layout
):
    epochs, folder = 12, tmp_path / "broken"
    rate = {"value": 0.0001, "reference_batch": 32, "rule": "constant"}
    request = request_for(
        strategy, layout, epochs=epochs, checkpoint_epochs=2, learning_rate=rate, save_model=True
    )
    killer = when(says(folder, 0, "epoch 5/"), lambda: kill_rank(folder, 0))
    outcome = measure(request, small_split, folder / "run.json", PATIENCE_SECONDS)
    killer.join()
    assert outcome.status == "failed"
    [after] = re.findall(
        r"repeated, it goes on after epoch (\d+)", read_json(folder / "run.json")["reason"]
    )
    assert int(after) >= 4

    outcome = measure(request, small_split, folder / "run.json", PATIENCE_SECONDS)
    assert outcome.status == "ok", outcome.reason
    resumed = read_json(folder / "run.json")
    assert resumed["training"]["resumed_after"] == [int(after)]
    assert [epoch["epoch"] for epoch in resumed["epochs"]] == list(range(1, epochs + 1))
    assert not (folder / "checkpoint").exists()

    # The shares of a hybrid are measured anew in another run.
    request = request if strategy != "hybrid" else request | {"strategy": "horovod-mpi"}
    outcome = measure(request, small_split, tmp_path / "whole" / "run.json", PATIENCE_SECONDS)
    assert outcome.status == "ok", outcome.reason
    ranks = resumed["ranks"]["asked"]
    one, two = (
        steps.loss_per_step(steps.read(path / "ranks", ranks))["loss"]
        for path in (tmp_path / "whole", folder)
    )
    assert len(one) == len(two)
    np.testing.assert_allclose(two, one, rtol=1e-6 if strategy != "hybrid" else 3e-3)


def test_a_checkpoint_of_other_settings_is_not_gone_on_from(small_split, request_for, tmp_path):
    request = request_for("single", "1x1", epochs=100_000, checkpoint_epochs=1)
    killer = when(says(tmp_path, 0, "epoch 3/"), lambda: kill_rank(tmp_path, 0))
    measure(request, small_split, tmp_path / "run.json", PATIENCE_SECONDS)
    killer.join()
    assert "goes on after epoch" in read_json(tmp_path / "run.json")["reason"]
    request = request_for("single", "1x1", epochs=2, checkpoint_epochs=1)
    outcome = measure(request, small_split, tmp_path / "run.json", PATIENCE_SECONDS)
    assert outcome.status == "ok", outcome.reason
    result = read_json(tmp_path / "run.json")
    assert result["training"]["resumed_after"] == []
    # Each epoch holds its checkpoint, and the training steps do not.
    besides = sum(e["epoch_wall_seconds"] - e["train_seconds"] for e in result["epochs"])
    assert besides >= result["seconds"]["checkpoint"] > 0


def test_a_damaged_checkpoint_does_not_keep_a_run_from_being_repeated(
    small_split, request_for, tmp_path
):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "latest.json").touch()
    request = request_for("single", "1x1", epochs=2, checkpoint_epochs=1)
    outcome = measure(request, small_split, tmp_path / "run.json", PATIENCE_SECONDS)
    assert outcome.status == "ok", outcome.reason
    assert read_json(tmp_path / "run.json")["training"]["resumed_after"] == []


def test_ranks_do_not_go_on_where_snakemake_is_killed(tmp_path):
    endless = {"virus-cnn": {"epochs": 100_000, "save_model": False}}
    experiment = experiment_of("killed", SIMULATED, workloads=endless)
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(experiment))
    folder = Path("results/killed/runs/small/virus-cnn/horovod-mpi/1x2/tuned/native/rep1")
    with open(tmp_path / "log", "w") as log:
        snakemake = subprocess.Popen(
            command(tmp_path, str(folder / "run.json")), cwd=tmp_path, stdout=log, stderr=log
        )
    when(says(tmp_path / folder, 1, TRAINING), snakemake.kill).join()
    assert snakemake.wait() == -signal.SIGKILL, (tmp_path / "log").read_text()
    deadline = time.monotonic() + 10
    while ranks_of(tmp_path) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not ranks_of(tmp_path)


def test_a_run_that_takes_too_long_is_stopped(small_split, request_for, tmp_path):
    request = request_for("horovod-mpi", "1x2", epochs=100_000)
    outcome = measure(request, small_split, tmp_path / "run.json", time_limit_seconds=3)
    assert outcome.status == "timeout"
    assert "3 seconds" in outcome.reason
    assert not ranks_of(tmp_path)


def test_too_many_processes_are_refused_or_recorded(small_split, request_for, tmp_path):
    layout = f"1x{len(psutil.Process().cpu_affinity()) + 1}"
    request = request_for("horovod-mpi", layout)
    with pytest.raises(InputError, match="oversubscribe: true"):
        measure(request | {"oversubscribe": False}, small_split, tmp_path / "no" / "run.json", 300)
    assert not (tmp_path / "no" / "run.json").exists()
    outcome = measure(request, small_split, tmp_path / "yes" / "run.json", 300)
    assert outcome.status == "ok", outcome.reason
    assert read_json(tmp_path / "yes" / "run.json")["ranks"]["oversubscribed"] is True


def test_damaged_arrays_are_refused(small_split, request_for, tmp_path):
    split = tmp_path / "split4"
    shutil.copytree(small_split, split)
    labels = np.load(split / "train_labels.npy")
    np.save(split / "train_labels.npy", np.zeros_like(labels))
    with pytest.raises(InputError, match=r"train_labels.npy.*is damaged.*remove .*split4"):
        measure(request_for("single", "1x1"), split, tmp_path / "run" / "run.json", 300)


def test_what_takes_gpus_is_unavailable_where_there_are_none(small_split, request_for, tmp_path):
    import tensorflow as tf

    if tf.config.list_physical_devices("GPU"):
        pytest.skip("this machine has a GPU")
    request = request_for("multiworker-mirrored", "1x2", knobs={"communication": "nccl"})
    outcome = measure(request, small_split, tmp_path / "run.json", PATIENCE_SECONDS)
    assert outcome.status == "unavailable"
    assert "takes GPUs, and there are none" in outcome.reason
    assert not ranks_of(tmp_path)


def test_a_launcher_that_is_missing_makes_the_run_unavailable(
    small_split, request_for, tmp_path, monkeypatch
):
    monkeypatch.setattr(launch, "MPIRUN_PROGRAM", "no-such-mpirun")
    outcome = measure(request_for("horovod-mpi", "1x2"), small_split, tmp_path / "run.json", 300)
    assert outcome.status == "unavailable" and "no-such-mpirun" in outcome.reason
    assert read_json(tmp_path / "run.json")["status"] == "unavailable"


def test_a_run_whose_job_was_lost_is_a_failed_run(small_split, request_for, tmp_path):
    request, log = request_for("horovod-mpi", "2x1"), tmp_path / "ranks" / "rank1.log"
    log.parent.mkdir()
    log.write_text("so far")
    (log.parent / "model.keras").touch()
    (tmp_path / "predictions.npy").touch()
    lost(request, small_split, tmp_path / "run.json", "timeout", "its job ended without a result")
    run = read_json(tmp_path / "run.json")
    assert (run["status"], run["reason"]) == ("timeout", "its job ended without a result")
    assert (run["layout"], run["ranks"]["obtained"], run["epochs"]) == ("2x1", None, [])
    assert log.read_text() == "so far"
    assert not [*tmp_path.rglob("model.*"), *tmp_path.rglob("*.npy")]


@BOTH
def test_ports_of_a_run_listen_on_loopback(small_split, request_for, tmp_path, strategy):
    """All but mpirun's own: Open MPI 4.1 binds its out-of-band port to every address."""
    listening: dict[str, set[str]] = {"launcher": set(), "mpirun": set(), "ranks": set()}

    def training_after_a_look() -> bool:
        """Gloo listens only while its ranks connect: look all the time until they train."""
        ranks, launcher = ranks_of(tmp_path), psutil.Process()
        for process in [launcher, *launcher.children(recursive=True)]:
            role = "launcher" if process == launcher else "ranks" if process in ranks else "mpirun"
            with contextlib.suppress(psutil.NoSuchProcess):
                for connection in process.net_connections(kind="inet"):
                    if connection.status in (psutil.CONN_LISTEN, psutil.CONN_NONE):
                        listening[role].add(connection.laddr.ip)
        return says(tmp_path, 1, TRAINING)()

    def kill() -> None:
        for process in ranks_of(tmp_path):
            process.kill()

    watcher = when(training_after_a_look, kill)
    request = request_for(strategy, "1x2", epochs=100_000)
    measure(request, small_split, tmp_path / "run.json", PATIENCE_SECONDS * 2)
    watcher.join()
    print(strategy, listening)
    loopback = {"127.0.0.1", "::1"}
    assert listening["launcher"] | listening["ranks"] <= loopback
    if strategy == "horovod-gloo":
        assert listening["launcher"] == {"127.0.0.1"}, "the rendezvous was seen"
        assert listening["ranks"] == {"127.0.0.1"}, "Gloo's own ports were seen"
        assert not listening["mpirun"]
