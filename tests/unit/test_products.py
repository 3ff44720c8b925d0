"""Products in bfloat16: where TensorFlow computes them, and what it keeps in float32."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from escala.core.errors import Unavailable
from escala.core.hardware import has_instructions
from escala.engines import base
from escala.engines.tensorflow import engine
from tests.conftest import ROOT

#: 1 + 2^-12 is 1 in bfloat16, so a product of `SIZE` terms tells in which type it was computed.
SMALL, SIZE = 2.0**-12, 256
PROGRAM = f"""
import json, sys
import numpy as np, tensorflow as tf
from escala.engines.tensorflow.engine import set_products
from escala.engines.tensorflow.building import as_graph
set_products(sys.argv[1])
weights = tf.Variable(tf.fill(({SIZE}, {SIZE}), 1 + {SMALL}))
rows = np.ones((32, {SIZE}), np.float32)

@as_graph()
def step(rows):
    with tf.GradientTape() as tape:
        outputs = tf.nn.relu(rows @ weights)
        loss = tf.reduce_sum(outputs)
    weights.assign_sub({SMALL} * tape.gradient(loss, weights))
    return outputs

outputs = step(rows)
results = [(tensor.dtype.name, float(tensor[0, 0])) for tensor in (outputs, weights)]
print(json.dumps([*results, tf.config.experimental.tensor_float_32_execution_enabled()]))
"""


def computed(products: str) -> list:
    """Return what PROGRAM finds.

    Dtype and value of a product, those of weights updated by its gradient, and whether a GPU, of
    which there is none here, would round factors.
    """
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, products], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


#: The gradient of the sum of products of ones is exact in both types.
UPDATED = ["float32", 1 + SMALL - 32 * SMALL]


@pytest.mark.parametrize(("products", "rounds"), [("float32", False), ("tensor-float-32", True)])
def test_products_in_float32_are_exact_and_only_the_knob_lets_a_gpu_round_factors(products, rounds):
    assert computed(products) == [["float32", SIZE * (1 + SMALL)], UPDATED, rounds]


@pytest.mark.skipif(not has_instructions(base.BFLOAT16), reason=f"no {base.BFLOAT16} here")
def test_products_in_bfloat16_round_their_factors_and_weights_stay_as_they_are():
    assert computed("bfloat16")[:2] == [["float32", SIZE], UPDATED]


def test_a_processor_without_instructions_for_bfloat16_is_refused(monkeypatch):
    monkeypatch.setattr(base, "has_instructions", lambda name: False)
    with pytest.raises(Unavailable, match="needs a processor with avx512_bf16"):
        engine.set_products("bfloat16")
