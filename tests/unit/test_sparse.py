"""The exchange of gradients that have only some rows, against counted messages."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from escala.data.base import Spec
from escala.strategies.shared import sparse
from escala.strategies.single import Single
from escala.training import step
from tests.conftest import KNOBS

#: Rows of a batch, words of a row, and numbers of a word.
ROWS, LENGTH, WIDTH = 8, 6, 4


def sent_in_a_ring(ranks: int, parts: int, rounds: int) -> int:
    """Count the parts that each rank receives if all pass one to their neighbour in each round."""
    received = np.zeros(ranks, int)
    for _ in range(rounds):
        for rank in range(ranks):
            received[(rank + 1) % ranks] += parts
    [count] = set(received.tolist())
    return count


@given(
    st.integers(1, 6), st.integers(1, 9), st.integers(1, 50), st.integers(1, 9), st.integers(1, 9)
)
def test_bytes_are_those_of_rings(ranks, of_rank, words, width, reads):
    """A sum passes each part of the numbers on to all others twice, a gather the reads once."""
    variable = sparse.Reads(reads, (words * ranks, width), 4, 8)
    summed = sent_in_a_ring(ranks, words * width * 4, 2 * (ranks - 1))
    gathered = sent_in_a_ring(ranks, of_rank * reads * (width * 4 + 8), ranks - 1)
    rows = of_rank * ranks
    assert sparse.received_bytes(sparse.SUM, variable, rows, ranks) == pytest.approx(summed)
    assert sparse.received_bytes(sparse.ROWS, variable, rows, ranks) == pytest.approx(gathered)
    fewer = sparse.ROWS if gathered < summed else sparse.SUM
    assert sparse.fewest_bytes(variable, rows, ranks) == fewer
    halved = sparse.received_bytes(sparse.SUM, variable, rows, ranks, 2)
    assert halved == pytest.approx(summed / 2)


class Data:
    """The form of rows of words, of which there are more than in a batch."""

    inputs, targets = (Spec("words", (LENGTH,), "uint16"),), Spec("labels", (), "int64")


def chosen(words: int, **knobs: object) -> dict[str, str]:
    """Return the exchange of the gradients of a network that reads each word of a row twice."""
    layers, knobs = tf.keras.layers, KNOBS | knobs
    words_of_row = layers.Input((LENGTH,), dtype="uint16")
    embedding = layers.Embedding(words, WIDTH, name="embedding")
    both = layers.Concatenate()([embedding(words_of_row), embedding(words_of_row)])
    network = tf.keras.Model(words_of_row, layers.Dense(3, "softmax")(layers.Flatten()(both)))
    computing = step.computing(
        network,
        tf.keras.losses.sparse_categorical_crossentropy,
        step.most_probable_is_right,
        [],
        [],
        step.own_sum,
    )
    return step.sparse_exchanges(
        step.accumulated(computing, knobs["accumulation"]),
        network.trainable_variables,
        Data,
        {"global_batch": ROWS, "train_rows": 100},
        Single(knobs, None),
        2,
    )


READS, OF_ROW, OF_NUMBERS = ROWS * 2 * LENGTH, WIDTH * 4 + 4, 2 * WIDTH * 4
#: The words with which the sum has as many bytes as the rows.
EQUAL = READS * OF_ROW // OF_NUMBERS


@pytest.mark.parametrize(
    ("words", "knobs", "exchange"),
    [
        (EQUAL, {}, "sum"),
        (EQUAL + 1, {}, "rows"),
        (EQUAL + 1, {"compression": "fp16"}, "sum"),
        (2 * EQUAL + 1, {"compression": "fp16"}, "rows"),
    ],
)
def test_the_reads_of_a_network_decide(words, knobs, exchange):
    assert READS * OF_ROW == EQUAL * OF_NUMBERS
    [(name, found)] = chosen(words, sparse_as_dense="auto", **knobs).items()
    assert (name.partition(".")[2], found) == ("embedding/embeddings", exchange)


@pytest.mark.parametrize(
    "knobs",
    [
        {"sparse_as_dense": True},
        {"sparse_as_dense": False},
        {"sparse_as_dense": "auto", "accumulation": 2},
    ],
)
def test_nothing_is_chosen_where_the_knob_or_the_sum_of_parts_decides(knobs):
    assert chosen(EQUAL + 1, **knobs) == {}


def test_gradients_to_be_summed_are_dense_and_others_stay_as_they_are():
    few, many = tf.Variable(tf.ones((3, 2)), name="few"), tf.Variable(tf.ones((9, 2)), name="many")
    read = [0, 2, 2]

    def compute(numbers):
        with tf.GradientTape() as tape:
            loss = sum(tf.reduce_sum(tf.gather(each, numbers)) for each in (few, many))
        return tape.gradient(loss, [few, many]), loss

    exchanges = {"0.few": sparse.SUM, "1.many": sparse.ROWS}
    (dense, rows), loss = step.with_dense(compute, exchanges, [few, many])(tf.constant(read))
    np.testing.assert_array_equal(dense, [[1, 1], [0, 0], [2, 2]])
    assert isinstance(rows, tf.IndexedSlices) and rows.indices.numpy().tolist() == read
    assert float(loss) == 12
    assert step.with_dense(compute, {"0.few": sparse.ROWS}, [few, many]) is compute
