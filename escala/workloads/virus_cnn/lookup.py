"""Two convolutions over letters, looked up in tables computed from the weights at each step.

Embedding → Conv1D → ReLU → MaxPool → Conv1D → ReLU → MaxPool, over few letters. What stands behind
the first pooling at one position depends on a k-mer of `kernel + pool - 1` letters, so it has one
value for each k-mer: a table, of 125 rows for five letters and a kernel and a pool of two. The
second convolution is the sum of one row for each tap of its kernel, from tables that are that one
times the tap's weights; where it stays small, one table for the k-mer that all taps see together
holds the sum. Nothing is approximated: results differ from those of the plain layers by the
rounding of sums taken in another order.
"""

from __future__ import annotations

import tensorflow as tf
from tensorflow.keras import layers

#: The largest table, float32. Beyond it the plain layers compute.
TABLE_BYTES = 2**22


class Lookup(layers.Layer):
    """Five plain layers, computed by lookups where their tables stay small.

    It has the weights of the plain layers, under the same names, in the same order and with the
    same initial values, and their gradients. Where it cannot look up it calls them one after the
    other.

    Parameters
    ----------
    stem : an `Embedding`, a `Conv1D`, a `MaxPool1D`, a `Conv1D` and a `MaxPool1D`, not yet built.
        They can be looked up if both convolutions have a bias, ReLU, no padding, and neither
        strides, dilation nor groups, and pools neither overlap nor pad.
    table_bytes : the largest table.

    It takes codes, integers of shape (rows, length), and gives floats of shape (rows, positions,
    filters). A code that is none of the alphabet is refused on a CPU, as by `Embedding`.
    """

    def __init__(self, stem: list[layers.Layer], table_bytes: int = TABLE_BYTES, **options):
        super().__init__(**options)
        self.stem = stem
        self.table_bytes = table_bytes

    def build(self, shape: tf.TensorShape) -> None:
        for layer in self.stem:
            # An absolute scope, so that the weights have the names they have without this layer.
            with tf.name_scope(f"{layer.name}/"):
                layer.build(shape)
            shape = layer.compute_output_shape(shape)
        super().build(shape)

    @property
    def looks_up(self) -> bool:
        """Whether tables are used rather than the plain layers."""
        if not _tabulable(self.stem):
            return False
        embedding, first, _, second, _ = self.stem
        width = max(first.filters, second.filters)
        return _bytes(embedding.input_dim, self._k, width) <= self.table_bytes

    def compute_output_shape(self, shape: tf.TensorShape) -> tf.TensorShape:
        for layer in self.stem:
            shape = layer.compute_output_shape(shape)
        return shape

    def call(self, codes: tf.Tensor) -> tf.Tensor:
        if not self.looks_up or codes.shape[1] is None:
            for layer in self.stem:
                codes = layer(codes)
            return codes
        embedding, _, pool, convolution, last_pool = self.stem
        alphabet, (stride,), (taps,) = embedding.input_dim, pool.pool_size, convolution.kernel_size
        tables, k, offsets = self._tables(), self._k, [stride * tap for tap in range(taps)]
        joined = _bytes(alphabet, k + offsets[-1], convolution.filters) <= self.table_bytes
        if joined:
            # ReLU of a table is cheaper than ReLU of all that is looked up in it.
            tables = [tf.nn.relu(_joined(tables, alphabet, k, stride))]
            k, offsets = k + offsets[-1], [0]
        # As in `Embedding`, a code beyond the alphabet is an error, not another k-mer.
        letters = tf.gather(tf.range(alphabet), tf.cast(codes, tf.int32))
        positions = self.compute_output_shape(codes.shape)[1]
        (pooled,) = last_pool.pool_size

        def convolved(start: int) -> tf.Tensor:
            """Return what every last pool sees at its position `start`."""
            numbers = [
                _kmers(letters, alphabet, k, stride * start + offset, stride * pooled, positions)
                for offset in offsets
            ]
            return tf.add_n([_rows(*each) for each in zip(tables, numbers, strict=True)])

        largest = _largest(*map(convolved, range(pooled)))
        return largest if joined else tf.nn.relu(largest)

    @property
    def _k(self) -> int:
        """Letters that a position behind the first pooling depends on."""
        _, convolution, pool, *_ = self.stem
        return convolution.kernel_size[0] + pool.pool_size[0] - 1

    def _tables(self) -> list[tf.Tensor]:
        """Return what each tap of the second kernel makes of every k-mer, (k-mers, filters).

        The first has the bias.
        """
        embedding, first, pool, second, _ = self.stem
        pooled = pool(first(embedding(_all_kmers(embedding.input_dim, self._k))))
        of_first, *others = tf.unstack(tf.matmul(tf.squeeze(pooled, 1), second.kernel))
        return [of_first + second.bias, *others]


