"""Measure how much longer a step takes if its process waits before it.

One process on one core makes steps of a small perceptron, and sleeps between them or spins in an
empty loop. Blocks of all waits and of both numbers of rows alternate, so a drift of the machine
reaches all of them. docs/decisions/037-calibration.md has results. Run it as
`python -m benchmarks.waits` in the project.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable

ROWS = (32, 128)
SLEEPS, SPINS = (0.001, 0.002, 0.005, 0.02), (0.002, 0.005)
#: Steps of a block, of which the first ones are left out: they follow another wait.
STEPS, LEFT_OUT = 30, 3
FEATURES, CLASSES, HIDDEN, EXAMPLES = 61, 10, 256, 1257


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--core", type=int, default=0, help="to run on; default: %(default)s")
    parser.add_argument(
        "--seconds", type=float, default=60, help="of measurement; default: %(default)s"
    )
    arguments = parser.parse_args()
    os.sched_setaffinity(0, {arguments.core})
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    import numpy as np

    step = _step()
    waits = [("nothing", time.sleep, None)]
    waits += [("sleep", time.sleep, seconds) for seconds in SLEEPS]
    waits += [("spin", _spin, seconds) for seconds in SPINS]
    found: dict[tuple, list[float]] = {}
    end = time.monotonic() + arguments.seconds
    while time.monotonic() < end:
        for name, wait, seconds in waits:
            for rows in ROWS:
                times = []
                for _ in range(STEPS):
                    began = time.perf_counter()
                    step(rows)
                    times.append(time.perf_counter() - began)
                    if seconds:
                        wait(seconds)
                found.setdefault((name, seconds, rows), []).extend(times[LEFT_OUT:])
    for (name, seconds, rows), times in found.items():
        low, median, high = 1e3 * np.quantile(times, [0.25, 0.5, 0.75])
        between = f"{name} {1e3 * seconds:g} ms" if seconds else name
        print(
            f"{between:12} {rows:4} rows: {median:.2f} ms, quartiles {low:.2f} and {high:.2f}, "
            f"{len(times)} steps"
        )


def _step() -> Callable[[int], None]:
    """Return a function that gathers so many rows and trains on them."""
    import numpy as np
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(2)
    hidden = [tf.keras.layers.Dense(HIDDEN, activation="relu") for _ in range(2)]
    model = tf.keras.Sequential(
        [tf.keras.Input((FEATURES,)), *hidden, tf.keras.layers.Dense(CLASSES)]
    )
    random = np.random.default_rng(0)
    inputs = random.random((EXAMPLES, FEATURES), np.float32)
    targets = random.integers(0, CLASSES, EXAMPLES)
    variables = model.trainable_variables

    @tf.function(
        autograph=False,
        input_signature=[
            tf.TensorSpec((None, FEATURES), tf.float32),
            tf.TensorSpec((None,), tf.int64),
        ],
    )
    def train(taken, classes):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(classes, model(taken))
            loss = tf.reduce_mean(losses)
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(0.01 * gradient)

    def step(rows: int) -> None:
        selected = random.integers(0, EXAMPLES, rows)
        train(inputs[selected], targets[selected])

    for rows in ROWS:
        step(rows)
    return step


def _spin(seconds: float) -> None:
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


if __name__ == "__main__":
    main()
