"""What the engine of PyTorch does with modules of a user, in the environment of PyTorch."""

from __future__ import annotations

import json
import subprocess

import pytest

from escala.core.variables import passed
from escala.engines import environments

pytestmark = pytest.mark.torch

BEGIN = """
import copy
from types import SimpleNamespace
import numpy as np
import torch
from torch import nn
from escala.core.errors import InputError
from escala.data.base import Spec
from escala.engines.torch import arrays, functions, layers, ranks
"""
#: Layers that Keras does not have keep all that is theirs, under a name of its own.
ARRAYS = """
class Scaled(nn.Linear):
    def __init__(self):
        super().__init__(2, 3)
        self.scale = nn.Parameter(torch.ones(1))

model = nn.Sequential(
    Scaled(), nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), nn.BatchNorm1d(3),
)
kept = arrays.values(model)
assert [name for name in kept if name.startswith("0/")] == ["0/kernel", "0/bias", "0/scale"]
assert "1/kernel" not in kept and sum("original" in name for name in kept) == 2
assert not any("num_batches" in name for name in kept)
trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
assert arrays.parameters(model) == trained + 2 * 3
other = copy.deepcopy(model)
with torch.no_grad():
    for each in other.parameters():
        each.add_(1)
arrays.set_values(other, kept)
rows = torch.rand(4, 2)
assert torch.equal(model[:3].eval()(rows), other[:3].eval()(rows))
"""
#: A layer that the workload froze stays in the mode of evaluation.
MODES = """
model = nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5), nn.BatchNorm1d(3).eval())
losses = lambda targets, outputs, settings: outputs.sum(1)
work = SimpleNamespace(__file__="model_torch.py", row_losses=losses)
functions.Functions(work, {}).output_form(model, [Spec("x", (2,), "float32")])
assert [each.training for each in model] == [True, True, False] and model.training
evaluate = functions.Functions(work, {}).compile_evaluation(model, (), torch.sum)
rows = np.ones((4, 2), np.float32), np.zeros(4, np.int64)
assert evaluate(*rows)[1] == evaluate(*rows)[1], "without dropout"
assert [each.training for each in model] == [True, True, False] and model.training
sgd, lbfgs = (kind(model.parameters(), 0.1) for kind in (torch.optim.SGD, torch.optim.LBFGS))
functions.Functions(work, {}).refuse_ignored(model, sgd)
for optimizer, said in ((lbfgs, "LBFGS"), (sgd, "mode of evaluation")):
    try:
        functions.Functions(work, {}).refuse_ignored(model, optimizer)
    except InputError as error:
        assert said in str(error)
    else:
        raise AssertionError
    model.eval()
"""
#: A single value of each channel is its own mean; with more values it is PyTorch's layer.
ONE_VALUE = """
layer, theirs = layers.batch_normalisation(3, 0.9), nn.BatchNorm2d(3, 1e-3, 0.1)
rows = torch.rand(2, 3, 2, 2)
assert torch.equal(layer(rows), theirs(rows))
nn.init.uniform_(layer.weight), nn.init.uniform_(layer.bias)
mean, variance = layer.running_mean.clone(), layer.running_var.clone()
one = torch.rand(1, 3, 1, 1, requires_grad=True)
found = layer(one)
assert torch.equal(found.flatten(), layer.bias)
torch.testing.assert_close(layer.running_mean, 0.9 * mean + 0.1 * one.flatten())
torch.testing.assert_close(layer.running_var, 0.9 * variance)
together = layers.SynchronisedBatchNorm(3, 1e-3, 0.1)
together.load_state_dict(layer.state_dict())
found.square().sum().backward()
ours = one.grad.clone()
layer.eval(), together.train()
one.grad = None
together(one).square().sum().backward()
torch.testing.assert_close(ours, one.grad, atol=1e-5, rtol=0)
torch.testing.assert_close(layer.weight.grad, together.weight.grad, atol=1e-5, rtol=0)
torch.testing.assert_close(layer.bias.grad, together.bias.grad)
"""
#: A mask in a buffer is the same after an epoch in which a rank had no rows.
INFINITE = """
mask = torch.tensor([0.0, float("-inf")])
other = np.array([0.0, float("-inf"), 1.0])
group = ranks.Ranks({}, None)
group.total = lambda own: own + 5 * other
group.agree([mask], 0)
assert mask.tolist() == [0.0, float("-inf")]
"""
#: Layers in a list of Python are not found by PyTorch.
NOTHING = """
class Lost(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(2, 3)]

work = SimpleNamespace(
    build=lambda *given: Lost(), row_losses=None, __file__="model_torch.py"
)
try:
    functions.Functions(work, {}).build((), (), {})
except InputError as error:
    assert "nothing of the model is trained" in str(error) and "nn.ModuleList" in str(error)
else:
    raise AssertionError
"""

CASES = {
    "arrays": ARRAYS,
    "modes": MODES,
    "one value": ONE_VALUE,
    "infinite buffer": INFINITE,
    "nothing trained": NOTHING,
}
#: Run each case of the standard input in a fork, and print its name and how it ended.
FORKS = """
import json, os, sys, traceback

for name, code in json.load(sys.stdin).items():
    child = os.fork()
    if not child:
        try:
            exec(code, globals())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(json.dumps([name, os.waitpid(child, 0)[1]]), flush=True)
"""


@pytest.fixture(scope="module")
def ends() -> tuple[dict[str, int], str]:
    """Return how the process of each case ended, and what they said."""
    python = environments.python("torch")
    done = subprocess.run(
        [python, "-P", "-c", BEGIN + FORKS],
        input=json.dumps(CASES),
        env=environments.variables(python, passed()) | {"PYTHONPATH": str(environments.ROOT)},
        capture_output=True,
        text=True,
    )
    return dict(map(json.loads, done.stdout.splitlines())), done.stderr


@pytest.mark.parametrize("name", CASES)
def test_modules_of_users(ends, name):
    codes, said = ends
    assert codes.get(name) == 0, said
