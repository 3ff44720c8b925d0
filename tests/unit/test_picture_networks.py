"""Networks for pictures: the shapes they take and have, and models of earlier versions."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from escala.core.errors import InputError
from escala.data.base import Spec
from escala.predict.model import load
from escala.workloads import WORKLOADS, models
from escala.workloads.cifar_cnn import model as cifar_cnn
from escala.workloads.mnist_mlp import model as mnist_mlp
from escala.workloads.resnet34 import model as resnet34

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
