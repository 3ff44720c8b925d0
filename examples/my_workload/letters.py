"""Letters of genomes as numbers."""

import tensorflow as tf

LETTERS = 5


def one_hot(codes):
    return tf.one_hot(tf.cast(codes, tf.int32), LETTERS)
