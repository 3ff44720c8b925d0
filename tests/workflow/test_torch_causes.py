"""Causes that slow DistributedDataParallel down, failures and probes of its ranks, in processes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from escala.core.files import read_json
from escala.record.run import measure
from tests.workflow.conftest import begin_with, measured

pytestmark = pytest.mark.torch

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


def test_parameters_without_a_gradient_are_searched_for_if_a_knob_says_so(run):
    refused = run()
    assert refused["status"] == "failed"
    assert "find_unused_parameters" in refused["reason"]
    assert run(find_unused_parameters=True)["status"] == "ok"


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
