"""Engines that begin with the same weights and read the same rows; ranks of PyTorch."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from escala.core.engines import DEFAULT, ENGINES
from escala.core.files import read_json
from escala.core.variables import for_ranks
from escala.data.base import Arrays
from escala.engines import environments
from escala.predict.model import load
from escala.record import collect
from escala.record.invariants import invariant_fault
from escala.record.run import measure
from tests.workflow.conftest import begin_with, mean_losses, measured

#: RMSprop divides by the size of a gradient: where that is near 0, rounding decides.
TOLERANCE = 1e-3
#: Code that every Python process begins with: a rank wants more memory than any machine has.
WANTING = """
from escala.training import train

def warm_up(*given):
    import torch
    torch.empty(2**50)

train.warm_up = warm_up
"""


@pytest.mark.parametrize(
    "engine",
    [
        pytest.param(
            name, marks=[getattr(pytest.mark, name), *[pytest.mark.sweep] * (name != "torch")]
        )
        for name in ENGINES
        if name != DEFAULT
    ],
)
def test_one_process_of_each_engine_makes_the_same_steps(
    small_split, request_for, tmp_path, engine
):
    losses, models, predictions = [], [], []
    alone = ENGINES[engine].one_process
    for strategy in ("single", alone):
        folder = tmp_path / strategy
        request = request_for(strategy, "1x1", initial_weights="seeded", save_model=True)
        measured(request, small_split, folder)
        losses.append(mean_losses(collect.read_steps(folder / "ranks", 1)))
        models.append(load(folder))
        predictions.append(np.load(folder / "predictions.npy"))
    np.testing.assert_allclose(*losses, rtol=TOLERANCE)
    # The first step begins with the same weights and has the same rows.
    assert losses[0][0] == pytest.approx(losses[1][0], rel=1e-6)
    (codes,), _ = Arrays(small_split).gather("test", slice(None))
    by_tensorflow, by_other = (each.probabilities(codes) for each in models)
    np.testing.assert_allclose(by_tensorflow, by_other, atol=TOLERANCE)
    # Each model is computed by the engine that trained it.
    for model, predicted in zip(models, predictions, strict=True):
        np.testing.assert_array_equal(model.predictions(codes), predicted)
    # TensorFlow reads what the other has trained, too.
    path = tmp_path / alone / "model.json"
    path.write_text(path.read_text().replace(f'"engine": "{engine}"', '"engine": "tensorflow"'))
    np.testing.assert_allclose(load(path.parent).probabilities(codes), by_other, atol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("several", ["ddp-gloo", pytest.param("fsdp", marks=pytest.mark.sweep)])
def test_ranks_that_compute_in_parts_make_the_steps_of_one_process(
    small_split, request_for, tmp_path, several
):
    runs, losses = [], []
    for strategy, layout, parts in (("torch-single", "1x1", 1), (several, "1x2", 3)):
        folder = tmp_path / strategy
        knobs, ranks = {"accumulation": parts}, int(layout[-1])
        request = request_for(strategy, layout, initial_weights="seeded", knobs=knobs)
        runs.append(measured(request, small_split, folder))
        losses.append(mean_losses(collect.read_steps(folder / "ranks", ranks)))
    np.testing.assert_allclose(*losses, rtol=TOLERANCE)
    one, two = (run["epochs"][0]["accuracy"] for run in runs)
    assert one == pytest.approx(two)


@pytest.mark.torch
def test_divergence_and_lack_of_memory_are_statuses(small_split, request_for, tmp_path, imported):
    rate = {"value": 3e38, "reference_batch": 32, "rule": "constant"}
    request = request_for("torch-single", "1x1", learning_rate=rate)
    result = measured(request, small_split, tmp_path / "diverged", "diverged")
    assert "loss is" in result["reason"] and result["evaluation"] is None
    imported(WANTING)
    measured(request_for("ddp-gloo", "1x2"), small_split, tmp_path / "full", "out-of-memory")


BARE = {"trained_module": "bare", "evaluation": "whole"}


@pytest.fixture
def train(small_split, request_for, tmp_path, monkeypatch) -> Callable[..., tuple[dict, list]]:
    """Return a function that trains on two ranks; it returns the result and the ranks' digests."""
    digests = []

    def seen(planned, ranks, *more):
        digests[:] = [each["weights_sha256"][0] for each in ranks]
        return invariant_fault(planned, ranks, *more)

    monkeypatch.setattr(collect, "invariant_fault", seen)

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

due = Checkpoint.is_due

def ends(self, epoch):
    if self.process == 1:
        {end}
    return due(self, epoch)

Checkpoint.is_due = ends
"""


@pytest.fixture
def run(small_split, request_for, tmp_path, monkeypatch) -> Callable[..., dict]:
    """Return a function that trains two ranks with some knobs, and returns their run.json."""
    traces = tmp_path / "traces"
    traces.mkdir()
    begin_with(CHANGED.format(folder=str(traces)), tmp_path / "site", monkeypatch)

    def train(status: str = "ok", **knobs: object) -> dict:
        request = request_for("ddp-gloo", "1x2", epochs=EPOCHS, knobs=knobs)
        return measured(request, small_split, tmp_path / "run", status)

    return train


@pytest.mark.torch
def test_parameters_without_a_gradient_are_searched_for_and_a_profiler_left_on_writes_all(
    run, tmp_path
):
    assert "find_unused_parameters" in run("failed")["reason"]
    left_on = run(find_unused_parameters=True, profiler=True)
    traces = list((tmp_path / "traces").iterdir())
    assert len(traces) == 2 * EPOCHS, "of every epoch of every rank"
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
        pytest.param("raise SystemExit('why')", "SystemExit: why", marks=pytest.mark.sweep),
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


SCRIPT = Path(__file__).with_name("torch_sums.py")


@pytest.mark.torch
@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.sweep), 3])
def test_every_rank_gets_the_sums_in_the_order_of_the_ranks_to_the_last_bit(ranks):
    """In several buckets and two types, whichever rank is late to write or to read."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    python = environments.python("torch")
    environment = environments.variables(python, for_ranks()) | {"PYTHONSAFEPATH": "1"}
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
