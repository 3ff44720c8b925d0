"""Programs under each strategy that starts them, and the example programs as they are."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from escala.core.files import read_json
from escala.engines import environments
from escala.experiment import Experiment, read
from escala.record.run import measure
from tests.conftest import ROOT, selected
from tests.programs import JOINING, experiment_on, prepare

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
    "tf-config": ("reading", None),
    "own-launcher": ("launching", "resources"),
}


def experiment_of(folder: Path, programs: dict[str, tuple[str, str]], **changes: object) -> dict:
    """Write programs into a folder, and return an experiment on two ranks of each."""
    common = {"directory": str(folder), "epochs": 2, "batch": {"rows": 32, "per": "global"}}
    for name, (text, _) in programs.items():
        (folder / f"{name}.py").write_text(text)
    workloads = {
        name: common | {"command": command, "files": [f"{name}.py"]}
        for name, (_, command) in programs.items()
    }
    return experiment_on("started", workloads) | changes


def measured(folder: Path, settings: dict, wanted: dict) -> dict[str, dict]:
    """Measure runs of some strategies, of these workloads and probes, and return the results."""
    first = {"strategy": next(iter(wanted)), "layout": "1x2"}
    settings |= {"references": [first]}
    settings |= {"configurations": [{"strategy": each, "layouts": ["1x2"]} for each in wanted]}
    found, data, results = Experiment(settings, "started.yaml"), folder / "data", {}
    prepare(found, data)
    probes = {probe for _, probe in wanted.values() if probe}
    runs = [*found.runs, *(run for probe in probes for run in found.probe_runs(probe))]
    with pytest.MonkeyPatch.context() as shell:
        # Those of another training.
        for name in ("RANK", "WORLD_SIZE", "TF_CONFIG", "OMPI_COMM_WORLD_SIZE"):
            shell.setenv(name, "7")
        for run in runs:
            if (run.workload, run.instrument) == wanted[run.strategy]:
                (output := folder / run.file).parent.mkdir(parents=True)
                measure(found.request(run), data, output, 200)
                results[run.strategy] = read_json(output)
    return results


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("started")


@pytest.fixture(scope="module")
def runs(folder, request) -> dict[str, dict]:
    """The results by strategy; that of Horovod's script, which imports TensorFlow, if needed."""
    probes = {"timeline": {"enabled": True}, "resources": {"enabled": True, "seconds": 0.1}}
    wanted = {"own-launcher", *selected(request, "strategy")}
    under = {strategy: UNDER[strategy] for strategy in UNDER if strategy in wanted}
    return measured(folder, experiment_of(folder, PROGRAMS, **probes), under)


HOROVOD = pytest.param("horovod-mpi", marks=pytest.mark.sweep)


@pytest.mark.parametrize("strategy", ["mpi", HOROVOD, "tf-config"])
def test_a_programs_ranks_find_each_other(strategy, runs):
    run = runs[strategy]
    assert run["status"] == "ok", run["reason"]
    assert run["ranks"]["launcher"] == ("mpirun" if "mpi" in strategy else "local")
    assert run["evaluation"]["scores"]["world"] == 2


@pytest.mark.parametrize("strategy", [HOROVOD])
def test_the_steps_of_a_script_for_horovod_are_known_by_its_hook_and_its_timeline_is_kept(
    strategy, runs, folder
):
    assert runs[strategy]["program"]["known_by"] == "hook"
    assert [epoch["steps"] for epoch in runs[strategy]["epochs"]] == [8]
    [timeline] = folder.glob("results/started/runs/**/timeline.json")
    assert {"ALLREDUCE", "NEGOTIATE_ALLREDUCE"} <= {e.get("name") for e in read_json(timeline)}


def test_a_launcher_of_its_own_is_started_once_with_all_cores_and_its_ranks_are_sampled(runs):
    run = runs["own-launcher"]
    assert run["status"] == "ok", run["reason"]
    [cores], [node] = run["ranks"]["cores"], run["resources"]
    assert {"cores": len(cores), "threads": 1}.items() <= run["evaluation"]["scores"].items()
    assert run["epochs"][0]["steps"] == 5
    assert not [note for note in run["program"]["notes"] if "input" in note]
    # The launcher and its ranks, with what they hold, and not the process that started them.
    assert node["samples"] >= 3 and 60 << 20 < node["rss_bytes_max"] < 200 << 20
    assert node["cpu_percent_mean"] < 100


