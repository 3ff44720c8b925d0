"""Networks of workloads: parameters, layers, random numbers, k-mers."""

from __future__ import annotations

import os
import tracemalloc
from collections.abc import Iterator
from itertools import product
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import sparse
from scipy.special import expit, softmax
from sklearn.neural_network import MLPClassifier
from tensorflow.keras import layers

from escala.core import children
from escala.core.errors import InputError
from escala.data.base import Spec
from escala.engines.tensorflow.engine import calls
from escala.engines.tensorflow.parameter_server import ParameterServerRanks
from escala.engines.tensorflow.state import local_variables, seed_random_layers, use_generators
from escala.engines.tensorflow.step import repeat
from escala.predict.model import load
from escala.strategies.base import Place
from escala.workloads import WORKLOADS, models
from escala.workloads.cifar_cnn import model as cifar_cnn
from escala.workloads.kmer_logreg import model_fit
from escala.workloads.mlp import model as mlp
from escala.workloads.mnist_mlp import model as mnist_mlp
from escala.workloads.resnet34 import model as resnet34
from tests.conftest import KNOBS

DIGITS = Spec("image", (28, 28, 1), "uint8")
MLP = {**WORKLOADS["mnist-mlp"].setting_defaults, "neurons": [512, 512], "dropout": 0.2}
CNN = {"dropout": 0.25}


def test_pixels_are_the_same_however_they_are_stored():
    tf.keras.utils.set_random_seed(3)
    stored = {
        dtype: mnist_mlp.build((DIGITS._replace(dtype=dtype),), (10,), MLP, {})
        for dtype in ("uint8", "float16")
    }
    stored["float16"].set_weights(stored["uint8"].get_weights())
    pictures = np.random.default_rng(1).integers(0, 256, (8, *DIGITS.shape), dtype=np.uint8)
    halves = (pictures / np.float32(255)).astype(np.float16)
    np.testing.assert_allclose(
        stored["uint8"](pictures), stored["float16"](halves), rtol=0.02, atol=1e-3
    )


def test_pictures_too_small_for_three_blocks_are_refused():
    small = Spec("image", (21, 40, 3), "uint8")
    with pytest.raises(InputError, match=r"less than 22 × 22.*set the dataset's size"):
        cifar_cnn.build((small,), (10,), CNN, {})
    smallest = Spec("image", (22, 22, 3), "uint8")
    assert cifar_cnn.build((smallest,), (10,), CNN, {}).output_shape == (None, 10)


MASK = Spec("image", (148, 197, 1), "float16")
LOCAL, RESNET = {"batch_norm": "local"}, WORKLOADS["resnet34"].setting_defaults


def test_resnet_34_halves_its_pictures_as_the_source_does():
    network = resnet34.build((MASK,), (9,), {**RESNET, "depth": 34, "width": 64}, LOCAL)
    shapes = [layer.output_shape[1:] for layer in network.layers]
    assert (74, 99, 64) in shapes and (5, 7, 512) in shapes


@pytest.mark.parametrize(("depth", "convolutions"), [(10, 12), (18, 20)])
def test_smaller_resnets_have_the_layers_of_their_name(depth, convolutions):
    """Convolutions with those of shortcuts: the name counts them without, and the dense layer."""
    network = resnet34.build((MASK,), (9,), {**RESNET, "depth": depth, "width": 8}, LOCAL)
    found = [each for each in network.layers if isinstance(each, tf.keras.layers.Conv2D)]
    shortcuts = [each for each in found if each.kernel_size == (1, 1)]
    assert (len(found), len(shortcuts)) == (convolutions, 3)
    assert len(found) - len(shortcuts) + 1 == depth


def test_a_model_older_than_a_knob_and_a_setting_is_loaded(tmp_path):
    tf.keras.utils.set_random_seed(4)
    spec, settings = Spec("image", (16, 16, 1), "float16"), {"depth": 10, "width": 2}
    network = resnet34.build((spec,), (9,), RESNET | settings, LOCAL)
    np.savez(tmp_path / models.WEIGHTS, *network.get_weights())
    data = {
        "classes": [f"c{number}" for number in range(9)],
        "inputs": [{"name": "image", "shape": [16, 16, 1], "dtype": "float16"}],
        "targets": {"shape": [], "dtype": "int64"},
        "sha256": {},
    }
    models.describe(tmp_path, "resnet34", {}, settings, data, "")
    pictures = np.random.default_rng(1).random((3, 16, 16, 1)).astype(np.float16)
    found = load(tmp_path).probabilities(pictures)
    np.testing.assert_allclose(found, network(pictures), rtol=1e-5)


