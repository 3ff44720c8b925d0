"""The parameter server's coordinator, without the tasks that it talks to."""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf

from escala.core import children
from escala.engines.tensorflow.parameter_server import ParameterServerRanks
from escala.strategies.base import Place
from tests.conftest import KNOBS


@pytest.fixture
def strategy() -> ParameterServerRanks:
    place = Place(
        process=0, processes=2, ranks=[0], node=0, nodes=1, local=0, processes_per_node=2,
        host="localhost", cores=[0], addresses=["127.0.0.1:1", "127.0.0.1:2"],
        extra_addresses=["127.0.0.1:3", "127.0.0.1:4"],
    )  # fmt: skip
    return ParameterServerRanks(KNOBS | {"threads": {"intra_op": 1, "inter_op": 1}}, place)


def test_its_tasks_end_if_it_cannot_start(strategy, monkeypatch):
    started = []

    def start(job):
        started.append(children.start(["sleep", "60"], os.environ, None))
        return started[-1]

    def refuse(resolver):
        raise ValueError("no cluster")

    monkeypatch.setattr(strategy, "_start", start)
    monkeypatch.setattr(tf.distribute, "ParameterServerStrategy", refuse)
    try:
        with pytest.raises(ValueError, match="no cluster"):
            strategy.start()
        assert len(started) == 2
        assert all(task.poll() is not None for task in started)
    finally:
        children.stop(started, grace_seconds=0)


def test_every_sum_of_a_step_is_returned(strategy):
    """A step may return any number of sums. Here, workers run at once in this process."""
    strategy.tf_strategy = SimpleNamespace(run=lambda step, args: step(*args))
    strategy._coordinator = SimpleNamespace(
        schedule=lambda function, args: SimpleNamespace(fetch=lambda: function(*args).numpy())
    )

    def step(values):
        return tf.reduce_sum(values), tf.reduce_sum(values**2), tf.reduce_max(values)

    run = strategy.compiled(step, [tf.TensorSpec((None,), tf.float32)])
    parts = [np.array([1, 2], np.float32), np.array([3], np.float32)]
    assert [float(value) for value in run([(part,) for part in parts])] == [6, 14, 5]
