"""Two convolutions over letters, by lookups in tables that each step computes from the weights.

The layers are Embedding → Conv1D → ReLU → MaxPool → Conv1D → ReLU → MaxPool, over a small alphabet.
Each position after the first pooling depends only on a k-mer of `kernel + pool - 1` letters. So a
table with one row for each k-mer holds all values after the first pooling: 125 rows for five
letters and a kernel and a pool of two. For each tap of the second kernel, another table is the
product of this table and the tap's weights. The second convolution is the sum of one row from the
table of each tap. If it stays small, a single table holds these sums for the longer k-mer that all
taps see together. Nothing is approximated: the results differ from the plain layers' results only
by the order of sums.
"""

from __future__ import annotations

import tensorflow as tf
from tensorflow.keras import layers

from escala.engines.tensorflow.fast import load_operations

#: Maximum bytes of a table, float32. The plain layers replace larger tables.
TABLE_BYTES = 2**22


class Lookup(layers.Layer):
    """Five plain layers, computed by lookups if the tables stay small.

    The input is codes, integers of shape (rows, length), and the output floats of shape (rows,
    positions, filters). On a CPU a code outside the alphabet is an error, as in `Embedding`. Names,
    order, initial values and gradients of the weights are as in the plain layers. If lookups are
    impossible, the plain layers are called in sequence.

    The layers of `stem` are an `Embedding`, a `Conv1D`, a `MaxPool1D`, a `Conv1D` and a
    `MaxPool1D`, not yet built. Lookups are possible if both convolutions have a bias and ReLU, but
    no padding, strides, dilation or groups, and if the pools neither overlap nor pad. `table_bytes`
    is the maximum size of a table. With `operation`, an operation in C++ does the lookups in one
    pass. This operation needs codes of uint8.
    """

    def __init__(
        self,
        stem: list[layers.Layer],
        table_bytes: int = TABLE_BYTES,
        operation: bool = False,
        **options,
    ):
        super().__init__(**options)
        self.stem = stem
        self.table_bytes = table_bytes
        self.operation = operation

    def build(self, shape: tf.TensorShape) -> None:
        for layer in self.stem:
            # With an absolute scope, the weights' names do not contain this layer.
            with tf.name_scope(f"{layer.name}/"):
                if not layer.built:
                    layer.build(shape)
            shape = layer.compute_output_shape(shape)
        super().build(shape)

    @property
    def uses_tables(self) -> bool:
        """Return whether tables replace the plain layers."""
        if not can_be_tabulated(self.stem):
            return False
        embedding, first, _, second, _ = self.stem
        width = max(first.filters, second.filters)
        return _bytes(embedding.input_dim, self._k, width) <= self.table_bytes

    def compute_output_shape(self, shape: tf.TensorShape) -> tf.TensorShape:
        for layer in self.stem:
            shape = layer.compute_output_shape(shape)
        return shape

    def call(self, codes: tf.Tensor) -> tf.Tensor:
        if not self.uses_tables or codes.shape[1] is None:
            for layer in self.stem:
                codes = layer(codes)
            return codes
        embedding, first_convolution, pool, convolution, last_pool = self.stem
        alphabet, (stride,), (taps,) = embedding.input_dim, pool.pool_size, convolution.kernel_size
        (window,) = last_pool.pool_size
        k, offsets = self._k, [stride * tap for tap in range(taps)]
        # The letters of every k-mer, (k-mers, k), ordered by the k-mers' numbers.
        kmers = (
            tf.range(alphabet**k)[:, tf.newaxis] // alphabet ** tf.range(k - 1, -1, -1) % alphabet
        )
        values = pool(first_convolution(embedding(kmers)))
        # For each tap of the second kernel, the table of all k-mers, (k-mers, filters).
        tables = tf.unstack(tf.matmul(tf.squeeze(values, 1), convolution.kernel))
        tables[0] += convolution.bias
        if self.operation:
            return look_up(codes, tf.stack(tables), alphabet, k, stride, window)
        has_one_table = _bytes(alphabet, k + offsets[-1], convolution.filters) <= self.table_bytes
        if has_one_table:
            # A table has fewer values than all looked-up rows, so ReLU of the table is cheaper.
            tables = [tf.nn.relu(_join(tables, alphabet, k, stride))]
            k, offsets = k + offsets[-1], [0]
        # As in `Embedding`, a code outside the alphabet is an error. It must not become another
        # k-mer.
        letters = tf.gather(tf.range(alphabet), tf.cast(codes, tf.int32))
        positions = self.compute_output_shape(codes.shape)[1]

        def convolve(start: int) -> tf.Tensor:
            """Return the convolution at position `start` of every last pool."""
            values = []
            for table, offset in zip(tables, offsets, strict=True):
                first = stride * start + offset
                numbers = tf.zeros((), tf.int32)
                for at in range(first, first + k):
                    numbers = numbers * alphabet + letters[:, at :: stride * window][:, :positions]
                values.append(_rows(table, numbers))
            return tf.add_n(values)

        largest = _largest(*map(convolve, range(window)))
        return largest if has_one_table else tf.nn.relu(largest)

    @property
    def _k(self) -> int:
        """Number of letters on which a position after the first pooling depends."""
        _, convolution, pool, *_ = self.stem
        return convolution.kernel_size[0] + pool.pool_size[0] - 1


