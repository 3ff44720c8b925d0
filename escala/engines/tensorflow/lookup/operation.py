"""Two convolutions over letters by lookups in tables, each pass over the data in one operation."""

from __future__ import annotations

import tensorflow as tf

from escala.engines.tensorflow.compiled import operations


def look_up(
    codes: tf.Tensor,
    tables: tf.Tensor,
    alphabet: int,
    k: int,
    stride: int,
    pool: int,
    instructions: str = "auto",
) -> tf.Tensor:
    """Return ReLU of the largest of `pool` sums of the tables' rows, at every position.

    Sum j of a position adds one row of each table. That of table t is the row of the k-mer that
    begins at letter stride · (pool · position + j + t). This is a convolution with as many taps as
    tables, over positions `stride` letters apart, with max-pooling and ReLU. Of equal sums, the
    first gets the gradient. The result does not depend on the number of threads.

    `codes` are uint8 (rows, length), and `tables` float32 (taps, alphabet**k, filters). A k-mer's
    number has its first letter as the highest digit. `instructions` are `avx2` or `baseline`;
    `auto` is the first that the processor has. The result is float32 (rows, positions, filters),
    with as many positions as all their letters fit in. A code outside the alphabet is an
    InvalidArgumentError.
    """
    compiled = operations("escala.engines.tensorflow.lookup", "convolution: lookup-table")
    options = {"stride": stride, "pool": pool, "instructions": instructions}
    kmers = compiled.escala_kmers(codes, alphabet=alphabet, k=k)
    rows, length = codes.shape
    pooled = -(-(length - k + 1) // stride)
    shape = rows, max(pooled - tables.shape[0] + 1, 0) // pool, tables.shape[2]

    @tf.custom_gradient
    def values(tables: tf.Tensor):
        def gradient(upstream: tf.Tensor) -> tf.Tensor:
            found = compiled.escala_lookups_gradient(kmers, tables, upstream, **options)
            found.set_shape(tables.shape)
            return found

        found = compiled.escala_lookups(kmers, tables, **options)
        found.set_shape(shape)
        return found, gradient

    return values(tables)
