"""A network that writes captions. A sum merges features of a picture and a prefix of words.

This is the model "merge" of Tanti et al. (2018, doi 10.1017/S1351324918000098), in the widths of
the usual Keras tutorial. Lucero Olalla (2022) trained this network and prints no widths. The
tutorial trains on a row for each prefix of a caption. Here one pass computes all prefixes of a
caption, because the LSTM's output after k words is its output for the prefix of k words. Without
dropout, both ways give equal outputs, losses and gradients. With dropout, the prefixes of a caption
share one mask of the embedded words, and all captions of a picture share one mask of its features.

The outputs are logits. Their softmax gives the probabilities of the published model.
"""

from __future__ import annotations

import tensorflow as tf
from tensorflow.keras import layers

from escala.data.captions.words import END, NEVER_WRITTEN, PADDING, START
from escala.engines.tensorflow.layers import optimizer_by


def build(specs, outputs, settings, knobs) -> tf.keras.Model:
    """Build the network for features of a picture and the words of its captions.

    The model gives logits of the next word, float32 (rows, captions, length, V). At padding the
    logits are 0, because only positions with a word reach the last two layers. The inputs are
    `features`, (F,), and `words`, (captions, length), padded with 0 at the end. The limit `below`
    of `words` is the number V of words.
    """
    features, words = specs
    captions, length = words.shape
    width, dropout = settings["width"], settings["dropout"]
    picture = layers.Input(features.shape, dtype=features.dtype)
    prefixes = layers.Input(words.shape, dtype=words.dtype)
    kept = layers.Dropout(dropout)(tf.cast(picture, tf.float32))
    encoded = layers.Dense(width, "relu", name="picture")(kept)

    numbers = tf.reshape(tf.cast(prefixes, tf.int32), (-1, length))
    embedded = layers.Embedding(words.below, width, mask_zero=True, name="embedding")(numbers)
    kept = layers.Dropout(dropout)(embedded)
    states = layers.LSTM(width, return_sequences=True, name="lstm")(kept)

    positions = tf.where(numbers > PADDING)
    repeated = tf.gather(encoded, positions[:, 0] // captions)
    merged = layers.Add()([tf.gather_nd(states, positions), repeated])
    hidden = layers.Dense(width, "relu", name="merged")(merged)
    logits = layers.Dense(words.below, name="next_word")(hidden)
    shape = tf.concat([tf.shape(numbers, tf.int64), [words.below]], axis=0)
    everywhere = tf.scatter_nd(positions, logits, shape)
    by_caption = tf.reshape(everywhere, (-1, captions, length, words.below))
    return tf.keras.Model([picture, prefixes], by_caption, name="caption_lstm")


optimizer = optimizer_by()


def row_losses(targets, outputs, settings) -> tf.Tensor:
    """Return the sum of the cross-entropies of a picture's next words, in nats, float32 (rows,).

    So every next word of a batch has equal weight, for any division of the pictures. `targets` are
    the next word at each position, (rows, captions, length), or 0 without next word. `outputs` are
    logits, (rows, captions, length, V).
    """
    numbers = tf.cast(targets, tf.int32)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(numbers, outputs)
    return tf.reduce_sum(tf.where(numbers > PADDING, losses, 0.0), axis=[1, 2])


def correct(targets, outputs) -> tf.Tensor:
    """Return the fraction of a picture's next words that the model predicts, float32 (rows,)."""
    numbers = tf.cast(targets, tf.int32)
    is_word = numbers > PADDING
    right = is_word & (tf.argmax(outputs, axis=-1, output_type=tf.int32) == numbers)
    hits, total = (tf.reduce_sum(tf.cast(words, tf.float32), [1, 2]) for words in (right, is_word))
    return tf.math.divide_no_nan(hits, total)


def generate(model, inputs, settings) -> tf.Tensor:
    """Return a caption for each picture, uint16 (rows, length): its words, END, and padding.

    A beam search keeps the `beam` captions of largest probability. It ends when all these captions
    have END or `length` words, and gives the most probable caption, without a correction for
    length. Only the features are read from the inputs.
    """
    features, words = inputs
    rows, length, beam = tf.shape(features)[0], words.shape[-1], settings["beam"]
    encoded = model.get_layer("picture")(tf.cast(features, tf.float32))
    encoded = tf.repeat(encoded, beam, axis=0)
    embedding, cell = model.get_layer("embedding"), model.get_layer("lstm").cell
    merged, next_word = model.get_layer("merged"), model.get_layer("next_word")
    vocabulary = next_word.units
    forbidden = tf.reduce_min(tf.one_hot(NEVER_WRITTEN, vocabulary, float("-inf"), 0.0), axis=0)
    only_padding = tf.one_hot(PADDING, vocabulary, 0.0, float("-inf"))

    def extend(position, captions, scores, last, *states):
        """Extend each caption of the beam by a word, and keep the best ones of a picture."""
        output, states = cell(embedding(tf.reshape(last, [-1])), list(states))
        logits = next_word(merged(output + encoded)) + forbidden
        log_probabilities = tf.reshape(tf.nn.log_softmax(logits), (rows, beam, vocabulary))
        added = tf.where(_are_complete(last)[..., None], only_padding, log_probabilities)
        totals = tf.reshape(scores[..., None] + added, (rows, beam * vocabulary))
        scores, selected = tf.math.top_k(totals, beam)
        parents, last = selected // vocabulary, selected % vocabulary
        captions = tf.gather(captions, parents, batch_dims=1)
        captions += last[..., None] * tf.one_hot(position, length, dtype=tf.int32)
        # Each new caption gets the states of the caption that it extends.
        by_row = [tf.reshape(state, (rows, beam, cell.units)) for state in states]
        states = [tf.gather(state, parents, batch_dims=1) for state in by_row]
        states = [tf.reshape(state, (-1, cell.units)) for state in states]
        return position + 1, captions, scores, last, *states

    first = tf.fill((rows, beam), START)
    # At first all captions of a beam are equal, so only one counts.
    scores = tf.tile(tf.one_hot([0], beam, 0.0, float("-inf")), (rows, 1))
    states = [tf.zeros((rows * beam, cell.units))] * 2
    captions = tf.zeros((rows, beam, length), tf.int32)
    _, captions, *_ = tf.while_loop(
        lambda position, captions, scores, last, *_: ~tf.reduce_all(_are_complete(last)),
        extend,
        (0, captions, scores, first, *states),
        maximum_iterations=length,
    )
    return tf.cast(captions[:, 0], tf.uint16)


def _are_complete(last: tf.Tensor) -> tf.Tensor:
    """Return which captions are complete, according to their last words."""
    return (last == END) | (last == PADDING)
