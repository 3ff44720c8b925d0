"""The layers before a dense one: which ranks may compute again, and that they stay the model's."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.keras import layers

from escala.data.base import Arrays
from escala.engines import costs
from escala.engines.tensorflow import exchanges
from escala.engines.tensorflow.exchanges import data_bytes, layers_before
from escala.engines.tensorflow.gradients import ROWS, described
from escala.engines.tensorflow.lookup import Lookup
from escala.workloads.virus_cnn import model as virus_cnn
from tests.conftest import KNOBS


class Doubled(layers.Layer):
    def call(self, values):
        return 2.0 * values


def network(*before: layers.Layer, shape: tuple = (1000,), dtype: str = "uint8"):
    """Return a model that ends in a large dense layer, and this layer."""
    large = layers.Dense(64, name="large")
    chain = [layers.Input(shape, dtype=dtype), *before, layers.Flatten(), large]
    return tf.keras.Sequential(chain), large


def selected(model: tf.keras.Model, wanted: str = costs.RECOMPUTE, one_node: bool = False) -> dict:
    found = exchanges.selected(model, tf.keras.optimizers.SGD(), wanted, 64, 2, one_node)
    return {layer.name: exchange for layer, exchange in found.items()}


@pytest.mark.parametrize("way", ["layers", "lookup-table", "lookup-operation"])
def test_the_input_is_computed_with_the_variables_of_the_model(way):
    """Also after it was asked for twice, and after the model has been trained."""
    model = virus_cnn.network(40, 3, way)
    dense = model.layers[-3]
    variables = [id(variable) for variable in model.variables]
    expected_of = tf.keras.Model(model.inputs, dense.input)
    codes = np.random.default_rng(0).integers(0, 5, (6, 40)).astype(np.uint8)
    found = [layers_before(model, dense) for _ in range(2)]
    for scale in (1.0, 3.0):
        model.set_weights([scale * array for array in model.get_weights()])
        for before in found:
            np.testing.assert_allclose(before(codes), expected_of(codes), rtol=1e-5, atol=1e-6)
    assert [id(variable) for variable in model.variables] == variables


def test_lookups_replace_plain_convolutions_before_the_layer():
    plain = virus_cnn.network(40, 3)
    assert isinstance(layers_before(plain, plain.layers[-3]).layers[0], Lookup)
    padded = [layers.Embedding(5, 8), layers.Conv1D(4, 3, padding="same"), layers.MaxPool1D(2)]
    before = layers_before(*network(*padded))
    assert not any(isinstance(layer, Lookup) for layer in before.layers)


@pytest.mark.parametrize(
    ("before", "again"),
    [
        ([layers.Embedding(5, 8), layers.Conv1D(4, 3, activation="relu")], True),
        ([layers.Embedding(5, 8), Doubled()], False),
        ([layers.Embedding(5, 8), layers.Dropout(0.5)], False),
        ([layers.Embedding(5, 8), layers.BatchNormalization()], False),
        ([layers.Embedding(5, 8), layers.Dense(4, tf.nn.relu)], False),
        ([layers.Embedding(5, 8), layers.Activation(lambda values: 2 * values)], False),
    ],
    ids=["keras", "unknown", "chance", "rows together", "other", "function"],
)
def test_layers_that_may_do_anything_are_not_computed_again(before, again):
    model, large = network(*before)
    found = layers_before(model, large)
    assert (found is not None) == again
    assert selected(model)["large"] == (costs.RECOMPUTE if again else costs.ALLREDUCE)
    assert found is None or data_bytes(found) == 1000


@pytest.mark.parametrize(
    ("shape", "dtype", "size"),
    [((1000,), "uint8", 1000), ((30, 4), "float32", 480), ((8,), "uint32", None)],
)
def test_the_bytes_of_a_row_of_data(shape, dtype, size):
    model, _ = network(shape=shape, dtype=dtype)
    assert data_bytes(model) == size


def test_data_of_any_length_have_no_bytes_that_are_known():
    inputs = layers.Input((None,), dtype="uint8")
    assert data_bytes(tf.keras.Model(inputs, layers.Embedding(5, 8)(inputs))) is None


def test_a_layer_that_receives_several_rows_for_each_is_summed():
    reshaped = layers.Lambda(lambda values: tf.reshape(values, (-1, 4000)))
    model = tf.keras.Sequential([layers.Input((8000,)), reshaped, layers.Dense(640, name="large")])
    for wanted in (costs.RECOMPUTE, costs.SHARED_MEMORY):
        assert selected(model, wanted, one_node=True) == {"large": costs.ALLREDUCE}
    assert selected(model, costs.FACTORS) == {"large": costs.FACTORS}


@pytest.mark.parametrize("convolution", ["layers", "lookup-table"])
def test_a_calibration_times_the_layers_that_ranks_may_compute_again(
    small_split, request_for, convolution
):
    training = request_for("single", "1x1")["training"]
    listed = described("virus-cnn", small_split, training, KNOBS | {"convolution": convolution})
    first, *others = [each for each in listed if each["factor_rows"]]
    assert first["shape"][1] == 128 and first["data_bytes"] == small_length(small_split)
    assert [each["rows"] for each in first["recompute"]] == [*ROWS]
    assert all(each["seconds"] > 0 for each in first["recompute"])
    # Smaller layers are always summed.
    assert others and not any("recompute" in each for each in others)


def small_length(split) -> int:
    """Return the bytes of a row: one for each letter."""
    return Arrays(split).inputs[0].shape[0]