#: As Hydra, which MPICH and Intel MPI start by: each rank has its number in its environment, and
#: the other end of a connection over which it asks for what the others put there.
HYDRA = """#!{python}
import os, socket, subprocess, sys
words = sys.argv[1:]
if words == ["--version"]:
    sys.exit(print("HYDRA build details:"))
size = int(words[words.index("-n") + 1])
ends = [socket.socketpair() for _ in range(size)]
started = []
for rank, (_, end) in enumerate(ends):
    place = {{"PMI_RANK": str(rank), "PMI_SIZE": str(size), "PMI_FD": str(end.fileno())}}
    command = words[words.index("-n") + 2 :]
    started += [subprocess.Popen(command, env=os.environ | place, pass_fds=[end.fileno()])]
total = sum(int(here.recv(9)) for here, _ in ends)
ends[0][0].sendall(b"%d" % total)
sys.exit(max(process.wait() for process in started))
"""
OVER_HYDRA = """
import os, socket
from escala_steps import begin, epoch, score
begin()
end = socket.socket(fileno=int(os.environ["PMI_FD"]))
end.sendall(b"%d" % (10 + int(os.environ["PMI_RANK"])))
epoch()
if os.environ["PMI_RANK"] == "0":
    score(world=int(os.environ["PMI_SIZE"]), total=int(end.recv(9)))
"""


def test_ranks_of_mpich_are_started_by_its_mpirun_and_reach_it(tmp_path):
    mpirun = tmp_path / "bin" / "mpirun"
    mpirun.parent.mkdir()
    mpirun.write_text(HYDRA.format(python=sys.executable))
    mpirun.chmod(0o755)
    (mpirun.parent / "python").symlink_to(sys.executable)
    settings = experiment_of(tmp_path, {"over": (OVER_HYDRA, "python over.py")})
    settings["workloads"]["over"] |= {"environment": {"python": str(mpirun.parent / "python")}}
    settings["workloads"]["over"]["epochs"] = 1
    [result] = measured(tmp_path, settings, {"mpi": ("over", None)}).values()
    assert result["status"] == "ok", result["reason"]
    assert result["evaluation"]["scores"] == {"world": 2, "total": 21}


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


@pytest.mark.torch
def test_ranks_of_pytorch_join_each_other(tmp_path):
    settings = experiment_of(tmp_path, {"ddp": (DDP, "python ddp.py {rows_of_rank}")})
    settings["workloads"]["ddp"] |= {"environment": {"python": environments.python("torch")}}
    [result] = measured(tmp_path, settings, {"torch-ddp": ("ddp", None)}).values()
    assert result["status"] == "ok", result["reason"]
    assert result["program"]["known_by"] == "hook"
    assert {"world": 2, "threads": 1}.items() <= result["evaluation"]["scores"].items()


#: As JAX's guide to several processes has it; the one hands over its numbers, the other does not.
JAX = """
import os, sys
import jax
from escala_steps import epoch, score, steps
taken = {} if sys.argv[2] == "none" else dict(
    num_processes=int(os.environ["JAX_NUM_PROCESSES"]), process_id=int(os.environ["JAX_PROCESS_ID"])
)
jax.distributed.initialize(**taken)
import jax.numpy as jnp
from jax.experimental import multihost_utils
for _ in range(2):
    for number in steps(range(3), rows=int(sys.argv[1])):
        total = multihost_utils.process_allgather(jnp.float32(10 + jax.process_index())).sum()
    epoch()
score(world=jax.process_count(), total=float(total))
"""


