"""Runs over two nodes, through sbatch: what they measure, and how they end in faults."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from escala.analysis import attribution
from escala.core.files import read_json
from escala.experiment import Experiment, Run, load
from escala.lab import network
from escala.record import collect
from tests.cluster.conftest import output
from tests.conftest import ROOT
from tests.programs import eventually, experiment_on
from tests.workflow.conftest import SIMULATED, experiment_of, mean_losses

pytestmark = pytest.mark.cluster

SYNCHRONOUS = ["horovod-mpi", "horovod-gloo", "multiworker-mirrored", "hybrid"]
ACROSS = [*SYNCHRONOUS, "parameter-server"]
RATE = 100  # Mbit/s
STEPS = 7
# As in tests/workflow/test_training.py, and why: docs/decisions/training.md
TOLERANCE = 3e-3


def experiment(**changes: object) -> dict:
    """Return an experiment of one process and two nodes, on sequences so short that it is quick."""
    rate = {"value": 0.0001, "reference_batch": 32, "rule": "constant"}
    training = {"epochs": 1, "save_model": False, "learning_rate": rate}
    training["batch"] = {"rows": 32, "per": "global"}
    return experiment_of(
        "across",
        SIMULATED | {"records": dict.fromkeys(SIMULATED["records"], 60)},
        dataset={"oversample": {"method": "none"}, "length": 100},
        workloads={"virus-cnn": training | changes},
        configurations=[
            {"strategy": "single", "layouts": ["1x1"]},
            *({"strategy": strategy, "layouts": ["2x1"]} for strategy in ACROSS),
        ],
        networks={"slow": {"rate": f"{RATE}mbit", "transport": "tcp"}},
        resources={"enabled": True, "seconds": 0.1},
        # As many as there are in the epoch, so that a run with clocks ends with the same weights.
        clocks={"enabled": True, "repeats": 1, "steps": STEPS},
    )


#: Of each of two ranks: it takes 600 MB, and never ends.
ENDLESS = "held = bytearray(6 * 10**8)\nprint('epoch 1', flush=True)\nimport time\ntime.sleep(9999)"


def snakemake_command(folder: Path, *arguments: str) -> list[str]:
    command = [sys.executable, "-m", "snakemake", *arguments]
    command += ["--snakefile", ROOT / "Snakefile", "--directory", folder]
    command += ["--configfile", folder / "experiment.yaml"]
    return list(map(str, command))


def snakemake(folder: Path, *arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        snakemake_command(folder, *arguments),
        capture_output=True,
        text=True,
        timeout=500,
        cwd=folder,
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder in which the data of all experiments of this file have been prepared."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment()))
    found = load(folder / "experiment.yaml")
    done = snakemake(folder, *found.dataset_files(), "--cores", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def prepared(data: Path, folder: Path, settings: dict) -> Experiment:
    """Write an experiment into a folder, alongside a copy of the data."""
    shutil.copytree(data, folder, dirs_exist_ok=True)
    (folder / "experiment.yaml").write_text(yaml.safe_dump(settings))
    return load(folder / "experiment.yaml")


@pytest.fixture
def endless(tmp_path) -> Run:
    """The run of both nodes of an experiment on a program that never ends, its data prepared."""
    (tmp_path / "code").mkdir()
    command = [sys.executable, "-c", ENDLESS]
    program = {"command": command, "directory": str(tmp_path / "code"), "files": []}
    settings = experiment_on(
        "endless",
        {"waits": program},
        configurations=[{"strategy": "torch-ddp", "layouts": ["2x1"]}],
        references=[{"strategy": "torch-ddp", "layout": "2x1"}],
    )
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(settings))
    found = load(tmp_path / "experiment.yaml")
    done = snakemake(tmp_path, *found.dataset_files(), "--cores", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = found.runs
    return run


PROFILE = ("--profile", str(ROOT / "profiles" / "lab"))


JOB = """
import json, sys
from pathlib import Path
from escala import lab
from escala.record.run import measure
from escala.runtime.layout import with_layout
for request, data, output, limit in json.loads(sys.argv[1]):
    measure(with_layout(request), Path(data), Path(output), limit, links=lab.links())
