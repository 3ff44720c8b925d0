"""Ranks that exchange by Horovod: synchronous data parallelism by allreduce."""

from __future__ import annotations

import horovod.tensorflow as hvd
import tensorflow as tf

from escala.engines.tensorflow.fast.dense import Factors, InMemory, dense
from escala.engines.tensorflow.ranks import Ranks, tensor_names
from escala.strategies.base import GRADIENT

#: The suffixes of a gradient's name: for its first factor, and for the rows of a sparse gradient.
INPUTS, INDICES = "/inputs", "/indices"
#: A part of the name of a sum inside the forward pass (TensorFlow puts the layer's scope before
#: it), and the suffix of that of its gradient.
STATISTICS, BACKWARD = "statistics/", "/backward"


class HorovodRanks(Ranks):
    def start(self):
        hvd.init()
        return [hvd.rank()], hvd.size()

    def local(self, gradients):
        if self.knobs["sparse_as_dense"]:
            return [g if isinstance(g, Factors) else dense(g) for g in gradients]
        return list(gradients)

    def exchange(self, gradients, variables, sums=None):
        names = [f"{GRADIENT}{name}" for name in tensor_names(variables)]
        local = dict(zip(names, self.local(gradients), strict=True))
        exchanged = {n: g for n, g in local.items() if isinstance(g, Factors)}
        for name, factors in exchanged.items():
            if not isinstance(factors, InMemory):
                # Only the inputs, by far the larger factor, are compressed. Errors may be too small
                # for 16 bits. Products are summed in the kernel's own type.
                inputs, form = self._compression.compress(factors.inputs)
                inputs = self.gather(inputs, f"{name}{INPUTS}")
                output_gradients = self.gather(factors.output_gradients, name)
                inputs = self._compression.decompress(inputs, form)
                exchanged[name] = Factors(inputs, output_gradients)
        # The large factors are most of the bytes of a gradient and are sent first.
        with tf.control_dependencies([factors.inputs for factors in exchanged.values()]):
            if sums:
                taken = [n for n, v in zip(names, variables, strict=True) if sums.takes(v)]
                exchanged |= zip(
                    taken, sums.sum_gradients([dense(local[n]) for n in taken]), strict=True
                )
            exchanged |= {n: self._sum(n, g) for n, g in local.items() if n not in exchanged}
        return [exchanged[name] for name in names]

    def _sum(self, name, gradient):
        if isinstance(gradient, tf.IndexedSlices):
            # Horovod would do the same, but under other names in the timeline.
            values = self.gather(gradient.values, name)
            indices = self.gather(gradient.indices, f"{name}{INDICES}")
            return tf.IndexedSlices(values, indices, gradient.dense_shape)
        # Losses are already divided by the global number of rows, so gradients are summed:
        # an average would weigh the rows of a smaller shard more.
        return hvd.allreduce(gradient, op=hvd.Sum, compression=self._compression, name=name)

    def gather(self, values, name):
        return hvd.allgather(values, name=name)

    def sum_over_ranks(self, values, name):
        name = f"{STATISTICS}{name}"

        def total(given, suffix=""):
            return hvd.allreduce(given, op=hvd.Sum, name=f"{name}{suffix}")

        # Horovod would name the gradient's exchange after the operation, which ranks may number
        # differently.
        return tf.custom_gradient(lambda given: (total(given), lambda up: total(up, BACKWARD)))(
            values
        )

    @property
    def _compression(self):
        return getattr(hvd.Compression, self.knobs["compression"])

    def broadcast(self, variables):
        hvd.broadcast_variables(variables, root_rank=0)

    def total(self, values):
        return hvd.allreduce(values, op=hvd.Sum, name="total").numpy()

    def stop(self):
        hvd.shutdown()
