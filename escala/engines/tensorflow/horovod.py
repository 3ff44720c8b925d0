"""Ranks that exchange by Horovod: synchronous data parallelism by allreduce."""

from __future__ import annotations

import horovod.tensorflow as hvd
import tensorflow as tf

from escala.engines.tensorflow.fast.dense import Factors, InMemory, dense
from escala.engines.tensorflow.ranks import Ranks, tensor_names
from escala.strategies.base import GRADIENT

#: Suffixes of a gradient's name in two exchanges: of its first factor, and of its rows if it is
#: sparse.
INPUTS, INDICES = "/inputs", "/indices"
#: A part of the name of a sum in the forward pass, after the layer's scope; and the suffix for the
#: sum of its gradient.
STATISTICS, BACKWARD = "statistics/", "/backward"


class HorovodRanks(Ranks):
    def start(self):
        hvd.init()
        return [hvd.rank()], hvd.size()

    def local(self, gradients):
        if self.knobs["sparse_as_dense"]:
            return [
                gradient if isinstance(gradient, Factors) else dense(gradient)
                for gradient in gradients
            ]
        return list(gradients)

    def exchange(self, gradients, variables, sums=None):
        names = [f"{GRADIENT}{name}" for name in tensor_names(variables)]
        local = dict(zip(names, self.local(gradients), strict=True))
        result = {}
        for name, factors in local.items():
            if isinstance(factors, InMemory):
                result[name] = factors
            elif isinstance(factors, Factors):
                # Only the inputs, by far the larger factor, are compressed. The other factor has
                # numbers that may be too small for 16 bits. Products are summed in the kernel's own
                # type.
                inputs, form = self._compression.compress(factors.inputs)
                inputs = self.gather(inputs, f"{name}{INPUTS}")
                output_gradients = self.gather(factors.output_gradients, name)
                inputs = self._compression.decompress(inputs, form)
                result[name] = Factors(inputs, output_gradients)
        # The inputs are the larger factors, with most of the bytes, so they are sent first.
        with tf.control_dependencies([factors.inputs for factors in result.values()]):
            if sums:
                summed = [n for n, v in zip(names, variables, strict=True) if sums.takes(v)]
                totals = sums.sum_gradients([dense(local[name]) for name in summed])
                result |= zip(summed, totals, strict=True)
            for name in names:
                if name not in result:
                    result[name] = self._sum(name, local[name])
        return [result[name] for name in names]

    def _sum(self, name, gradient):
        if isinstance(gradient, tf.IndexedSlices):
            # Horovod would make the same exchanges, but under other names in the timeline.
            values = self.gather(gradient.values, name)
            indices = self.gather(gradient.indices, f"{name}{INDICES}")
            return tf.IndexedSlices(values, indices, gradient.dense_shape)
        # Losses are already divided by the global number of rows, so gradients are summed. A mean
        # would give more weight to the rows of a smaller shard.
        return hvd.allreduce(gradient, op=hvd.Sum, compression=self._compression, name=name)

    def gather(self, values, name):
        return hvd.allgather(values, name=name)

    def sum_over_ranks(self, values, name):
        name = f"{STATISTICS}{name}"

        # Horovod would name the gradient's exchange after the operation, but ranks may number
        # operations differently.
        @tf.custom_gradient
        def total(values):
            def gradient(upstream):
                return hvd.allreduce(upstream, op=hvd.Sum, name=f"{name}{BACKWARD}")

            return hvd.allreduce(values, op=hvd.Sum, name=name), gradient

        return total(values)

    @property
    def _compression(self):
        return getattr(hvd.Compression, self.knobs["compression"])

    def broadcast(self, variables):
        hvd.broadcast_variables(variables, root_rank=0)

    def total(self, values):
        return hvd.allreduce(values, op=hvd.Sum, name="total").numpy()

    def stop(self):
        hvd.shutdown()
