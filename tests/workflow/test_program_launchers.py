"""Programs under each strategy that starts them, as real processes of one machine."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest

from escala.core.files import read_json
from escala.engines import environments
from escala.experiment import Experiment, Run, load
from escala.record.run import measure
from tests.programs import JOINING, experiment_on, prepare

pytestmark = pytest.mark.cold

#: A script for Keras and Horovod, as its guide has it.
TRAINING = """
import sys
import numpy as np
import tensorflow as tf
import horovod.tensorflow.keras as hvd
import escala_steps
hvd.init()
rows, epochs, seed = map(int, sys.argv[1:])
tf.keras.utils.set_random_seed(seed)
x = np.random.default_rng(seed).random((256, 16), np.float32)[hvd.rank() :: hvd.size()]
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.01))
model.compile(optimizer, "mse")
first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
marks = escala_steps.keras("tensorflow.keras.callbacks")
told = model.fit(x, x[:, :1], rows, epochs, verbose=0, callbacks=[first, marks], shuffle=False)
escala_steps.score(world=hvd.size(), first=told.history["loss"][0])
"""
#: What a program with `tf.distribute` finds; the servers of others are not reached.
READING = """
import json, os
from escala_steps import begin, epoch, score
begin()
told = json.loads(os.environ["TF_CONFIG"])
epoch()
score(world=len(told["cluster"]["worker"]), index=told["task"]["index"])
"""
#: A launcher: starts as many ranks as its command says, on its own cores, and waits for them. As
#: `mpirun` does, it reads its input.
LAUNCHING = """
import os, subprocess, sys
sys.stdin.read()
ranks, node = sys.argv[1], int(sys.argv[2])
rank = '''
import os, sys, time
from escala_steps import begin, epoch, score, step
for _ in range(2):
    begin()
    held = bytearray(30 << 20)
    for _ in range(5):
        time.sleep(0.1)
        step(rows=16)
    epoch()
score(cores=len(os.sched_getaffinity(0)), threads=int(os.environ["OMP_NUM_THREADS"]))
'''
started = [subprocess.Popen([sys.executable, "-c", rank]) for _ in range(int(ranks))]
sys.exit(max(process.wait() for process in started))
"""
PROGRAMS = {
    "joining": (JOINING, "python joining.py"),
    "training": (TRAINING, "python training.py {rows_of_rank} {epochs} {seed}"),
    "reading": (READING, "python reading.py"),
    "launching": (LAUNCHING, "python launching.py {ranks_of_node} {node}"),
}
#: The workload that runs under each strategy, and the probe of its run.
UNDER = {
    "mpi": ("joining", None),
    "horovod-mpi": ("training", "timeline"),
    "horovod-gloo": ("training", None),
    "tf-config": ("reading", None),
    "own-launcher": ("launching", "resources"),
}


#: Horovod's ranks over Gloo are those of `horovod-mpi` in all but how they find each other.
SWEPT = "horovod-gloo"


def experiment_in(folder: Path) -> dict:
    common = {"directory": str(folder), "epochs": 2, "batch": {"rows": 32, "per": "global"}}
    workloads = {
        name: common | {"command": command, "files": [f"{name}.py"]}
        for name, (_, command) in PROGRAMS.items()
    }
    return experiment_on(
        "started",
        workloads,
        configurations=[
            {"strategy": strategy, "layouts": ["1x2"]} for strategy in UNDER if strategy != SWEPT
        ],
        references=[{"strategy": "mpi", "layout": "1x2"}],
        timeline={"enabled": True},
        resources={"enabled": True, "seconds": 0.1},
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("started")


@pytest.fixture(scope="module")
def runs(folder) -> dict[str, dict]:
    """The results by strategy."""
    for name, (text, _) in PROGRAMS.items():
        (folder / f"{name}.py").write_text(text)
    return measured(folder, experiment_in(folder))


def measured(folder: Path, settings: dict) -> dict[str, dict]:
    """Measure the run of each strategy of an experiment, and return the results by strategy."""
    (folder / "experiment.yaml").write_text(json.dumps(settings))
    found, data, results = load(folder / "experiment.yaml"), folder / "data", {}
    prepare(found, data)
    with pytest.MonkeyPatch.context() as shell:
        # Those of another training.
        for name in ("RANK", "WORLD_SIZE", "TF_CONFIG", "OMPI_COMM_WORLD_SIZE"):
            shell.setenv(name, "7")
        for run in selected(found):
            output = folder / run.file
            output.parent.mkdir(parents=True)
            measure(found.request(run), data, output, 200)
            results[run.strategy] = read_json(output)
    return results


def selected(found: Experiment) -> list[Run]:
    """Return the run of each strategy in `UNDER`, and every run of other workloads."""
    probed = (found.probed(probe) for probe in ("timeline", "resources", "torch-trace"))
    runs = [*found.runs, *chain.from_iterable(probed)]
    return [
        run
        for run in runs
        if (run.workload, run.instrument) == UNDER.get(run.strategy, (run.workload, None))
        or (run.workload not in PROGRAMS and run.instrument in (None, "torch-trace"))
    ]


@pytest.mark.parametrize("strategy", ["mpi", "horovod-mpi", "tf-config"])
def test_a_programs_ranks_find_each_other(strategy, runs):
    run = runs[strategy]
    assert run["status"] == "ok", run["reason"]
    assert run["ranks"]["launcher"] == ("mpirun" if "mpi" in strategy else "local")
    assert run["evaluation"]["scores"]["world"] == 2


def test_the_steps_of_a_script_for_horovod_are_known_by_its_hook(runs):
    assert runs["horovod-mpi"]["program"]["known_by"] == "hook"
    assert [epoch["steps"] for epoch in runs["horovod-mpi"]["epochs"]] == [8]


@pytest.mark.sweep
def test_a_script_for_horovod_trains_alike_over_both_transports(runs, tmp_path):
    (tmp_path / "training.py").write_text(TRAINING)
    settings = experiment_in(tmp_path)
    settings |= {"configurations": [{"strategy": SWEPT, "layouts": ["1x2"]}]}
    settings |= {"references": [{"strategy": SWEPT, "layout": "1x2"}]}
    settings["workloads"] = {"training": settings["workloads"]["training"]}
    gloo, mpi = measured(tmp_path, settings)[SWEPT], runs["horovod-mpi"]
    assert (gloo["status"], gloo["ranks"]["launcher"]) == ("ok", "local"), gloo["reason"]
    assert gloo["evaluation"]["scores"]["world"] == 2
    first, other = (run["evaluation"]["scores"]["first"] for run in (mpi, gloo))
    assert first == pytest.approx(other, rel=1e-3)


def test_horovods_timeline_of_a_script_is_kept(runs, folder):
    [timeline] = folder.glob("results/started/runs/**/timeline.json")
    assert {"ALLREDUCE", "NEGOTIATE_ALLREDUCE"} <= {e.get("name") for e in read_json(timeline)}


def test_a_launcher_of_its_own_is_started_once_with_all_cores(runs):
    run = runs["own-launcher"]
    assert run["status"] == "ok", run["reason"]
    [cores] = run["ranks"]["cores"]
    assert {"cores": len(cores), "threads": 1}.items() <= run["evaluation"]["scores"].items()
    assert run["epochs"][0]["steps"] == 5
    assert not [note for note in run["program"]["notes"] if "input" in note]


def test_the_ranks_of_a_launcher_are_what_the_probe_samples(runs):
    [node] = runs["own-launcher"]["resources"]
    assert node["samples"] >= 3
    # The launcher and its ranks, with what they hold, and not the process that started them.
    assert 60 << 20 < node["rss_bytes_max"] < 200 << 20
    assert node["cpu_percent_mean"] < 100


DDP = """
import sys
import torch
import torch.distributed as dist
from escala_steps import epoch, score, steps
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for _ in range(2):
    for batch in steps([torch.ones(int(sys.argv[1]), 8)] * 10, rows=len):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    epoch()
