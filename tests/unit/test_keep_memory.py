"""Memory that is freed stays with the process, if the knob `keep_memory` is set."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

from escala.runtime import launch
from escala.strategies import STRATEGIES
from escala.strategies.knobs import complete, readable

#: It writes to 64 MiB of new memory 20 times, and prints how often the system cleared a page.
FREEING = """
import resource
import numpy as np
for _ in range(20):
    np.empty(2**26, np.uint8).fill(1)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""
#: Pages of 64 MiB, if the system has large ones for the array or not.
PAGES = 2**26 // os.sysconf("SC_PAGE_SIZE")


def knobs(keep_memory: bool) -> dict:
    threads = {"intra_op": 1, "inter_op": 1}
    return complete({"keep_memory": keep_memory, "threads": threads}, "virus-cnn")


def faults(keep_memory: bool) -> int:
    # NumPy asks for large pages, with which there are fewer faults in either case.
    variables = STRATEGIES["ddp-gloo"].environment(knobs(keep_memory))
    variables["NUMPY_MADVISE_HUGEPAGE"] = "0"
    done = subprocess.run(
        [sys.executable, "-c", FREEING],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=True,
    )
    return int(done.stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the variables are those of glibc")
def test_a_page_is_cleared_once_and_not_in_each_step():
    assert faults(keep_memory=False) - faults(keep_memory=True) > 10 * PAGES


#: It makes steps of a convolution whose parts are large, and prints the page faults of 5 of them
#: and a digest of the weights. Without oneDNN's kernels, as on processors without `avx512_vnni`.
STEPS = """
import hashlib, resource
import numpy as np
import tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(1)
tf.keras.utils.set_random_seed(0)
model = tf.keras.Sequential([tf.keras.layers.Conv1D(64, 2), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.1)
inputs = tf.constant(np.random.default_rng(0).random((96, 2000, 8), np.float32))
model(inputs[:1])

@tf.function
def step():
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(inputs) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

for _ in range(2):
    step()
before = faults()
for _ in range(5):
    step()
digest = hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.weights))
print(faults() - before, digest.hexdigest())
"""


def test_tensorflow_keeps_its_memory_and_computes_the_same():
    def trained(keep_memory: bool) -> tuple[int, str]:
        variables = launch.environment("single", knobs(keep_memory))
        done = subprocess.run(
            [sys.executable, "-c", STEPS],
            env=os.environ | variables | {"TF_ENABLE_ONEDNN_OPTS": "0"},
            capture_output=True,
            text=True,
            check=True,
        )
        number, digest = done.stdout.split()
        return int(number), digest

    (given, same), (kept, digest) = trained(keep_memory=False), trained(keep_memory=True)
    assert kept < 0.05 * given and given > 10_000
    assert digest == same


@pytest.mark.parametrize("strategy", [name for name in STRATEGIES if STRATEGIES[name].engine])
def test_one_knob_keeps_the_memory_of_each_engine_and_none_of_a_program(strategy):
    given, kept = (launch.environment(strategy, knobs(keep)) for keep in (False, True))
    assert given.items() < kept.items()
    assert "keep_memory" in readable(knobs(True), strategy)
    assert "keep_memory" not in readable(knobs(True), strategy, takes_steps=False)
