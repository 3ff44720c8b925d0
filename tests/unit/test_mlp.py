"""The multilayer perceptron against NumPy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from scipy.special import expit, softmax
from sklearn.neural_network import MLPClassifier

from escala.data.base import Spec
from escala.workloads.mlp import model as mlp

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
