"""Runs over two nodes, through sbatch: what they measure, and how they end in faults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest
import yaml

from escala.files import read_json
from escala.lab import daemons, network
from escala.measure import steps
from tests.conftest import ROOT
from tests.workflow.conftest import SIMULATED, experiment_of

pytestmark = pytest.mark.cluster

ACROSS = ["horovod-mpi", "horovod-gloo", "multiworker-mirrored"]
RATE = 100  # Mbit/s
# As in tests/workflow/test_training.py, and why: docs/decisions/008-loss-tolerance.md
TOLERANCE = 3e-3


def snakemake(folder: Path, *targets: str, profile: str = "lab") -> subprocess.CompletedProcess:
    command = [Path(sys.executable).parent / "snakemake", *targets]
    command += ["--snakefile", ROOT / "Snakefile", "--directory", folder]
    command += ["--profile", ROOT / "profiles" / profile]
    command += ["--configfile", folder / "experiment.yaml"]
    return subprocess.run(
        list(map(str, command)), capture_output=True, text=True, timeout=600, cwd=folder
    )


def runs_folder(strategy: str, layout: str, net: str) -> str:
    return f"results/across/runs/small/virus-cnn/{strategy}/{layout}/tuned/{net}/rep1"


@pytest.fixture(scope="module")
def across(lab, tmp_path_factory) -> Path:
    """One process and two nodes under each strategy, with the same global batch."""
    folder = tmp_path_factory.mktemp("across")
    rate = {"value": 0.0001, "reference_batch": 32, "rule": "constant"}
    training = {"epochs": 1, "save_model": False, "learning_rate": rate}
    training["batch"] = {"rows": 32, "per": "global"}
    experiment = experiment_of(
        "across",
        SIMULATED | {"records": dict.fromkeys(SIMULATED["records"], 60)},
        dataset={"oversample": {"method": "none"}, "length": 100},
        workloads={"virus-cnn": training},
        configurations=[
            {"strategy": "single", "layouts": ["1x1"]},
            *({"strategy": strategy, "layouts": ["2x1"]} for strategy in ACROSS),
        ],
        networks={"slow": {"rate": f"{RATE}mbit"}},
        resources={"enabled": True, "seconds": 0.1},
    )
    (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment))
    targets = [runs_folder("single", "1x1", "native") + "/run.json"]
    targets += [runs_folder(strategy, "2x1", "slow") + "/run.json" for strategy in ACROSS]
    targets += [targets[1].replace("rep1", "resources")]
    done = snakemake(folder, *targets)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("strategy", ACROSS)
def test_two_nodes_are_obtained_and_their_link_is_measured(across, strategy):
    run = read_json(across / runs_folder(strategy, "2x1", "slow") / "run.json")
    assert run["status"] == "ok"
    assert run["ranks"]["obtained"] == run["ranks"]["asked"] == 2
    assert run["ranks"]["hosts"] == ["n1", "n2"]
    assert run["ranks"]["interface"] == "eth0"
    assert run["ranks"]["launcher"] == "srun"
    assert run["link"]["rate"] == f"{RATE}mbit"
    assert run["link"]["mbit_per_second"] == pytest.approx(RATE, rel=0.1)
    assert run["link"]["latency_ms"] > 0


@pytest.mark.parametrize("strategy", ACROSS)
def test_two_nodes_follow_one_process_with_the_same_batch(across, strategy):
    one, two = (
        steps.loss_per_step(steps.read(across / folder / "ranks", ranks))["loss"]
        for folder, ranks in (
            (runs_folder("single", "1x1", "native"), 1),
            (runs_folder(strategy, "2x1", "slow"), 2),
        )
    )
    np.testing.assert_allclose(two, one, rtol=TOLERANCE)


def test_what_each_node_used_is_sampled_beside_the_run(across):
    folder = runs_folder("horovod-mpi", "2x1", "slow").replace("rep1", "resources")
    run = read_json(across / folder / "run.json")
    assert [process["rank"] for process in run["resources"]] == [0, 1]
    gradients = 4 * run["training"]["parameters"] * sum(e["steps"] for e in run["epochs"])
    for process in run["resources"]:
        assert process["samples"] > 1
        assert process["rss_bytes_max"] > 2**27
        # Each of two ranks sends the gradients of a step once, but for what is not sampled.
        assert 0.3 * gradients < process["sent_bytes"] < 1.5 * gradients


SBATCH = ["sbatch", "--wait", "--nodes=2", "--ntasks=2", "--ntasks-per-node=1", "--exclusive"]
JOB = """
import json, sys
from pathlib import Path
from escala.measure.run import measure
request, data, output, limit = json.loads(sys.argv[1])
measure(request, Path(data), Path(output), limit)
"""


def while_training(folder: Path, act: Callable[[], None]) -> threading.Thread:
    """Do something once rank 1 has begun to train."""

    def wait() -> None:
        log = folder / "ranks" / "rank1.log"
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline:
            if log.exists() and "epoch " in log.read_text():
                act()
                return
            time.sleep(0.2)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def in_a_job(request: dict, split: Path, folder: Path, limit: float) -> subprocess.Popen:
    """Start a run inside an allocation of two nodes, as a job of the workflow would."""
    argument = json.dumps([request, str(split), str(folder / "run.json"), limit])
    program = f"{sys.executable} -c '{JOB}' '{argument}'"
    return subprocess.Popen(
        [*SBATCH, f"--output={folder}.out", f"--wrap=cd {ROOT} && exec {program}"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def ranks_of(folder: Path) -> list[psutil.Process]:
    return [
        process
        for process in psutil.process_iter(["cmdline"])
        if f"{folder}/ranks/request.json" in (process.info["cmdline"] or [])
        and "escala.parallel.rank" in process.info["cmdline"]
        and process.info["cmdline"][0] != "srun"
    ]


def kill_rank(folder: Path, number: int) -> None:
    for process in ranks_of(folder):
        if process.environ().get("SLURM_PROCID") == str(number):
            process.kill()


def ended(folder: Path, job: subprocess.Popen) -> dict:
    job.wait(timeout=200)
    assert not ranks_of(folder)
    assert (folder / "run.json").exists(), Path(f"{folder}.out").read_text()
    return read_json(folder / "run.json")


@pytest.fixture
def endless(request_for) -> dict:
    return request_for("horovod-mpi", "2x1", epochs=100_000)


def test_a_rank_killed_on_the_other_node_ends_the_run(lab, endless, small_split, tmp_path):
    folder = tmp_path / "run"
    killer = while_training(folder, lambda: kill_rank(folder, 1))
    run = ended(folder, in_a_job(endless, small_split, folder, 120))
    killer.join()
    assert run["status"] == "failed"
    assert "rank 1 was ended by signal 9" in run["reason"]


def test_a_link_that_is_cut_ends_the_run_with_a_reason(lab, endless, small_split, tmp_path):
    folder = tmp_path / "run"
    try:
        cutter = while_training(folder, lambda: network.cut("n2"))
        run = ended(folder, in_a_job(endless, small_split, folder, 60))
        cutter.join()
    finally:
        network.mend("n2")
    assert run["status"] in ("timeout", "failed")
    assert run["reason"]


def test_a_scheduler_that_is_restarted_disturbs_no_run(lab, request_for, small_split, tmp_path):
    folder = tmp_path / "run"
    request = request_for("horovod-gloo", "2x1", epochs=30)
    restarter = while_training(folder, daemons.restart_scheduler)
    run = ended(folder, in_a_job(request, small_split, folder, 120))
    restarter.join()
    assert run["status"] == "ok", run["reason"]


def test_a_job_that_the_scheduler_ends_is_a_failed_run(lab, tmp_path):
    experiment = experiment_of(
        "across",
        SIMULATED,
        dataset={"oversample": {"method": "none"}, "length": 100},
        workloads={"virus-cnn": {"epochs": 100_000, "save_model": False}},
        configurations=[
            {"strategy": "single", "layouts": ["1x1"]},
            {"strategy": "horovod-gloo", "layouts": ["2x1"]},
        ],
    )
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(experiment))
    folder = tmp_path / runs_folder("horovod-gloo", "2x1", "native")
    cancel = ["scancel", "--user=root"]
    canceller = while_training(folder, lambda: subprocess.run(cancel, check=True))
    done = snakemake(tmp_path, str((folder / "run.json").relative_to(tmp_path)))
    canceller.join()
    assert done.returncode != 0
    run = read_json(folder / "run.json")
    assert run["status"] == "failed"
    assert "its job ended without a result" in run["reason"]
    assert not ranks_of(folder)