"""
SBATCH = ["sbatch", "--parsable", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--exclusive"]


def in_a_job(folder: Path, *runs: tuple[dict, Path, Path, float]) -> str:
    """Start runs, one after the other, in a job of two nodes, and return its number."""
    argument = json.dumps(
        [[request, str(data), str(output), limit] for request, data, output, limit in runs]
    )
    program = f"{sys.executable} -c '{JOB}' '{argument}'"
    submitted = subprocess.run(
        [*SBATCH, f"--output={folder}/job.out", f"--wrap=cd {ROOT} && exec {program}"],
        env=os.environ | {"PYTHONPATH": f"{os.environ['PYTHONPATH']}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    return submitted.stdout.strip()


def is_over(job: str) -> bool:
    return not output("squeue", "--noheader", f"--jobs={job}", "--states=PD,R,CG").strip()


@pytest.fixture(scope="module")
def series(put_up, data, tmp_path_factory) -> Iterator[tuple[str, dict[str, Path]]]:
    """The number of a job that makes runs one after the other, and the folders of these.

    One of them is sampled, one has clocks, one is started by `mpirun`, and one exchanges by UCX:
    what is tested of these goes together.
    """
    put_up()
    folder = tmp_path_factory.mktemp("series")
    found = prepared(data, folder, experiment())
    runs = {run.strategy: run for run in found.runs if run.strategy != "horovod-mpi"}
    [runs["hybrid"]] = [run for run in found.probe_runs("resources") if run.strategy == "hybrid"]
    [runs["clocks"]] = [run for run in found.probe_runs("clocks") if run.strategy == "horovod-mpi"]
    [runs["ucx"]] = [run for run in found.runs if run.strategy == "horovod-mpi"]
    requests = {name: found.request(run) for name, run in runs.items()}
    # Without RDMA, UCX exchanges over TCP.
    requests["ucx"]["link"] |= {"interface": "eth0", "transport": "ucx"}
    requests["clocks"]["launcher"] = "mpirun"
    split = folder / found.split_folder("small", 4)
    folders = {name: folder / run.folder for name, run in runs.items()}
    calls = [(requests[name], split, folders[name] / "run.json", 300) for name in runs]
    job = in_a_job(folder, *calls)
    yield job, folders
    subprocess.run(["scancel", job], check=False)


@pytest.fixture(scope="module")
def across(series, data, tmp_path_factory) -> dict[str, Path]:
    """The folders of one process and of two nodes under each strategy, with the same batch.

    The workflow submits that of `horovod-mpi`.
    """
    job, folders = series
    assert eventually(lambda: is_over(job), seconds=500), folders
    folder = tmp_path_factory.mktemp("across")
    [run] = [
        run for run in prepared(data, folder, experiment()).runs if run.strategy == "horovod-mpi"
    ]
    done = snakemake(folder, run.file, *PROFILE)
    assert done.returncode == 0, done.stdout + done.stderr
    return folders | {run.strategy: folder / run.folder}


@pytest.mark.sweep
@pytest.mark.parametrize("strategy", ACROSS)
def test_two_nodes_are_obtained_and_train_as_one_process(across, strategy):
    """On every row; a parameter server is asynchronous, and its losses are nobody else's."""
    single, run = (read_json(across[name] / "run.json") for name in ("single", strategy))
    assert run["status"] == "ok", run["reason"]
    ranks, link = run["ranks"], run["link"]
    assert ranks["obtained"] == ranks["asked"] == 2 and ranks["hosts"] == ["n1", "n2"]
    assert (ranks["interface"], ranks["launcher"]) == ("eth0", "srun")
    # A busy machine carries less, never more.
    assert link["rate"] == f"{RATE}mbit" and RATE / 3 < link["mbit_per_second"] < 1.1 * RATE
    assert link["latency_ms"] > 0
    rows = [[epoch["rows"] for epoch in each["epochs"]] for each in (run, single)]
    assert rows[0] == rows[1] and run["evaluation"]["rows"] == single["evaluation"]["rows"]
    if strategy in SYNCHRONOUS:
        steps = [
            collect.read_steps(across[name] / "ranks", number)
            for name, number in (("single", 1), (strategy, 2))
        ]
        np.testing.assert_allclose(*map(mean_losses, steps), rtol=TOLERANCE)
        one, two = (each.groupby(["epoch", "step"])["rows"].sum() for each in steps)
        assert one.tolist() == two.tolist()
    # On a busy machine one of a hybrid may be so slow that it is given no rows.
    assert strategy != "hybrid" or sum(ranks["fractions"]) == pytest.approx(1)


@pytest.mark.sweep
def test_ranks_exchange_by_the_transport_and_are_started_by_the_launcher_that_is_asked_for(across):
    over_tcp = {"pml": "ob1", "btl": ["tcp"], "interface": "eth0"}
    over_ucx = {"pml": "ucx", "btl": None, "interface": "eth0"}
    by = {"horovod-mpi": over_tcp, "clocks": over_tcp, "ucx": over_ucx}
    runs = {name: read_json(across[name] / "run.json") for name in by}
    for name, transport in by.items():
        run = runs[name]
        assert (run["status"], run["ranks"]["transport"]) == ("ok", transport), run["reason"]
    assert runs["clocks"]["ranks"]["launcher"] == "mpirun"
    assert runs["clocks"]["ranks"]["hosts"] == ["n1", "n2"]
    assert runs["clocks"]["weights_sha256"] == runs["horovod-mpi"]["weights_sha256"]