SETTINGS = {
    "layers": [7, 5],
    "activation": "tanh",
    "negative_slope": 0.01,
    "cost": "cross-entropy",
    "output": "sigmoid",
}
#: Activation and its derivative, by its argument.
ACTIVATIONS = {
    "sigmoid": (expit, lambda z: expit(z) * (1 - expit(z))),
    "tanh": (np.tanh, lambda z: 1 - np.tanh(z) ** 2),
    "relu": (lambda z: np.maximum(z, 0), lambda z: (z > 0) * 1.0),
    "leaky-relu": (lambda z: np.where(z > 0, z, 0.01 * z), lambda z: np.where(z > 0, 1.0, 0.01)),
    "softplus": (lambda z: np.log1p(np.exp(z)), expit),
}


def built(**changes) -> tuple[tf.keras.Model, dict]:
    settings = SETTINGS | changes
    tf.keras.utils.set_random_seed(1)
    model = mlp.build([Spec("features", (4,), "float32")], (3,), settings, {})
    for variable in model.trainable_variables:
        # Biases begin at 0, which would hide a mistake.
        variable.assign(variable + tf.random.stateless_uniform(variable.shape, (3, 4), -0.5, 0.5))
    return model, settings


def backpropagated(weights, features, labels, activation, cost, output):
    """Return the mean cost and the gradients of all weights, by the chain rule written out."""
    act, slope = ACTIVATIONS[activation]
    kernels, biases = weights[::2], weights[1::2]
    values, sums = [features], []
    for kernel, bias in zip(kernels, biases, strict=True):
        sums.append(values[-1] @ kernel + bias)
        values.append(act(sums[-1]))
    wanted = np.eye(kernels[-1].shape[1])[labels]
    rows = len(features)
    if cost == "cross-entropy":
        given = softmax(sums[-1], axis=1)
        loss = -np.log(given[np.arange(rows), labels]).mean()
        error = given - wanted
    else:
        given = {"linear": sums[-1], "sigmoid": expit(sums[-1]), "softmax": softmax(sums[-1], 1)}[
            output
        ]
        loss = ((wanted - given) ** 2).sum(axis=1).mean() / 2
        error = given - wanted
        if output == "sigmoid":
            error = error * given * (1 - given)
        elif output == "softmax":
            error = given * (error - (error * given).sum(axis=1, keepdims=True))
    gradients = []
    for layer in reversed(range(len(kernels))):
        gradients[:0] = [values[layer].T @ error / rows, error.sum(axis=0) / rows]
        if layer:
            error = (error @ kernels[layer].T) * slope(sums[layer - 1])
    return loss, gradients


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(
    ("cost", "output"),
    [
        ("cross-entropy", "sigmoid"),
        ("half-mean-square", "sigmoid"),
        ("half-mean-square", "linear"),
        ("half-mean-square", "softmax"),
    ],
)
def test_costs_and_gradients_are_those_of_the_chain_rule(activation, cost, output):
    model, settings = built(activation=activation, cost=cost, output=output)
    random = np.random.default_rng(2)
    features = random.normal(size=(20, 4)).astype(np.float32)
    labels = random.integers(0, 3, 20)
    with tf.GradientTape() as tape:
        losses = mlp.row_losses(tf.constant(labels), model(features), settings)
        loss = tf.reduce_mean(losses)
    gradients = tape.gradient(loss, model.trainable_variables)
    weights = [variable.numpy().astype(np.float64) for variable in model.trainable_variables]
    wanted, by_hand = backpropagated(weights, features, labels, activation, cost, output)
    assert losses.shape == (20,)
    np.testing.assert_allclose(loss, wanted, rtol=1e-5)
    for ours, theirs in zip(gradients, by_hand, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_steps_are_those_of_scikit_learns_classifier():
    """Whole batches, so that the order of the rows does not matter."""
    model, settings = built()
    random = np.random.default_rng(3)
    features = random.normal(size=(60, 4)).astype(np.float32)
    labels = (features @ random.normal(size=(4, 3))).argmax(axis=1)
    theirs = MLPClassifier(
        hidden_layer_sizes=(7, 5),
        activation="tanh",
        solver="sgd",
        alpha=0,
        batch_size=60,
        learning_rate_init=0.1,
        momentum=0,
        nesterovs_momentum=False,
        shuffle=False,
    )
    theirs.partial_fit(features, labels, classes=[0, 1, 2])
    weights = [variable.numpy().copy() for variable in model.trainable_variables]
    theirs.coefs_, theirs.intercepts_ = weights[::2], weights[1::2]
    optimizer = mlp.optimizer(settings, 0.1, {})
    for _ in range(30):
        theirs.partial_fit(features, labels)
        with tf.GradientTape() as tape:
            losses = mlp.row_losses(tf.constant(labels), model(features), settings)
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        assert float(loss) == pytest.approx(theirs.loss_, rel=1e-4)
    np.testing.assert_allclose(model(features), theirs.predict_proba(features), atol=1e-4)


def test_no_layers_are_a_linear_classifier():
    model, _ = built(layers=[])
    assert [tuple(v.shape) for v in model.trainable_variables] == [(4, 3), (3,)]


COMPLEMENT = str.maketrans("ACGT", "TGCA")


def canonical(word: str) -> str:
    return min(word, word.translate(COMPLEMENT)[::-1])


def vocabulary(k: int) -> list[str]:
    return sorted({canonical("".join(letters)) for letters in product("ACGT", repeat=k)})


def brute_force(codes: np.ndarray, k: int) -> np.ndarray:
    columns = {word: number for number, word in enumerate(vocabulary(k))}
    found = np.zeros((len(codes), len(columns)), np.int64)
    for row, sequence in zip(found, codes, strict=True):
        letters = "".join("-ACGT"[code] for code in sequence)
        for start in range(len(letters) - k + 1):
            word = letters[start : start + k]
            if "-" not in word:
                row[columns[canonical(word)]] += 1
    return found


def counted(codes: np.ndarray, k: int) -> np.ndarray:
    return np.concatenate([np.empty((0, model_fit.columns(k)), int), *model_fit.counts(codes, k)])


sequences = arrays.arrays(
    np.uint8,
    st.tuples(st.integers(0, 7), st.integers(0, 30)),
    # Few letters are unknown, so that whole k-mers stand between them.
    elements=st.sampled_from([1, 2, 3, 4] * 6 + [0]),
)


@settings(max_examples=60)
@given(sequences, st.integers(1, 4))
def test_counts_are_those_of_the_definition(codes, k):
    np.testing.assert_array_equal(counted(codes, k), brute_force(codes, k))


@settings(max_examples=30)
@given(sequences, st.integers(1, 8))
def test_a_sequence_and_its_reverse_complement_count_alike(codes, k):
    other = np.where(codes[:, ::-1] > 0, 5 - codes[:, ::-1], 0).astype(np.uint8)
    np.testing.assert_array_equal(counted(codes, k), counted(other, k))


@pytest.mark.parametrize("k", range(1, 7))
def test_there_are_as_many_columns_as_canonical_kmers(k):
    assert model_fit.columns(k) == len(vocabulary(k))
    assert model_fit.letters(model_fit.columns(k)) == k


@pytest.mark.parametrize("k", [0, 9, 10**9])
def test_other_kmers_are_not_counted(k):
    with pytest.raises(ValueError, match="not from 1 to 8"):
        model_fit.columns(k)


@settings(max_examples=30)
@given(sequences, st.integers(1, 3))
def test_blocks_are_put_together_in_order(codes, k):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model_fit, "BLOCK_LETTERS", 2 * max(1, codes.shape[1]))
        np.testing.assert_array_equal(counted(codes, k), brute_force(codes, k))
        patch.setattr(model_fit, "BLOCK_CELLS", 1)
        assert all(len(block) == 1 for block in model_fit.counts(codes, k))