score(world=dist.get_world_size(), threads=torch.get_num_threads())
dist.barrier()
dist.destroy_process_group()
"""
ACCELERATE = (
    "python -m accelerate.commands.launch --multi_gpu "
    "--num_machines {nodes} --num_processes {ranks} "
    "--machine_rank {node} --main_process_ip {address} --main_process_port {port} "
    "--mixed_precision no --dynamo_backend no ddp.py {rows_of_rank}"
)


@pytest.mark.torch
@pytest.mark.parametrize(
    ("strategy", "command"),
    [
        ("torch-ddp", "python ddp.py {rows_of_rank}"),
        pytest.param("processes", "python ddp.py {rows_of_rank}", marks=pytest.mark.sweep),
        pytest.param("own-launcher", ACCELERATE, marks=pytest.mark.sweep),
    ],
    ids=["torch-ddp", "processes", "accelerate"],
)
def test_torch_trains_however_it_is_started(strategy, command, tmp_path):
    torch = environments.python("torch")
    (tmp_path / "ddp.py").write_text(DDP)
    program = {"command": command, "directory": str(tmp_path), "files": ["ddp.py"]}
    program |= {"environment": {"python": torch}, "batch": {"rows": 32, "per": "global"}}
    settings = experiment_in(tmp_path) | {
        "configurations": [{"strategy": strategy, "layouts": ["1x2"]}],
        "references": [{"strategy": strategy, "layout": "1x2"}],
        "workloads": {f"under-{strategy}": program},
    }
    if strategy == "processes":
        settings["torch-trace"] = {"enabled": True, "steps": 5}
    [result] = measured(tmp_path, settings).values()
    assert result["status"] == "ok", result["reason"]
    assert result["program"]["known_by"] == "hook"
    assert {"world": 2, "threads": 1}.items() <= result["evaluation"]["scores"].items()
    for trace in tmp_path.glob("results/**/trace.json"):
        assert "aten::addmm" in {event.get("name") for event in read_json(trace)["traceEvents"]}
