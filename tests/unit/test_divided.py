"""Which exchange a dense layer has, what ranks receive for it, and who updates which rows."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from escala.engines import costs
from escala.engines.tensorflow.fast.dense import selected
from escala.engines.tensorflow.fast.shared_memory import can_be_shared, partition
from escala.engines.tensorflow.ranks import Ranks
from escala.engines.tensorflow.state import State

#: The plan of one rank, as far as its state needs it.
ALONE = {"ranks": 1, "knobs": {"accumulation": 1}}


@given(rows=st.integers(1, 10_000), ranks=st.integers(1, 64))
def test_the_parts_are_even_disjoint_and_complete(rows, ranks):
    sizes = partition(rows, ranks)
    assert len(sizes) == ranks and sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


def test_kernels_that_cannot_be_updated_in_parts():
    layer = wide_and_narrow().layers[0]
    optimizers = tf.keras.optimizers

    class Own(optimizers.SGD):
        """May do anything."""

    assert can_be_shared(optimizers.SGD(), layer, 2000)
    assert not can_be_shared(optimizers.SGD(), layer, 2001)
    assert not can_be_shared(Own(), layer, 2)
    assert not can_be_shared(optimizers.legacy.SGD(), layer, 2)
    assert not can_be_shared(optimizers.Adafactor(), layer, 2)
    assert not can_be_shared(optimizers.SGD(clipnorm=1.0), layer, 2)
    assert can_be_shared(optimizers.SGD(clipvalue=1.0), layer, 2)
    assert not can_be_shared(optimizers.SGD(global_clipnorm=1.0), layer, 2)
    assert not can_be_shared(optimizers.SGD(use_ema=True), layer, 2)
    layer.kernel_constraint = tf.keras.constraints.MaxNorm()
    assert not can_be_shared(optimizers.SGD(), layer, 2)


def test_the_optimizer_is_left_as_it_was():
    optimizer = tf.keras.optimizers.Adam()
    State(wide_and_narrow(), optimizer, ALONE, Ranks({}, None))
    assert "add_variable_from_reference" not in vars(optimizer)
    assert optimizer._built


def test_values_of_another_number_of_variables_are_not_restored():
    state = State(wide_and_narrow(), tf.keras.optimizers.SGD(), ALONE, Ranks({}, None))
    with pytest.raises(ValueError, match="shorter"):
        state.restore(state.values()[:-1])


def received(exchange: str, product: costs.Product, ranks: int) -> list[float]:
    """Return the bytes that each rank receives, counted matrix by matrix."""
    inputs, outputs, rows, number_bytes = product
    found = []
    for rank in range(ranks):
        columns, mine = (np.full(ranks, n // ranks) for n in (inputs, rows))
        others = np.arange(ranks) != rank
        numbers = {
            # A ring receives each part of the sum but one, and then each sum but one.
            "allreduce": 2 * (ranks - 1) * inputs * outputs / ranks,
            "factors": mine[others].sum() * (inputs + outputs),
            "shared-memory": mine[others].sum() * (columns[rank] + outputs),
        }
        found.append(number_bytes * numbers[exchange])
    return found


@pytest.mark.parametrize("exchange", costs.EXCHANGES)
@given(
    ranks=st.sampled_from([1, 2, 4, 8]),
    sizes=st.tuples(*[st.integers(1, 100)] * 2),
    outputs=st.integers(1, 50),
)
def test_the_bytes_are_those_of_the_matrices(exchange, ranks, sizes, outputs):
    inputs, rows = (8 * size for size in sizes)
    product = costs.Product(inputs, outputs, rows)
    expected = received(exchange, product, ranks)
    assert costs.received_bytes(exchange, product, ranks) == pytest.approx(expected[0])
    assert max(expected) == pytest.approx(min(expected))


def wide_and_narrow(dtype: str = "float32") -> tf.keras.Model:
    layers = [
        tf.keras.Input((2000,), dtype=dtype),
        tf.keras.layers.Dense(256, name="wide", dtype=dtype),
        tf.keras.layers.Dense(8, name="narrow", dtype=dtype),
    ]
    return tf.keras.Sequential(layers)


@pytest.mark.parametrize(
    ("wanted", "optimizer", "dtype", "wide"),
    [
        ("factors", "SGD", "float32", "factors"),
        ("factors", "Adafactor", "float64", "factors"),
        ("shared-memory", "SGD", "float32", "shared-memory"),
        ("shared-memory", "Adafactor", "float32", "allreduce"),
        ("shared-memory", "SGD", "float64", "allreduce"),
    ],
)
def test_each_layer_has_the_exchange_it_can_have(wanted, optimizer, dtype, wide):
    for one_node in (True, False):
        model, built = wide_and_narrow(dtype), getattr(tf.keras.optimizers, optimizer)()
        # Of two ranks with eight rows together.
        found = selected(model, built, wanted, 8, 2, one_node)
        found = {layer.name: exchange for layer, exchange in found.items()}
        possible = one_node or wanted != "shared-memory"
        assert found == {"wide": wide if possible else "allreduce", "narrow": "allreduce"}


def test_a_layer_that_receives_several_rows_for_each_is_not_shared():
    reshaped = tf.keras.layers.Lambda(lambda values: tf.reshape(values, (-1, 4000)))
    layers = [tf.keras.Input((8000,)), reshaped, tf.keras.layers.Dense(640, name="large")]
    model, optimizer = tf.keras.Sequential(layers), tf.keras.optimizers.SGD()
    for wanted, exchange in ((costs.SHARED_MEMORY, costs.ALLREDUCE), (costs.FACTORS,) * 2):
        assert [*selected(model, optimizer, wanted, 64, 2, True).values()] == [exchange]