@pytest.mark.jax
@pytest.mark.parametrize("numbers", ["none", pytest.param("variables", marks=pytest.mark.sweep)])
def test_processes_of_jax_join_each_other(numbers, tmp_path):
    settings = experiment_of(
        tmp_path, {"joins": (JAX, f"python joins.py {{rows_of_rank}} {numbers}")}
    )
    settings["workloads"]["joins"] |= {"environment": {"python": environments.python("jax")}}
    [result] = measured(tmp_path, settings, {"jax-distributed": ("joins", None)}).values()
    assert result["status"] == "ok", result["reason"]
    assert {"world": 2, "total": 21.0}.items() <= result["evaluation"]["scores"].items()
    assert result["program"]["ran"]["ranks"] == 2


FOLDER = ROOT / "experiments" / "programs"


class Case(NamedTuple):
    """What is known of an example program.

    Attributes
    ----------
    known_by : how its epochs are known.
    rows : of an epoch over all ranks; None: it does not tell.
    scores : names of what it reports of itself.
    needs : the variable of its interpreter; None: the project's own, or that of its engine.
    """

    known_by: str
    rows: int | None
    scores: set[str]
    needs: str | None = None


TORCH, MPI = "ESCALA_TORCH", "ESCALA_MPI"
CASES = {
    "torch-ddp": Case("hook", 1536, {"loss", "test_accuracy"}, TORCH),
    "torchrun": Case("hook", 1536, {"loss", "test_accuracy"}, TORCH),
    "torch-spawn": Case("output", None, {"loss"}),
    "lightning-digits": Case("hook", 1536, {"loss", "val_accuracy"}, TORCH),
    "transformers-trainer": Case("hook", None, {"accuracy"}, TORCH),
    "keras-horovod": Case("output", None, {"loss", "accuracy", "val_loss", "val_accuracy"}),
    "tf-loop-horovod": Case("hook", 8192, {"loss", "test_mse"}),
    "tf-multiworker": Case("hook", None, {"loss", "accuracy", "val_loss", "val_accuracy"}),
    "mpi-kmeans": Case("output", None, {"inertia"}, MPI),
    "joblib-search": Case("whole run", None, set()),
    "xgboost-threads": Case("output", None, {"loss"}, TORCH),
    "heat": Case("output", None, {"change"}),
}


def test_every_program_is_tried():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(CASES)


@pytest.mark.parametrize(
    "name",
    # One needs only a C compiler.
    [
        pytest.param(
            name,
            marks=[pytest.mark.torch] * (name == "torch-spawn")
            + [pytest.mark.sweep] * (name != "heat"),
        )
        for name in CASES
    ],
)
def test_a_program_runs_as_it_is(name, tmp_path, monkeypatch):
    """On one process and on two, in the first repeat, and its epochs are known."""
    case = CASES[name]
    if case.needs and case.needs not in os.environ:
        pytest.skip(
            f"{case.needs} names no interpreter; see docs/how-to/bring-your-own-workload.md"
        )
    if name == "heat" and shutil.which("cc") is None:
        pytest.skip("there is no C compiler; install gcc")
    monkeypatch.chdir(ROOT)
    file, data = FOLDER / f"{name}.yaml", tmp_path / "data"
    experiment = Experiment(read(file), file)
    prepare(experiment, data)
    for run in experiment.runs:
        if run.repeat > 1 or run.variant != "plain":
            continue
        output = tmp_path / run.layout / "run.json"
        output.parent.mkdir()
        measure(experiment.request(run) | {"oversubscribe": True}, data, output, 240)
        result = read_json(output)
        assert result["status"] == "ok", (run.layout, result["reason"])
        assert result["program"]["known_by"] == case.known_by
        epochs = result["epochs"]
        # The first epoch holds what a framework compiles, and stands apart.
        asked = result["training"]["epochs_asked"]
        assert len(epochs) == (1 if case.known_by == "whole run" else asked - 1)
        assert all(epoch["train_seconds"] > 0 for epoch in epochs)
        assert {epoch["rows"] for epoch in epochs} == {case.rows}
        scores = set((result["evaluation"] or {"scores": ()})["scores"])
        assert case.scores <= scores
        # What a program reports once has no best, also where several ranks report it.
        assert not {"best_test_accuracy", "best_test_mse"} & scores
