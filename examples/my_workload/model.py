"""A small network that looks for short words."""

import tensorflow as tf
from tensorflow.keras import layers

from .letters import one_hot


def build(specs, outputs, settings, knobs):
    [codes] = specs
    given = layers.Input(codes.shape, dtype=codes.dtype)
    found = layers.Conv1D(settings["words"], 6, activation="relu")(one_hot(given))
    pooled = layers.GlobalMaxPooling1D()(found)
    return tf.keras.Model(given, layers.Dense(*outputs, activation="softmax")(pooled))


def optimizer(settings, learning_rate, knobs):
    return tf.keras.optimizers.Adam(learning_rate)


def row_losses(targets, outputs, settings):
    return tf.keras.losses.sparse_categorical_crossentropy(targets, outputs)
