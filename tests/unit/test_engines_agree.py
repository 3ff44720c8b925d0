"""Networks of all engines agree from the same weights and rows; modules of a user in PyTorch."""

from __future__ import annotations

import json
import subprocess

import pytest
from engines_agree import SMALL, compared, offering

from escala.core.engines import DEFAULT, ENGINES
from escala.core.variables import for_ranks
from escala.engines import environments
from tests.conftest import PYTHONS, selected

#: Largest relative differences of sums in another order, by precision; then those of what follows
#: in 32 bits, where a maximum of nearly equal numbers is another one, or where an optimizer divides
#: by a small gradient.
ROUNDING, FOLLOWING = {"float64": 1e-7, "float32": 1e-5}, {"float64": 1e-5, "float32": 5e-3}
#: The same of weights after some steps: RMSprop makes as large a step by a gradient of nothing but
#: rounding as by any other, and processors round differently (0.020 on an Intel Xeon of family 6
#: model 207).
UPDATED = 0.05

#: The smallest graph; `test_engines` trains `virus-cnn` in each engine.
QUICK = ("mlp",)
CASES = [
    pytest.param(
        engine, name, id=f"{engine}-{name}",
        marks=[getattr(pytest.mark, engine), *([] if name in QUICK else [pytest.mark.sweep])],
    )
    for engine in ENGINES
    if engine != DEFAULT
    for name in offering(engine, SMALL)
]  # fmt: skip


@pytest.fixture(scope="module")
def differences(request) -> dict[str, dict]:
    cases = {name: SMALL[name] for name in selected(request, "name")}
    return compared(cases, {*PYTHONS.values()} - {DEFAULT})


@pytest.mark.parametrize(("engine", "name"), CASES)
def test_losses_gradients_and_steps_are_those_of_tensorflow(engine, name, differences):
    case = SMALL[name]
    for precision, found in differences[engine][name].items():
        rounding, following = ROUNDING[precision], FOLLOWING[precision]
        assert found["parameters"] == case.parameters
        assert found["initial_difference"] < 1e-6, "weights that a seed gives"
        assert found["loss_difference"] < rounding
        assert found["gradient_difference"] < following, found["gradient"]
        assert found["curve_difference"] < following
        first, last = found["curve"]
        assert last != first, "the steps change something"
    assert found["evaluation_difference"] < rounding
    # In 64 bits the moving variance of Keras is another one.
    assert found["end_difference"] < UPDATED


BEGIN = """
import copy, json, sys
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
group.average_buffers([mask], 0)
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
#: Each case of the standard input starts from what is imported.
CALL = """
for name, code in json.load(sys.stdin).items():
    exec(code, dict(globals()))
    print(name)
"""


@pytest.mark.torch
def test_modules_of_users():
    python = environments.python("torch")
    done = subprocess.run(
        [python, "-P", "-c", BEGIN + CALL],
        input=json.dumps(CASES),
        env=environments.variables(python, for_ranks()) | {"PYTHONPATH": str(environments.ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [*CASES], done.stderr