@pytest.mark.sweep
def test_what_each_node_used_is_sampled_and_a_slow_link_shows_as_transfer(across):
    run = read_json(across["hybrid"] / "run.json")
    assert (run["instrument"], run["layout"]) == ("resources", "2x1")
    assert [process["rank"] for process in run["resources"]] == [0, 1]
    gradients = 4 * run["training"]["parameters"] * sum(e["steps"] for e in run["epochs"])
    for process in run["resources"]:
        assert process["samples"] > 1 and process["rss_bytes_max"] > 2**27
        # Each of two ranks sends the gradients of a step once, but for what is not sampled: on a
        # busy machine that may be most of it.
        assert 0.05 * gradients < process["sent_bytes"] < 1.5 * gradients
    clocks = read_json(across["clocks"] / "run.json")
    on_the_wire = 32 * clocks["training"]["parameters"] / (1e6 * RATE)
    parts = attribution.run_attribution(
        across["clocks"] / "run.json", alone=False, one_clock=clocks["ranks"]["one_clock"]
    )
    seconds = parts.pivot(index="rank", columns="part", values="seconds")
    assert (seconds["transfer"] + seconds["overlap"] > 0.8 * on_the_wire).all()


@pytest.mark.sweep
def test_a_job_needs_no_network(lab, data, tmp_path):
    """The job is what a compute node starts: Snakemake by its own interpreter, then the ranks."""
    ranks = [{"strategy": "horovod-mpi", "layouts": ["1x2"]}]
    found = prepared(data, tmp_path, experiment() | {"configurations": ranks})
    [run] = found.runs
    offline = ["unshare", "--net", "sh", "-c", 'ip link set lo up; exec "$@"', "sh"]
    call = [*offline, *snakemake_command(tmp_path, run.file, "--cores", "2")]
    done = subprocess.run(call, capture_output=True, text=True, timeout=500, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert read_json(tmp_path / run.file)["status"] == "ok"


def while_training(folder: Path, act: Callable[[], None]) -> threading.Thread:
    """Do something once rank 1 has begun to train."""

    def wait() -> None:
        log = folder / "ranks" / "rank1.log"
        if eventually(lambda: log.exists() and "epoch " in log.read_text(), seconds=300):
            act()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def ranks_of(folder: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if f"{folder}/ranks/plan.json" in (process.info["cmdline"] or [])
        and "escala.training.rank" in process.info["cmdline"]
        and process.info["cmdline"][0] != "srun"
    ]


def kill_rank(folder: Path, number: int) -> None:
    for process in ranks_of(folder):
        # One that has just been forked may be gone by now.
        with contextlib.suppress(psutil.NoSuchProcess):
            if process.environ().get("SLURM_PROCID") == str(number):
                process.kill()


@pytest.mark.sweep
def test_a_rank_killed_on_the_other_node_ends_the_run(lab, request_for, small_split, tmp_path):
    endless = request_for("horovod-mpi", "2x1", epochs=100_000)
    folder = tmp_path / "run"
    actor = while_training(folder, lambda: kill_rank(folder, 1))
    job = in_a_job(tmp_path, (endless, small_split, folder / "run.json", 400))
    assert eventually(lambda: is_over(job), seconds=400)
    actor.join()
    assert eventually(lambda: not ranks_of(folder))
    assert (folder / "run.json").exists(), (tmp_path / "job.out").read_text()
    run = read_json(folder / "run.json")
    assert run["status"] == "failed"
    assert "rank 1 was ended by signal 9" in run["reason"]


@pytest.mark.sweep
@pytest.mark.usefixtures("cold")
def test_a_run_whose_job_loses_a_node_is_named_and_has_not_failed(lab, endless, tmp_path):
    """A link is cut: SLURM takes the node for dead, and ends the job."""
    folder = tmp_path / endless.folder
    actor = while_training(folder, lambda: network.cut("n2"))
    try:
        done = snakemake(tmp_path, endless.file, *PROFILE)
    finally:
        actor.join()
        network.mend("n2")
    assert done.returncode != 0
    output = done.stdout + done.stderr
    assert f"{endless.file}: not recorded as failed" in output and "NODE_FAIL" in output
    assert not (tmp_path / endless.file).exists()
    # The rank on the node that could not be reached ends when SLURM reaches it again.
    assert eventually(lambda: not ranks_of(folder))


@pytest.mark.sweep
@pytest.mark.usefixtures("cold")
def test_a_job_that_takes_more_memory_than_it_asked_for_is_out_of_memory(lab, endless, tmp_path):
    """SLURM counts the memory of each job step: a rank has about 600 MB, and the rest about 400."""
    done = snakemake(tmp_path, endless.file, *PROFILE, "--set-resources", "run:mem_mb=450")
    assert done.returncode != 0
    result = read_json(tmp_path / endless.file)
    assert result["status"] == "out-of-memory", result["reason"]
    assert "out of memory" in result["reason"]
    assert eventually(lambda: not ranks_of(tmp_path / endless.folder))
