"""The lines that divide a script over processes: with them it trains as one process does."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from escala.draft import divide
from escala.engines import environments
from escala.runtime.node import LOOPBACK, describe
from tests.conftest import ROOT

#: As in the examples of PyTorch: the loader, the model and the optimizer in `main`, the steps not.
TORCH = '''\
"""Train a small network."""
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(net, device, loader, optimizer, epoch):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.mse_loss(net(x.to(device)), y.to(device)).backward()
        optimizer.step()
    print("rows", len(loader) * len(x), flush=True)


def main():
    parser = argparse.ArgumentParser()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.manual_seed(0)
    more = {"batch_size": 32, "shuffle": False}
    values = torch.randn(256, 8)
    data = TensorDataset(values, values.sum(1, keepdim=True))
    test_loader = DataLoader(data, batch_size=64)
    train_loader = DataLoader(
        data, batch_size=32
    )
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for epoch in range(1, 4):
        train(net, device, train_loader, optimizer, epoch)
    torch.save(net.state_dict(), "net.pt")
    print("weights", [round(float(w.detach().sum()), 4) for w in net.parameters()], flush=True)


if __name__ == "__main__":
    main()
'''
#: The loader in a function that shuffles by its place, before the network is there.
TORCH_LOADED = (
    TORCH.replace("    test_loader = DataLoader(data, batch_size=64)\n", "")
    .replace("DataLoader(\n        data, batch_size=32\n    )", "load(data)")
    .replace("def main():", """\
def load(data):
    train_loader = DataLoader(data, 32, True)
    return train_loader


def main():""")
)  # fmt: skip
#: Without functions and without a loader; two networks, as of a GAN.
TORCH_FLAT = """\
import torch
one, two = torch.nn.Linear(4, 4), torch.nn.Linear(4, 1)
optimizer_one = torch.optim.SGD(one.parameters(), 0.1)
optimizer_two = torch.optim.SGD(two.parameters(), 0.1)
for step in range(5):
    two(one(torch.randn(8, 4))).square().mean().backward()
    optimizer_one.step()
    optimizer_two.step()
print("rows 40")
print("weights", [float(w.sum()) for n in (one, two) for w in n.parameters()], flush=True)
"""
JAX = """\
import jax
import jax.numpy as jnp
import numpy as np


def loss(weights, x, y):
    return jnp.mean((x @ weights - y) ** 2)


@jax.jit
def step(weights, x, y):
    value, gradient = jax.value_and_grad(loss)(weights, x, y)
    return weights - 0.1 * gradient, value


values = np.random.default_rng(0).normal(size=(256, 4)).astype(np.float32)
weights = jnp.zeros(4)
for epoch in range(3):
    for start in range(0, 256, 32):
        x, y = values[start : start + 32], values[start : start + 32].sum(1)
        weights, value = step(weights, x, y)
print("weights", [round(float(w), 4) for w in np.asarray(weights)], flush=True)
"""
TENSORFLOW = """\
import numpy as np
import tensorflow as tf
from tensorflow import keras

keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(256, 4)).astype(np.float32)
model = keras.Sequential([keras.layers.Dense(8, activation="relu"), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(x, x.sum(1), batch_size=32, epochs=3, verbose=2)
print("weights", [round(float(w.sum()), 4) for w in model.get_weights()], flush=True)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a folder whose scripts start as forks, as its name says to `tests/warm`."""
    (place := tmp_path / "tests").mkdir()
    return place


def divided(source: str, folder: Path) -> tuple[str, Path, int]:
    """Write a script and its divided copy; return the option, the copy and the number of lines."""
    (folder / "train.py").write_text(source)
    option, lines = divide.propose(folder / "train.py")
    copy = folder / "divided.py"
    # A process that hangs tells where.
    hangs = "import faulthandler; faulthandler.dump_traceback_later(60, exit=True)\n"
    copy.write_text(hangs + divide.insert(lines, source))
    assert all(line.text in divide.describe(folder / "train.py") for line in lines)
    return option, copy, len(lines)


def train(python: str, script: Path, *places: dict[str, str]) -> list[list[str]]:
    """Return the last weights that each of several processes prints."""
    common = os.environ | {"OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    common = environments.variables(python, common)
    started = [
        subprocess.Popen(
            [python, script],
            cwd=script.parent,
            env=common | place,
            stdout=subprocess.PIPE,
            text=True,
        )
        for place in places
    ]
    outputs = [process.communicate(timeout=120)[0] for process in started]
    assert [process.returncode for process in started] == [0] * len(places), outputs
    return [re.findall("weights .*", output) for output in outputs]


@pytest.mark.torch
@pytest.mark.parametrize(
    ("source", "number"),
    [
        (TORCH, 8),
        (TORCH_LOADED, 8),
        pytest.param(TORCH.replace("batch_size=32\n", "**more\n"), 8, marks=pytest.mark.sweep),
        pytest.param(TORCH_FLAT, 6, marks=pytest.mark.sweep),
    ],
)
@pytest.mark.usefixtures("cold")
def test_a_script_of_pytorch_trains_on_two_ranks_with_equal_weights(source, number, folder):
    """A fork of a process that holds PyTorch may wait for ever when it frees the model."""
    python = environments.python("torch")
    option, script, lines = divided(source, folder)
    assert (option, lines) == ("--torch", number)
    may_use_gpu = "device" in source
    assert [word in script.read_text() for word in ("nccl", "os, ")] == [may_use_gpu] * 2
    port = str(describe(LOOPBACK, 1).ports[0])
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": "2"}
    places = (common | {"RANK": rank, "LOCAL_RANK": rank} for rank in "01")
    one, two = train(python, script, *places)
    assert one == two and len(one) == 1
    if source not in (TORCH_LOADED, TORCH_FLAT):
        # Without shuffling, the rows of each step are those of one process.
        assert (folder / "net.pt").is_file()
        assert [one] == train(python, folder / "train.py", {})


@pytest.mark.jax
def test_a_script_of_jax_trains_as_one_process(folder):
    python = environments.python("jax")
    option, script, _ = divided(JAX, folder)
    address = f"127.0.0.1:{describe(LOOPBACK, 1).ports[0]}"
    common = {
        "JAX_COORDINATOR_ADDRESS": address,
        "OMPI_MCA_orte_hnp_uri": f"0.0;tcp://{address}",
        "OMPI_COMM_WORLD_SIZE": "2",
    }
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
    several = train(python, script, *(common | dict.fromkeys(names, rank) for rank in "01"))
    assert option == "--jax"
    assert several == train(python, folder / "train.py", {}) * 2


@pytest.mark.sweep
def test_a_script_of_keras_trains_as_one_process(folder):
    option, script, lines = divided(TENSORFLOW, folder)
    workers = [f"127.0.0.1:{port}" for port in describe(LOOPBACK, 2).ports]
    places = [
        json.dumps({"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}})
        for index in range(2)
    ]
    several = train(sys.executable, script, *({"TF_CONFIG": place} for place in places))
    assert (option, lines) == ("--tf-config", 2)
    assert several == train(sys.executable, folder / "train.py", {}) * 2


@pytest.mark.parametrize(
    "source",
    [
        "import torch\nprint('nothing is trained')",
        "import torch\nm = torch.nn.Linear(2, 2); o = torch.optim.SGD(m.parameters(), 0.1)",
        "import torch, horovod.torch as hvd\no = torch.optim.SGD(m.parameters(), 0.1)",
        "import torch\nclass A:\n    def f(self):\n        o = torch.optim.SGD(self.parameters())",
        "import numpy as np",
        "no python",
    ],
)
def test_nothing_is_proposed_where_it_is_not_certain(source, tmp_path):
    (tmp_path / "train.py").write_text(source)
    assert divide.propose(tmp_path / "train.py") is None


def test_what_is_proposed_for_the_examples_is_python():
    for file in (ROOT / "experiments" / "programs").glob("*.py"):
        if proposed := divide.propose(file):
            ast.parse(divide.insert(proposed[1], file.read_text()))
