"""Ranks of PyTorch: alone, with what slows them down, and with sums in memory that they share."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from escala.core.files import read_json
from escala.core.variables import passed
from escala.engines import environments
from escala.record import collect
from escala.record.invariants import violated_invariant
from escala.record.run import measure
from tests.workflow.conftest import begin_with, measured

BARE = {"trained_module": "bare", "evaluation": "whole"}


@pytest.fixture
def train(small_split, request_for, tmp_path, monkeypatch) -> Callable[..., tuple[dict, list]]:
    """Return a function that trains on two ranks; it returns the result and the ranks' digests."""
    digests = []

    def seen(planned, ranks, *more):
        digests[:] = [each["weights_sha256"][0] for each in ranks]
        return violated_invariant(planned, ranks, *more)

    monkeypatch.setattr(collect, "violated_invariant", seen)

    def made(**knobs: object) -> tuple[dict, list[str]]:
        request = request_for("ddp-gloo", "1x2", epochs=2, knobs=knobs)
        file = tmp_path / str(len(list(tmp_path.iterdir()))) / "run.json"
        measure(request, small_split, file, 300)
        return read_json(file), [*digests]

    return made


@pytest.mark.torch
def test_each_rank_trains_alone_and_the_first_one_as_ranks_with_the_same_leading_rows(train):
    """The mean of two equal gradients is each of them, to the last bit."""
    bare, (first, second) = train(**BARE)
    assert bare["status"] == "ok", bare["reason"]
    assert first != second and bare["weights_sha256"] == first
    leading, digests = train(shard="leading")
    assert leading["status"] == "ok" and digests == [first, first]
    wrapped, _ = train()
    assert wrapped["weights_sha256"] != first


EPOCHS = 2
#: The model has parameters that no loss depends on, and what the profiler writes is kept.
CHANGED = """
from importlib.util import find_spec

if find_spec("torch"):
    import os, shutil
    from torch import nn, profiler
    from escala.workloads.virus_cnn import model_torch

    build, export = model_torch.build, profiler.profile.export_chrome_trace

    def with_unused(*arguments):
        network = build(*arguments)
        network.unused = nn.Linear(1, 1)
        return network

    def kept(self, path):
        export(self, path)
        number = len(os.listdir({folder!r}))
        shutil.copy(path, f"{folder}/{{os.getpid()}}.{{number}}.json")

    model_torch.build, profiler.profile.export_chrome_trace = with_unused, kept
"""

#: Rank 1 ends after an epoch.
ENDS = """
import os, signal
from escala.training.checkpoint import Checkpoint

due = Checkpoint.due

def ends(self, epoch):
    if self.process == 1:
        {end}
    return due(self, epoch)

Checkpoint.due = ends
"""


@pytest.fixture
def run(small_split, request_for, tmp_path, monkeypatch) -> Callable[..., dict]:
    """Return a function that trains two ranks with some knobs, and returns their run.json."""
    traces = tmp_path / "traces"
    traces.mkdir()
    begin_with(CHANGED.format(folder=str(traces)), tmp_path / "site", monkeypatch)

    def train(**knobs: object) -> dict:
        request = request_for("ddp-gloo", "1x2", epochs=EPOCHS, knobs=knobs)
        measure(request, small_split, tmp_path / "run" / "run.json", 300)
        return read_json(tmp_path / "run" / "run.json")

    return train


@pytest.mark.torch
def test_parameters_without_a_gradient_are_searched_for_if_a_knob_says_so(run):
    refused = run()
    assert refused["status"] == "failed"
    assert "find_unused_parameters" in refused["reason"]
    assert run(find_unused_parameters=True)["status"] == "ok"


@pytest.mark.torch
def test_a_profiler_that_is_left_on_writes_every_epoch_of_every_rank(run, tmp_path):
    left_on = run(find_unused_parameters=True, profiler=True)
    assert left_on["status"] == "ok", left_on["reason"]
    traces = list(Path(tmp_path / "traces").iterdir())
    assert len(traces) == 2 * EPOCHS
    for trace in traces:
        names = [event["name"] for event in read_json(trace)["traceEvents"]]
        assert names.count("DistributedDataParallel.forward") == left_on["epochs"][0]["steps"]
        assert "gloo:all_reduce" in names
    assert run(find_unused_parameters=True)["weights_sha256"] == left_on["weights_sha256"]
    assert len(list((tmp_path / "traces").iterdir())) == len(traces)


@pytest.mark.parametrize(
    ("end", "reason"),
    [
        ("os.write(1, b'out of patience'); os._exit(7)", "exit code 7 and reported no error"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was ended by signal 11"),
        ("raise SystemExit('why')", "SystemExit: why"),
    ],
)
@pytest.mark.torch
def test_the_rank_that_ends_first_is_named(
    small_split, request_for, tmp_path, imported, end, reason
):
    imported(ENDS.format(end=end))
    request = request_for("ddp-gloo", "1x2", epochs=EPOCHS)
    found = measured(request, small_split, tmp_path, "failed")["reason"]
    assert found.startswith("rank 1") and reason in found
    assert ("out of patience" in found) == ("_exit" in end)
    # The other one noticed, and told of it, which is not the cause.
    assert "unavailable" not in found and "reset" not in found


@pytest.mark.sweep
@pytest.mark.torch
def test_probes_capture_ranks_which_train_as_without_them(small_split, request_for, tmp_path):
    weights, steps = set(), 6
    settings = {None: None, "clocks": {}, "torch-trace": {"steps": steps}}
    for probe, each in settings.items():
        request = request_for("ddp-gloo", "1x2", epochs=EPOCHS, instrument=probe)
        request |= {"probe_settings": each}
        run = measured(request, small_split, tmp_path / str(probe))
        weights.add(run["weights_sha256"])
    assert len(weights) == 1
    [trace] = (tmp_path / "torch-trace").rglob("trace.json")
    spans = [each["name"] for each in read_json(trace)["traceEvents"] if each["ph"] == "X"]
    # Of the first rank, and of each step what the profiler names.
    assert len([name for name in spans if name.startswith("ProfilerStep#")]) == steps
    for name in ("DistributedDataParallel.forward", "Optimizer.step#RMSprop.step"):
        assert spans.count(name) == steps
    assert any(name.startswith("gloo:all") for name in spans)


SCRIPT = Path(__file__).with_name("torch_sums.py")


@pytest.mark.torch
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.sweep), 3])
def test_every_rank_gets_the_sums_in_the_order_of_the_ranks_to_the_last_bit(ranks):
    """In several buckets and two types, whichever rank is late to write or to read."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    python = environments.python("torch")
    environment = environments.variables(python, passed()) | {"PYTHONSAFEPATH": "1"}
    environment["PYTHONPATH"] += f"{os.pathsep}{environments.ROOT}"
    processes = [
        subprocess.Popen(
            [python, SCRIPT, str(rank), str(ranks), str(port)],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    for process in processes:
        _, log = process.communicate(timeout=120)
        assert process.returncode == 0, log
