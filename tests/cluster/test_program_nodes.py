"""Programs over two nodes: they find each other over the link, and end with their job.

A trace tells the rate of the link.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from escala.analysis.traces import spans
from escala.core.files import read_json
from escala.engines import interpreter
from escala.experiment import Experiment, load
from escala.probes.torch_trace import trace_files
from tests.cluster.test_runs import in_a_job, is_over
from tests.programs import JOINING, eventually, prepare

pytestmark = [pytest.mark.cluster, pytest.mark.sweep]

RATE = 100  # Mbit/s
SENT_BYTES, STEPS = 250_000, 8
#: Takes its place from the variables, and sends bytes over TCP in every step.
SENDING = f"""
import json, os, socket, sys, time
from escala_steps import begin, epoch, step
rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
told = {{"cores": sorted(os.sched_getaffinity(0)), "host": os.uname().nodename}}
with open(f"{{sys.argv[1]}}/told{{rank}}.json", "w") as file:
    json.dump(told | {{"variables": dict(os.environ)}}, file)
address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
def other():
    while True:
        try:
            return socket.create_connection(address)
        except ConnectionRefusedError:
            time.sleep(0.05)
peer = socket.create_server(address).accept()[0] if rank == 0 else other()
def receive(size):
    while size:
        size -= len(peer.recv(size))
for _ in range(2):
    begin()
    for _ in range({STEPS}):
        if rank == 0:
            peer.sendall(bytes({SENT_BYTES}))
            receive(1)
        else:
            receive({SENT_BYTES})
            peer.sendall(b"x")
        step(rows=int(sys.argv[2]))
    epoch()
"""


#: Sums a megabyte in every step, and computes little.
NUMBERS = 250_000
TRAINING = f"""
import torch, torch.distributed as dist
dist.init_process_group("gloo")
layer = torch.nn.Linear({NUMBERS // 500}, 500, bias=False)
model = torch.nn.parallel.DistributedDataParallel(layer)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
for _ in range(20):
    model(torch.ones(1, {NUMBERS // 500})).sum().backward()
    optimizer.step()
"""


def experiment(folder: Path) -> dict:
    workload = {"directory": str(folder), "batch": {"rows": 32, "per": "global"}}
    return {
        "experiment": "programs",
        "title": "Programs over two nodes",
        "repeats": 1,
        "datasets": {"none": {"kind": "files"}},
        "networks": {"slow": {"rate": f"{RATE}mbit"}},
        "variants": {"plain": {}},
        "workloads": {
            "sending": workload | {"command": "python sending.py {output} {rows_of_rank}"},
            "joining": workload | {"command": "python joining.py"},
        },
        "configurations": [
            {"strategy": strategy, "layouts": ["2x1"]} for strategy in ("torch-ddp", "mpi")
        ],
        "references": [{"strategy": "torch-ddp", "layout": "2x1"}],
    }


@pytest.fixture(scope="module")
def results(put_up, tmp_path_factory) -> tuple[Path, dict[str, dict]]:
    """A folder, and what a job measured there, one run after the other, by the name of the run."""
    put_up()
    folder = tmp_path_factory.mktemp("programs")
    for name, text in (("sending", SENDING), ("joining", JOINING)):
        (folder / f"{name}.py").write_text(text)
    (folder / "experiment.yaml").write_text(yaml.safe_dump(experiment(folder)))
    found = load(folder / "experiment.yaml")
    planned = {(run.workload, run.strategy): found.request(run) for run in found.runs}
    requests = {
        "sending": planned["sending", "torch-ddp"] | {"launcher": "auto"},
        "srun": planned["joining", "mpi"] | {"launcher": "srun"},
        "mpirun": planned["joining", "mpi"] | {"launcher": "mpirun"},
    }
    return folder, measured(found, folder, requests)


def measured(found: Experiment, folder: Path, requests: dict[str, dict]) -> dict[str, dict]:
    """Return what a job measures of some requests, one run after the other, by their names."""
    data = folder / "data"
    prepare(found, data)
    runs = [(each, data, folder / name / "run.json", 100) for name, each in requests.items()]
    job = in_a_job(folder, *runs)
    assert eventually(lambda: is_over(job), seconds=300)
    return {name: read_json(folder / name / "run.json") for name in requests}


def test_programs_find_each_other_over_the_link(results):
    folder, runs = results
    run = runs["sending"]
    assert run["status"] == "ok", run["reason"]
    assert run["ranks"]["launcher"] == "srun"
    told = [read_json(folder / f"sending/output/told{rank}.json") for rank in range(2)]
    assert [each["host"] for each in told] == run["ranks"]["hosts"] == ["n1", "n2"]
    assert [each["cores"] for each in told] == run["ranks"]["cores"]
    for each in told:
        assert each["variables"]["GLOO_SOCKET_IFNAME"] == run["ranks"]["interface"] == "eth0"
        assert each["variables"]["OMP_NUM_THREADS"] == "1"
        # A job step's would lead a library to another way to start.
        assert not [n for n in each["variables"] if n.startswith("SLURM") and n != "SLURM_CONF"]
    # The marks of both nodes are read, and a step takes what the link needs for its bytes.
    assert run["program"]["known_by"] == "hook"
    assert [each["rank"] for each in run["step_seconds"]["per_rank"]] == [0, 1]
    assert run["step_seconds"]["count"] == STEPS
    needed = 8 * SENT_BYTES / (RATE * 1e6)
    assert needed < run["step_seconds"]["median"] < 5 * needed


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_a_program_joins_the_others_through_mpi_although_its_rank_does_not(launcher, results):
    run = results[1][launcher]
    assert run["status"] == "ok", run["reason"]
    assert run["ranks"]["launcher"] == launcher
    assert run["evaluation"]["scores"]["world"] == 2


@pytest.mark.torch
def test_a_trace_tells_the_rate_of_a_slow_link(put_up, tmp_path):
    put_up()
    (tmp_path / "training.py").write_text(TRAINING)
    settings = experiment(tmp_path) | {"torch-trace": {"enabled": True, "repeats": 1, "steps": 5}}
    training = settings["workloads"]["sending"] | {
        "command": "python training.py",
        "environment": {"python": interpreter("torch")},
    }
    settings |= {"workloads": {"training": training}}
    settings["configurations"] = settings["configurations"][:1]
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(settings))
    found = load(tmp_path / "experiment.yaml")
    [traced] = found.probe_runs("torch-trace")
    request = found.request(traced) | {"launcher": "auto"}
    [run] = measured(found, tmp_path, {"traced": request}).values()
    assert run["status"] == "ok", run["reason"]
    parts = spans.divide([*map(spans.read, trace_files(tmp_path / "traced/run.json"))]).ranks
    moved = 4 * NUMBERS  # Of two ranks, each sends and receives the half, twice.
    assert parts["bytes"].to_list() == [moved, moved]
    rate, needed = parts.loc[0, ["rate", "needed"]]
    assert 0.6 * RATE / 1000 < rate < 1.05 * RATE / 1000 < needed
    remedies = [what for _, what in spans.changes(parts.loc[0], rate, needed)]
    assert any("exchange less often" in remedy for remedy in remedies)
