"""Operations in C++ and lookups: products, convolutions, updates."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorflow.keras import layers
from test_operations import offered

from escala.core.errors import Unavailable
from escala.core.hardware import has_instructions
from escala.engines import base
from escala.engines.tensorflow import engine
from escala.engines.tensorflow.fast.dense import Factors
from escala.engines.tensorflow.fast.lookup import TABLE_BYTES, Lookup, look_up
from escala.engines.tensorflow.fast.rmsprop import OnePassRMSprop
from escala.training.process import digest
from escala.workloads.virus_cnn import model as virus_cnn
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


RATE, STEPS = 0.01, 50
#: Of the largest value: some ten roundings of float32 in each of 50 steps, which add up at worst.
OF_UPDATE = 1e-4
SHAPES = [(7, 16), (3, 5, 2), (1,), (700, 100)]


def gradients(scale: float) -> list[list[tf.Tensor | tf.IndexedSlices | Factors]]:
    """Gradients of some steps; every third time those of the first variable are some of its rows.

    A row is named twice. Those of the last variable are factors.
    """
    random = np.random.default_rng(1)
    found = []
    for step in range(STEPS):
        step_gradients = [
            tf.constant(scale * random.normal(size=s), tf.float32) for s in SHAPES[:-1]
        ]
        if step % 3 == 0:
            shape = tf.constant(SHAPES[0])
            step_gradients[0] = tf.IndexedSlices(
                step_gradients[0][:4], tf.constant([5, 0, 5, 2]), shape
            )
        x, d = random.normal(size=(8, 700)), scale * random.normal(size=(8, 100))
        factors = Factors(tf.constant(x, tf.float32), tf.constant(d, tf.float32))
        found.append([*step_gradients, factors])
    return found


def updating(optimizer: tf.keras.optimizers.Optimizer) -> tuple[list[tf.Variable], tf.function]:
    """Return variables, and what updates them by their gradients."""
    random = np.random.default_rng(0)
    weights = [tf.Variable(random.normal(size=shape).astype(np.float32)) for shape in SHAPES]
    optimizer.build(weights)

    def apply(found):
        if not isinstance(optimizer, OnePassRMSprop):
            found = [each.product() if isinstance(each, Factors) else each for each in found]
        optimizer.apply_gradients(zip(found, weights, strict=True))

    return weights, tf.function(apply)


# Squares of the smaller gradients are of epsilon's size.
@pytest.mark.parametrize("scale", [1.0, 3e-4])
@pytest.mark.parametrize("update", ["fused", "one-pass"])
def test_fifty_steps_are_those_of_keras(update, scale):
    results = []
    own = virus_cnn.optimizer({}, RATE, {"optimizer": update})
    for optimizer in (own, tf.keras.optimizers.RMSprop(RATE)):
        weights, update = updating(optimizer)
        for found in gradients(scale):
            update(found)
        results.append([v.numpy() for v in (*weights, *optimizer.variables)])
    for found, expected in zip(*results, strict=True):
        tolerance = OF_UPDATE * np.abs(expected).max()
        np.testing.assert_allclose(found, expected, rtol=OF_UPDATE, atol=tolerance)


@pytest.mark.parametrize(("update", "compiled"), [("keras", 0), ("fused", len(SHAPES))])
def test_each_variable_has_a_compiled_loop_if_asked_for(update, compiled):
    _, apply = updating(virus_cnn.optimizer({}, RATE, {"optimizer": update}))
    operations = apply.get_concrete_function(gradients(1.0)[1]).graph.get_operations()
    marked = [op for op in operations if "_XlaMustCompile" in op.node_def.attr]
    assert len(marked) == compiled


#: Of the largest value: sums of up to some hundred float32 numbers in another order.
OF_OPERATION = 1e-5
INSTRUCTIONS = [name for name in offered() if name != "avx512f"]


def expected(codes, tables, alphabet, k, stride, pool, upstream):
    """Return the values, and the gradient of their product with `upstream`, in float64."""
    tables = tables.astype(np.float64)
    taps = len(tables)
    places = codes.shape[1] - k + 1
    seen = (places - 1) // stride + 1
    positions = max(seen - taps + 1, 0) // pool
    values = np.zeros((len(codes), positions, tables.shape[2]))
    gradient = np.zeros_like(tables)
    digits = alphabet ** np.arange(k - 1, -1, -1)
    for row, letters in enumerate(codes.astype(int)):
        number = [letters[at : at + k] @ digits for at in range(places)]
        for position in range(positions):
            read = [
                [number[stride * (pool * position + j + t)] for t in range(taps)]
                for j in range(pool)
            ]
            sums = np.array([sum(tables[t, n] for t, n in enumerate(addends)) for addends in read])
            values[row, position] = np.maximum(sums.max(axis=0), 0)
            for column, j in enumerate(sums.argmax(axis=0)):
                if sums[j, column] > 0:
                    for t, n in enumerate(read[j]):
                        gradient[t, n, column] += upstream[row, position, column]
    return values, gradient


def found(codes, tables, upstream, *settings, instructions="auto"):
    tables = tf.constant(tables)
    with tf.GradientTape() as tape:
        tape.watch(tables)
        values = look_up(tf.constant(codes), tables, *settings, instructions)
        product = tf.reduce_sum(values * upstream)
    return values.numpy(), tape.gradient(product, tables).numpy()


@settings(max_examples=40)
@given(
    alphabet=st.integers(1, 5),
    k=st.integers(1, 3),
    taps=st.integers(1, 3),
    stride=st.integers(1, 3),
    pool=st.integers(1, 3),
    filters=st.sampled_from([1, 5, 8, 16, 17, 40]),
    rows=st.integers(0, 3),
    extra=st.integers(0, 7),
    instructions=st.sampled_from(INSTRUCTIONS),
    seed=st.integers(0, 2**16),
)
def test_values_and_gradients_are_those_of_numpy(
    alphabet, k, taps, stride, pool, filters, rows, extra, instructions, seed
):
    random = np.random.default_rng(seed)
    length = k + stride * (taps + pool - 2) + extra
    codes = random.integers(0, alphabet, (rows, length)).astype(np.uint8)
    tables = random.normal(size=(taps, alphabet**k, filters)).astype(np.float32)
    seen = (length - k) // stride + 1
    upstream = random.normal(size=(rows, (seen - taps + 1) // pool, filters)).astype(np.float32)
    asked = alphabet, k, stride, pool
    wanted = expected(codes, tables, *asked, upstream)
    for one, other in zip(
        found(codes, tables, upstream, *asked, instructions=instructions), wanted, strict=True
    ):
        assert one.shape == other.shape
        scale = np.abs(other).max(initial=0)
        np.testing.assert_allclose(one, other, rtol=0, atol=OF_OPERATION * scale)


def test_wider_vectors_give_the_same_values():
    random = np.random.default_rng(0)
    codes = random.integers(0, 5, (4, 60)).astype(np.uint8)
    tables = random.normal(size=(2, 125, 40)).astype(np.float32)
    upstream = np.ones((4, 14, 40), np.float32)
    first, *others = [
        found(codes, tables, upstream, 5, 3, 2, 2, instructions=name) for name in INSTRUCTIONS
    ]
    for other in others:
        np.testing.assert_equal(first, other)


@pytest.mark.parametrize("instructions", INSTRUCTIONS)
@pytest.mark.parametrize("tap", [0, 1])
def test_what_is_not_a_number_stays_so(tap, instructions):
    """So the loss of a diverged model is not finite, and its run ends."""
    tables = np.ones((2, 4, 16), np.float32)
    tables[tap, 2] = np.nan
    codes = np.array([[0, 2, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]], np.uint8)
    values = look_up(tf.constant(codes), tf.constant(tables), 4, 1, 1, 2, instructions).numpy()
    assert np.isnan(values[0, 0]).all() and np.isfinite(values[1]).all()


def test_a_code_outside_the_alphabet_is_refused():
    tables, codes = np.ones((1, 4, 8), np.float32), np.array([[0, 1, 4, 3]], np.uint8)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not in an alphabet of 4"):
        look_up(tf.constant(codes), tf.constant(tables), 4, 1, 1, 1)


def test_the_number_of_positions_is_known_before_there_are_rows():
    @tf.function(input_signature=[tf.TensorSpec((None, 60), tf.uint8)])
    def traced(codes):
        return look_up(codes, tf.ones((2, 125, 40)), 5, 3, 2, 2)

    assert traced.get_concrete_function().output_shapes.as_list() == [None, 14, 40]


#: Of the largest value: sums of some hundred float32 numbers, taken in another order.
TOLERANCE = 1e-5


def plain(
    alphabet: int, filters: tuple[int, int], kernels: tuple[int, int], pools: tuple[int, int]
) -> list[layers.Layer]:
    """The layers of a stem; alphabet, filters, kernels and pools of the first and the second."""
    return [
        layers.Embedding(alphabet, 3),
        layers.Conv1D(filters[0], kernels[0], activation="relu"),
        layers.MaxPool1D(pools[0]),
        layers.Conv1D(filters[1], kernels[1], activation="relu"),
        layers.MaxPool1D(pools[1]),
    ]


def network(stem: list[layers.Layer], length: int) -> tf.keras.Model:
    return tf.keras.Sequential([layers.Input((length,), dtype="uint8"), *stem])


def drawn(model: tf.keras.Model, random: np.random.Generator) -> list[np.ndarray]:
    """Weights of a model drawn anew, biases too, which begin as 0; none makes values grow."""
    return [
        random.normal(0, 1 / np.sqrt(np.prod(w.shape[:-1])), w.shape).astype(np.float32)
        for w in model.get_weights()
    ]


def letters(random: np.random.Generator, rows: int, length: int, alphabet: int = 5) -> np.ndarray:
    return random.integers(0, alphabet, (rows, length)).astype(np.uint8)


def results(model: tf.keras.Model, codes: np.ndarray, upstream: np.ndarray) -> list[np.ndarray]:
    """Output, and the gradient of its product with `upstream` by every weight, dense."""
    with tf.GradientTape() as tape:
        output = model(codes, training=True)
        product = tf.reduce_sum(output * upstream)
    gradients = tape.gradient(product, model.trainable_variables)
    return [array.numpy() for array in (output, *map(tf.convert_to_tensor, gradients))]


def assert_same(found_of: tf.keras.Model, expected_of: tf.keras.Model, codes: np.ndarray) -> None:
    """Assert equal outputs and gradients at weights that are drawn anew."""
    random = np.random.default_rng(len(codes))
    expected_of.set_weights(drawn(expected_of, random))
    found_of.set_weights(expected_of.get_weights())
    upstream = random.normal(size=expected_of(codes).shape).astype(np.float32)
    assert_equal(results(found_of, codes, upstream), results(expected_of, codes, upstream))


def assert_equal(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        np.testing.assert_allclose(one, other, rtol=TOLERANCE, atol=TOLERANCE * np.abs(other).max())


sizes = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=20)
@given(
    alphabet=st.integers(1, 5),
    filters=st.tuples(st.integers(1, 6), st.integers(1, 6)),
    kernels=sizes,
    pools=sizes,
    extra=st.integers(0, 9),
    table_bytes=st.sampled_from([2**14, TABLE_BYTES, 2**26]),
    operation=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_outputs_and_gradients_are_those_of_the_plain_layers(
    alphabet, filters, kernels, pools, extra, table_bytes, operation, seed
):
    random = np.random.default_rng(seed)
    shortest = kernels[0] - 1 + pools[0] * (kernels[1] - 1 + pools[1])
    codes = letters(random, 3, shortest + extra, alphabet)
    lookup = Lookup(plain(alphabet, filters, kernels, pools), table_bytes, operation)
    expected_of = network(plain(alphabet, filters, kernels, pools), codes.shape[1])
    assert_same(network([lookup], codes.shape[1]), expected_of, codes)


@pytest.mark.parametrize("length", [36, 39])
@pytest.mark.parametrize(
    ("way", "table_bytes"),
    [("lookup-table", TABLE_BYTES), ("lookup-table", 2**16), ("lookup-operation", TABLE_BYTES)],
)
def test_the_networks_convolutions_at_odd_and_even_lengths(length, way, table_bytes, monkeypatch):
    random = np.random.default_rng(length)
    expected_of = virus_cnn.network(length, 5)
    found_of = virus_cnn.network(length, 5, way)
    found_of.layers[0].table_bytes = table_bytes
    assert found_of.layers[0].looks_up
    expected_of.set_weights(drawn(expected_of, random))
    found_of.set_weights(expected_of.get_weights())
    codes, upstream = letters(random, 7, length), random.normal(size=(7, 5)).astype(np.float32)
    expected = results(expected_of, codes, upstream)
    # Nothing is convolved a second time.
    monkeypatch.setattr(found_of.layers[0].stem[3], "call", None)
    assert_equal(results(found_of, codes, upstream), expected)


@pytest.mark.parametrize("operation", [False, True])
def test_repeated_letters_share_one_maximum_as_in_the_plain_layers(operation):
    """All values of a pool are equal: its gradient goes to one of them, once."""
    expected_of = network(plain(4, (3, 3), (2, 2), (3, 3)), 40)
    found_of = network([Lookup(plain(4, (3, 3), (2, 2), (3, 3)), operation=operation)], 40)
    random = np.random.default_rng(0)
    expected_of.set_weights([np.abs(w) for w in drawn(expected_of, random)])
    found_of.set_weights(expected_of.get_weights())
    codes = np.repeat(np.arange(4, dtype=np.uint8)[:, np.newaxis], 40, axis=1)
    upstream = np.ones(expected_of(codes).shape, np.float32)
    expected = results(expected_of, codes, upstream)
    assert all(np.abs(array).max() > 0 for array in expected)
    assert_equal(results(found_of, codes, upstream), expected)


def test_weights_have_the_same_names_shapes_order_and_initial_values():
    models = []
    for stem in ("layers", "lookup-table", "lookup-operation"):
        tf.keras.backend.clear_session()
        tf.keras.utils.set_random_seed(4)
        models.append(virus_cnn.network(1000, 5, stem))
    by_layers, *others = models
    assert by_layers.count_params() == 2_067_181
    for by_lookup in others:
        assert [each.name for each in by_lookup.weights] == [
            each.name for each in by_layers.weights
        ]
        assert digest(by_lookup.get_weights()) == digest(by_layers.get_weights())
        assert by_lookup.output_shape == by_layers.output_shape


def conv(filters: int, **options) -> layers.Layer:
    return layers.Conv1D(filters, 2, **{"activation": "relu"} | options)


def with_layer(place: int, layer: layers.Layer) -> list[layers.Layer]:
    stem = plain(5, (4, 3), (2, 2), (2, 2))
    stem[place] = layer
    return stem


FALL_BACKS = {
    "a long kernel": plain(5, (4, 3), (9, 2), (2, 2)),
    "padding": with_layer(1, conv(4, padding="same")),
    "strides": with_layer(3, conv(3, strides=2)),
    "dilation": with_layer(1, conv(4, dilation_rate=2)),
    "tanh": with_layer(3, conv(3, activation="tanh")),
    "no bias": with_layer(1, conv(4, use_bias=False)),
    "overlapping pools": with_layer(2, layers.MaxPool1D(3, strides=2)),
    "padded pools": with_layer(4, layers.MaxPool1D(2, padding="same")),
    "averages": with_layer(2, layers.AveragePooling1D(2)),
}


@pytest.mark.parametrize("case", FALL_BACKS)
def test_what_has_no_small_tables_is_computed_by_the_layers(case):
    stem = FALL_BACKS[case]
    lookup = Lookup(stem)
    found_of = network([lookup], 31)
    assert not lookup.looks_up
    expected_of = network([type(layer).from_config(layer.get_config()) for layer in stem], 31)
    assert_same(found_of, expected_of, letters(np.random.default_rng(3), 4, 31))


def test_the_limit_is_what_the_largest_table_takes():
    """125 k-mers, four columns, four bytes each."""
    stem, takes = plain(5, (4, 3), (2, 2), (2, 2)), 4 * 4 * 5**3
    assert [Lookup(stem, limit).looks_up for limit in (takes, takes - 1)] == [True, False]


@pytest.mark.parametrize("table_bytes", [TABLE_BYTES, 2**12])
def test_a_code_beyond_the_alphabet_is_refused(table_bytes):
    model = network([Lookup(plain(5, (4, 3), (2, 2), (2, 2)), table_bytes)], 31)
    codes = np.ones((2, 31), np.uint8)
    codes[1, 5] = 5
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"\[1,5\] = 5 is not in \[0, 5\)"):
        model(codes)