def _tabulable(stem: list[layers.Layer]) -> bool:
    types = [layers.Embedding, layers.Conv1D, layers.MaxPool1D, layers.Conv1D, layers.MaxPool1D]
    if [type(layer) for layer in stem] != types or stem[0].mask_zero:
        return False
    convolutions = all(
        (layer.padding, layer.data_format) == ("valid", "channels_last")
        and (layer.strides, layer.dilation_rate, layer.groups) == ((1,), (1,), 1)
        and (layer.activation, layer.use_bias) == (tf.keras.activations.relu, True)
        for layer in stem[1::2]
    )
    pools = all(
        (layer.padding, layer.data_format) == ("valid", "channels_last")
        and layer.strides == layer.pool_size
        for layer in stem[2::2]
    )
    return convolutions and pools and not any(layer.activity_regularizer for layer in stem)


def _bytes(alphabet: int, k: int, width: int) -> int:
    """Return the bytes of a float32 table of so many columns that has a row for every k-mer."""
    return 4 * width * alphabet**k


def _all_kmers(alphabet: int, k: int) -> tf.Tensor:
    """Return the letters of every k-mer, int32 (alphabet**k, k), in the order of their numbers."""
    places = alphabet ** tf.range(k - 1, -1, -1)
    return tf.range(alphabet**k)[:, tf.newaxis] // places % alphabet


def _kmers(
    letters: tf.Tensor, alphabet: int, k: int, start: int, stride: int, count: int
) -> tf.Tensor:
    """Return the numbers of `count` k-mers of every row, int32 (rows, count), `stride` apart."""
    numbers = tf.zeros((), tf.int32)
    for at in range(start, start + k):
        numbers = numbers * alphabet + letters[:, at::stride][:, :count]
    return numbers


def _joined(tables: list[tf.Tensor], alphabet: int, k: int, stride: int) -> tf.Tensor:
    """Return the sum of all tables' rows for every k-mer that they see together."""
    filters = tables[0].shape[1]
    ends = [alphabet ** (stride * tap) for tap in range(len(tables))]
    return tf.add_n(
        [
            tf.reshape(
                tf.broadcast_to(
                    table[tf.newaxis, :, tf.newaxis], (before, alphabet**k, after, filters)
                ),
                (-1, filters),
            )
            for table, before, after in zip(tables, ends, reversed(ends), strict=True)
        ]
    )


@tf.custom_gradient
def _rows(table: tf.Tensor, numbers: tf.Tensor):
    """Return rows of a table by their numbers; the gradient adds up into a dense table."""

    def gradient(upstream):
        flat = tf.reshape(upstream, (-1, table.shape[1]))
        return tf.math.unsorted_segment_sum(flat, tf.reshape(numbers, [-1]), table.shape[0]), None

    return tf.gather(table, numbers), gradient


@tf.custom_gradient
def _largest(*values: tf.Tensor):
    """Return the elementwise maximum; its gradient goes to the first of those that are equal.

    ReLU's gradient passes on what stands where another tensor is positive: the one selection that
    TensorFlow computes several elements at a time.
    """
    maxima = [values[0]]
    for value in values[1:]:
        maxima.append(tf.maximum(maxima[-1], value))

    def gradient(upstream):
        shares = []
        for value, before in zip(values[:0:-1], maxima[-2::-1], strict=True):
            share = tf.raw_ops.ReluGrad(gradients=upstream, features=value - before)
            upstream -= share
            shares.append(share)
        return [upstream, *reversed(shares)]

    return maxima[-1], gradient
