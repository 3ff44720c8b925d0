"""The steps that are seen of real scripts, which import nothing of Escala."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from escala.engines import interpreter
from escala.programs import seen
from escala.programs.program import HOOK

#: The beginning of a script: the times at which its steps end, as it sees them, go to a file.
SCRIPT = """
import json, sys, time
import torch
from torch.utils.data import DataLoader, TensorDataset

rows = TensorDataset(torch.arange(20.0))
parameter, other = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
parameter.grad = other.grad = torch.ones(1)
optimizer, second = (torch.optim.SGD([p], lr=0.1) for p in (parameter, other))
loader, test = DataLoader(rows, batch_size=4), DataLoader(rows, batch_size=10)
begins, ends = [], []

def evaluate():
    for batch in test:
        time.sleep(0.05)

def step(optimizer=optimizer):
    time.sleep(0.01)
    optimizer.step()
    ends.append(time.monotonic())
"""
END = """
json.dump([begins, ends], open(sys.argv[1], "w"))
"""
#: Parts of a script, with the batches, rows and samples of the loops that make its steps.
PARTS = {
    "no loader": ("for number in range(3):\n    step()\n", [(None, None, None)]),
    "an evaluation after each epoch": (
        "for epoch in range(2):\n"
        "    begins.append(time.monotonic())\n"
        "    for batch in loader:\n"
        "        step()\n"
        "    evaluate()\n",
        [(5, 4, 20), (5, 4, 20)],
    ),
    "an evaluation within an epoch": (
        "begins.append(time.monotonic())\n"
        "for number, batch in enumerate(loader):\n"
        "    step()\n"
        "    if number == 2:\n"
        "        evaluate()\n"
        "        begins.append(time.monotonic())\n",
        [(5, 4, 20), (5, 4, 20)],
    ),
    "two optimizers that take turns": (
        "begins.append(time.monotonic())\nfor batch in loader:\n    step()\n    second.step()\n",
        [(5, 4, 20)],
    ),
    "two loaders side by side": (
        "begins.append(time.monotonic())\n"
        "for batch, another in zip(loader, DataLoader(rows, batch_size=4)):\n"
        "    step()\n",
        [(5, 4, 20)],
    ),
    "updates of several batches": (
        "begins.append(time.monotonic())\n"
        "for number, batch in enumerate(DataLoader(rows, batch_size=3), 1):\n"
        "    if number % 2 == 0:\n"
        "        step()\n",
        [(7, 3, 20)],
    ),
}


def start(code: str, folder: Path, engine: str = "torch", *words: str, **added: str):
    """Run a script with the hook before it; return its end and what was seen."""
    marks = folder / "marks0"
    marks.mkdir(exist_ok=True)
    (folder / "script.py").write_text(code, encoding="utf-8")
    given = os.environ | {"ESCALA_STEPS": str(marks), "PYTHONPATH": str(HOOK)} | added
    call = [interpreter(engine), str(folder / "script.py"), *words]
    done = subprocess.run(call, env=given, capture_output=True, text=True, timeout=120)
    return done, seen.read(marks)


@pytest.mark.torch
def test_steps_of_pytorch_are_those_that_the_script_makes(tmp_path):
    code = SCRIPT + "".join(part for part, _ in PARTS.values()) + END
    done, processes = start(code, tmp_path, "torch", str(tmp_path / "times.json"))
    assert done.returncode == 0, done.stderr
    [process] = processes
    begins, ends = json.loads((tmp_path / "times.json").read_text())
    assert process.made == len(ends)
    expected = [loop for _, loops in PARTS.values() for loop in loops]
    assert [(loop.batches, loop.rows, loop.samples) for loop in process.loops] == expected
    steps = list(process.steps_between(0, process.made))
    # A first step of which nothing tells the beginning is left out.
    moments = sorted([*begins, *ends])
    pairs = [(before, end) for before, end in pairwise(moments) if end in set(ends)]
    assert len(steps) == len(pairs)
    for (began, ended), step in zip(pairs, steps, strict=True):
        assert step.seconds == pytest.approx(ended - began, abs=0.005)
    known = [loop.rows_of_steps() for loop in process.loops]
    assert known[1:5] == [[4] * 5, [4] * 5, [4] * 3, [4] * 2]
    assert known[-1] == [6, 6, 6]
    assert process.loops[-1].steps_in_all == 7 * 3 / 6


RANKS = """
import os, sys, time
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("gloo")
rows = TensorDataset(torch.arange(4000.0).reshape(-1, 1))
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
made = 0
try:
    for epoch in range(100):
        for [batch] in DataLoader(rows, batch_size=4, sampler=DistributedSampler(rows)):
            model(batch).sum().backward()
            time.sleep(0.01)
            optimizer.step()
            made += 1
except Exception:
    sys.exit("the end of the window looks like an error")
finally:
    print("made", made)
"""


@pytest.mark.torch
def test_all_ranks_end_at_the_same_step_and_the_script_cleans_up(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    marks = tmp_path / "marks0"
    marks.mkdir()
    (tmp_path / "script.py").write_text(RANKS, encoding="utf-8")
    ranks = [
        subprocess.Popen(
            [interpreter("torch"), str(tmp_path / "script.py")],
            env=os.environ
            | {
                "ESCALA_STEPS": str(marks), "PYTHONPATH": str(HOOK), "ESCALA_WINDOW": "0.5",
                "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]  # fmt: skip
    printed = [rank.communicate(timeout=120)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    last = json.loads((tmp_path / "window.json").read_text())["last"]
    processes = seen.read(marks)
    assert [process.made for process in processes] == [last, last]
    # The step in which the process ends is counted by nobody else.
    assert printed == [f"made {last - 1}\n"] * 2
    window = seen.window_of(processes)
    assert window.epoch_steps == 500
    [epoch], _ = window.epochs
    assert len(epoch.steps) >= 5
    assert epoch.train_seconds >= 0.01 * epoch.count
    # A step that the machine interrupted is left out of the epoch, but not of the window.
    windows = (process.steps_between(process.steady, last) for process in processes)
    assert max(sum(steps.seconds for steps in steady) for steady in windows) >= 0.5


KERAS = """
import numpy, keras
data = numpy.ones((6, 1)), numpy.ones((6, 1))
one, other = (keras.Sequential([keras.layers.Dense(1)]) for _ in range(2))
for model in (one, other):
    model.compile("sgd", "mse")
one.fit(*data, batch_size=2, epochs=2, verbose=0)
for _ in range(5):
    one.train_on_batch(*data)
    other.train_on_batch(*data)
"""


@pytest.mark.tensorflow
def test_batches_of_keras_are_steps_in_fit_and_in_a_loop_of_the_script(tmp_path):
    done, processes = start(KERAS, tmp_path, "tensorflow")
    assert done.returncode == 0, done.stderr
    [process] = processes
    # `fit` calls no `train_on_batch`, and models that take turns make one step.
    assert [loop.batches for loop in process.loops] == [3, 3]
    assert [len(loop.steps) for loop in process.loops] == [3, 3 + 5]