def can_be_tabulated(stem: list[layers.Layer]) -> bool:
    """Return whether lookups can replace some layers, if their tables stay small."""
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
    """Return the bytes of a float32 table with `width` columns and a row for every k-mer."""
    return 4 * width * alphabet**k


def _join(tables: list[tf.Tensor], alphabet: int, k: int, stride: int) -> tf.Tensor:
    """Return the sum of the tables' rows for every longer k-mer that all taps see together."""
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
    """Return rows of a table by number. The gradient is a dense table."""

    def gradient(upstream):
        flat = tf.reshape(upstream, (-1, table.shape[1]))
        return tf.math.unsorted_segment_sum(flat, tf.reshape(numbers, [-1]), table.shape[0]), None

    return tf.gather(table, numbers), gradient


@tf.custom_gradient
def _largest(*values: tf.Tensor):
    """Return the elementwise maximum; of equal values, the first gets the gradient.

    The gradient of ReLU selects the elements at which another tensor is positive. TensorFlow
    computes no other selection with vector instructions.
    """
    maxima = [values[0]]
    for value in values[1:]:
        maxima.append(tf.maximum(maxima[-1], value))

    def gradient(upstream):
        parts = []
        for value, before in zip(values[:0:-1], maxima[-2::-1], strict=True):
            part = tf.raw_ops.ReluGrad(gradients=upstream, features=value - before)
            upstream -= part
            parts.append(part)
        return [upstream, *reversed(parts)]

    return maxima[-1], gradient


def look_up(
    codes: tf.Tensor,
    tables: tf.Tensor,
    alphabet: int,
    k: int,
    stride: int,
    pool: int,
    instructions: str = "auto",
) -> tf.Tensor:
    """Return, at every position, ReLU of the largest of `pool` sums of table rows.

    Sum j of a position adds one row of each table. From table t, the row of the k-mer that begins
    at letter stride · (pool · position + j + t) is added. So the result is a convolution with one
    tap for each table, over positions `stride` letters apart, with max-pooling and ReLU. Of equal
    sums, the first gets the gradient. The result does not depend on the number of threads.

    `codes` are uint8 (rows, length), and `tables` float32 (taps, alphabet**k, filters). A k-mer's
    number has its first letter as the highest digit. `instructions` are `avx2` or `baseline`;
    `auto` is the first of both that the processor has. The result is float32 (rows, positions,
    filters), with all positions whose letters are inside the row. A code outside the alphabet is an
    InvalidArgumentError.
    """
    compiled = load_operations("lookup", "convolution: lookup-table")
    options = {"stride": stride, "pool": pool, "instructions": instructions}
    kmers = compiled.escala_kmers(codes, alphabet=alphabet, k=k)
    rows, length = codes.shape
    pooled = -(-(length - k + 1) // stride)
    shape = rows, max(pooled - tables.shape[0] + 1, 0) // pool, tables.shape[2]

    @tf.custom_gradient
    def values(tables: tf.Tensor):
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            gradients = compiled.escala_lookups_gradient(kmers, tables, upstream, **options)
            gradients.set_shape(tables.shape)
            return gradients

        results = compiled.escala_lookups(kmers, tables, **options)
        results.set_shape(shape)
        return results, gradient

    return values(tables)