@settings(max_examples=30)
@given(sequences, st.integers(1, 5))
def test_rows_have_length_1_unless_they_hold_no_kmer(codes, k):
    found = model_fit.frequencies(codes, k)
    assert sparse.issparse(found) == (2 * (codes.shape[1] - k + 1) < model_fit.columns(k))
    dense = found.toarray() if sparse.issparse(found) else found
    assert dense.dtype == np.float32 and dense.shape == (len(codes), model_fit.columns(k))
    counts = brute_force(codes, k)
    lengths = np.linalg.norm(counts, axis=1, keepdims=True)
    np.testing.assert_allclose(dense * np.maximum(lengths, 1), counts, rtol=1e-6)


def test_counting_takes_memory_that_does_not_grow_with_the_rows():
    def peak(rows: int) -> int:
        codes = np.tile(np.arange(1000, dtype=np.uint8) % 5, (rows, 1))
        tracemalloc.start()
        for _ in model_fit.counts(codes, 6):
            pass
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    few, many = peak(4000), peak(16_000)
    assert many < 1.2 * few


@pytest.fixture(scope="module")
def model() -> Iterator[tf.keras.Model]:
    """A model that gives what two layers leave of its input, one of them in a model within it."""
    use_generators()
    inputs = layers.Input((64,))
    inner = tf.keras.Sequential([layers.Input((64,)), layers.Dropout(0.5)])
    yield tf.keras.Model(inputs, [layers.Dropout(0.5)(inputs), inner(inputs)])
    tf.keras.backend.experimental.disable_tf_random_generator()


