"""Networks of workloads: pixels, residual networks, multilayer perceptrons, k-mers."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from scipy import sparse
from scipy.special import expit, softmax

from escala.core.errors import InputError
from escala.data.base import Spec
from escala.predict.model import load
from escala.workloads import WORKLOADS, models
from escala.workloads.cifar_cnn import model as cifar_cnn
from escala.workloads.kmer_logreg import model_fit
from escala.workloads.mlp import model as mlp
from escala.workloads.mnist_mlp import model as mnist_mlp
from escala.workloads.resnet34 import model as resnet34

DIGITS = Spec("image", (28, 28, 1), "uint8")
MLP = {**WORKLOADS["mnist-mlp"].setting_defaults, "neurons": [512, 512], "dropout": 0.2}
MASK = Spec("image", (148, 197, 1), "float16")
LOCAL, RESNET = {"batch_norm": "local"}, WORKLOADS["resnet34"].setting_defaults


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
    for side, message in ((21, r"less than 22 × 22.*set the dataset's size"), (22, None)):
        given = (Spec("image", (side, 40, 3), "uint8"),), (10,), {"dropout": 0.25}, {}
        if message:
            with pytest.raises(InputError, match=message):
                cifar_cnn.build(*given)
        else:
            assert cifar_cnn.build(*given).output_shape == (None, 10)


@pytest.mark.parametrize(("depth", "width"), [(10, 8), (18, 8), (34, 64)])
def test_resnets_have_the_layers_of_their_name_and_halve_pictures_as_the_source_does(depth, width):
    """The name counts the dense layer, and convolutions without those of shortcuts."""
    network = resnet34.build((MASK,), (9,), {**RESNET, "depth": depth, "width": width}, LOCAL)
    found = [each for each in network.layers if isinstance(each, tf.keras.layers.Conv2D)]
    shortcuts = [each for each in found if each.kernel_size == (1, 1)]
    assert len(shortcuts) == 3 and len(found) - len(shortcuts) + 1 == depth
    shapes = [layer.output_shape[1:] for layer in network.layers]
    assert (74, 99, width) in shapes and (5, 7, 8 * width) in shapes


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
    models.write_description(tmp_path, "resnet34", {}, settings, data, "")
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


@pytest.mark.parametrize(
    ("activation", "cost", "output"),
    [
        ("sigmoid", "cross-entropy", "sigmoid"),
        ("tanh", "half-mean-square", "sigmoid"),
        ("relu", "half-mean-square", "linear"),
        ("leaky-relu", "half-mean-square", "softmax"),
        ("softplus", "cross-entropy", "sigmoid"),
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
    return np.concatenate(
        [np.empty((0, model_fit.count_canonical(k)), int), *model_fit.count_kmers(codes, k)]
    )


sequences = arrays.arrays(
    np.uint8,
    st.tuples(st.integers(0, 7), st.integers(0, 30)),
    # Few letters are unknown, so that whole k-mers stand between them.
    elements=st.sampled_from([1, 2, 3, 4] * 6 + [0]),
)


@settings(max_examples=60)
@given(sequences, st.integers(1, 4), st.booleans())
def test_counts_are_those_of_the_definition_in_blocks_of_any_size(codes, k, is_small):
    with pytest.MonkeyPatch.context() as patch:
        if is_small:
            patch.setattr(model_fit, "BLOCK_LETTERS", 2 * max(1, codes.shape[1]))
        np.testing.assert_array_equal(counted(codes, k), brute_force(codes, k))
        patch.setattr(model_fit, "BLOCK_CELLS", 1)
        assert all(len(block) == 1 for block in model_fit.count_kmers(codes, k))


def test_there_are_as_many_columns_as_canonical_kmers():
    for k in range(1, 7):
        assert model_fit.count_canonical(k) == len(vocabulary(k))
        assert model_fit.word_length(model_fit.count_canonical(k)) == k
    for k in (0, 9, 10**9):
        with pytest.raises(ValueError, match="not from 1 to 8"):
            model_fit.count_canonical(k)


@settings(max_examples=30)
@given(sequences, st.integers(1, 5))
def test_rows_have_length_1_unless_they_hold_no_kmer(codes, k):
    found = model_fit.frequencies(codes, k)
    assert sparse.issparse(found) == (2 * (codes.shape[1] - k + 1) < model_fit.count_canonical(k))
    dense = found.toarray() if sparse.issparse(found) else found
    assert dense.dtype == np.float32 and dense.shape == (len(codes), model_fit.count_canonical(k))
    counts = brute_force(codes, k)
    lengths = np.linalg.norm(counts, axis=1, keepdims=True)
    np.testing.assert_allclose(dense * np.maximum(lengths, 1), counts, rtol=1e-6)
