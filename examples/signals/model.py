import tensorflow as tf
from tensorflow.keras import layers


def build(specs, outputs, settings, knobs):
    signal, station = inputs = [layers.Input(spec.shape, dtype=spec.dtype) for spec in specs]
    joined = layers.Concatenate()([signal, tf.one_hot(tf.cast(station, tf.int32), 4)])
    return tf.keras.Model(inputs, layers.Reshape(outputs)(layers.Dense(1)(joined)))


def optimizer(settings, learning_rate, knobs):
    return tf.keras.optimizers.SGD(learning_rate)


def row_losses(targets, outputs, settings):
    return tf.square(targets - outputs)


def predict(outputs):
    return outputs


def correct(targets, outputs):
    return tf.cast(tf.abs(targets - outputs) < 1, tf.float32)