def drawn(model: tf.keras.Model, *seed: int) -> list[np.ndarray]:
    """Return what the layers leave in two steps, one after the other."""
    seed_random_layers(model, *seed)
    ones = np.ones((3, *model.input_shape[1:]), np.float32)
    return [left.numpy() for _ in range(2) for left in model(ones, training=True)]


def test_they_draw_the_same_for_a_seed_whatever_was_drawn_before(model):
    first = drawn(model, 3, 0, 1)
    drawn(model, 9, 9, 9)
    for found, expected in zip(drawn(model, 3, 0, 1), first, strict=True):
        np.testing.assert_array_equal(found, expected)


def test_steps_layers_processes_epochs_and_runs_draw_otherwise(model):
    seeds = [(3, 0, 1), (3, 1, 1), (3, 0, 2), (4, 0, 1)]
    masks = {mask.tobytes() for seed in seeds for mask in drawn(model, *seed)}
    assert len(masks) == 4 * len(seeds)


def test_only_what_a_model_updates_by_itself_is_a_ranks_own():
    frozen = layers.Dense(2, trainable=False)
    counting = layers.Normalization()
    chain = [layers.Input((4,)), counting, frozen, layers.BatchNormalization(), layers.Dense(3)]
    own = local_variables(tf.keras.Sequential(chain))
    names = {variable.name.rpartition("/")[2] for variable in own}
    assert {"moving_mean:0", "moving_variance:0"} <= names
    assert not {id(variable) for variable in own} & {id(w) for w in frozen.weights}
    assert all(variable.dtype.is_floating for variable in own)


def test_layers_in_wrappers_cells_and_layers_are_seeded_and_unbuilt_ones_left_out():
    class Block(layers.Layer):
        def __init__(self):
            super().__init__()
            self.inner = layers.TimeDistributed(layers.Dropout(0.5))

        def call(self, rows, training=None):
            return self.inner(rows, training=training)

    use_generators()
    inputs = layers.Input((5, 64))
    found = layers.Bidirectional(layers.GRU(32, dropout=0.5, return_sequences=True))(inputs)
    cells = [layers.LSTMCell(32, dropout=0.5), layers.GRUCell(32, recurrent_dropout=0.5)]
    found = layers.RNN(cells, return_sequences=True)(Block()(found))
    nested = layers.Bidirectional(layers.RNN(layers.LSTMCell(8, dropout=0.5)))
    model = tf.keras.Model(inputs, [found, nested(found)])
    try:
        first, _, again = drawn(model, 3), drawn(model, 8), drawn(model, 3)
    finally:
        tf.keras.backend.experimental.disable_tf_random_generator()
    for left, expected in zip(again, first, strict=True):
        np.testing.assert_array_equal(left, expected)


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


SIZES = st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3)), max_size=20)


@given(SIZES, st.integers(1, 5))
def test_calls_keep_the_order_of_steps_and_have_equal_steps(sizes, at_once):
    steps = [[np.arange(rows) for rows in rank_sizes] for rank_sizes in sizes]
    divided = list(calls(steps, at_once))
    assert [id(step) for call in divided for step in call] == [id(step) for step in steps]
    for call in divided:
        assert len(call) in (1, at_once)
        rank_sizes = {tuple(map(len, step)) for step in call}
        assert len(rank_sizes) == 1
        assert len(call) == 1 or 0 not in rank_sizes.pop()


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 3))
def test_equal_steps_are_as_few_calls_as_possible(count, at_once, rows):
    steps = [[np.arange(rows)]] * count
    whole, rest = divmod(count, at_once)
    assert len(list(calls(steps, at_once))) == whole + rest


@pytest.mark.parametrize("count", [1, 2, 5])
def test_repeated_steps_see_the_weights_of_the_step_before(count):
    weight = tf.Variable(1.0)

    def step(rows, divisor):
        before = weight.read_value()
        weight.assign(before * 2 + tf.reduce_sum(rows) / divisor)
        return before, tf.reduce_sum(rows)

    rows = np.arange(3 * count, dtype=np.float32)
    results = tf.function(repeat(step, count))(rows, np.float32(3))
    expected, sums, value = [], [], 1.0
    for step_rows in np.split(rows, count):
        expected.append(value)
        sums.append(step_rows.sum())
        value = value * 2 + step_rows.sum() / 3
    np.testing.assert_allclose([float(each) for each in results], [*expected, *sums])
    assert float(weight) == pytest.approx(value)
