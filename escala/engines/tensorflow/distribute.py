"""The base of ranks that `tf.distribute` synchronises. The optimizer sums their gradients."""

from __future__ import annotations

from contextlib import contextmanager
from functools import cached_property

import numpy as np
import tensorflow as tf

from escala.engines.tensorflow.graphs import as_graph
from escala.engines.tensorflow.ranks import Ranks


class Distribute(Ranks):
    reads_clock = False
    #: Set by `start`: the `tf.distribute.Strategy`.
    tf_strategy = None

    @contextmanager
    def scope(self):
        with self.tf_strategy.scope(), tf.variable_creator_scope(_read_from_first_replica):
            yield

    def compiled(self, step, signature):
        @as_graph(reduce_retracing=True)
        def on_all_replicas(*arguments):
            summed = []
            for values in self.tf_strategy.run(step, args=arguments):
                local = self.tf_strategy.experimental_local_results(values)
                summed.append(tf.add_n([tf.cast(value, tf.float32) for value in local]))
            return summed

        def per_replica(values):
            # A process holds consecutive ranks, and its first rank is its first replica.
            first = self.place.ranks[0]
            return self.tf_strategy.experimental_distribute_values_from_function(
                lambda context: tf.constant(values[context.replica_id_in_sync_group - first])
            )

        def run(arguments):
            columns = zip(*arguments, strict=True)
            return [float(value) for value in on_all_replicas(*map(per_replica, columns))]

        return run

    def exchange(self, gradients, variables):
        if self.knobs["sparse_as_dense"]:
            return [tf.convert_to_tensor(gradient) for gradient in gradients]
        return list(gradients)

    def summed(self, values, name):
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, values)

    def broadcast(self, variables):
        """Do nothing: variables created in the scope start equal on all replicas."""

    def total(self, values):
        # In each process, the first replica adds the values and the others add zeros.
        zeros = np.zeros_like(values)
        per_replica = self.tf_strategy.experimental_distribute_values_from_function(
            lambda context: tf.constant(
                values if context.replica_id_in_sync_group == self.place.ranks[0] else zeros
            )
        )
        return self._sum(per_replica).numpy()

    @cached_property
    def _sum(self):
        return as_graph(reduce_retracing=True)(
            lambda value: self.tf_strategy.reduce("SUM", value, axis=None)
        )

    def weights(self, variables):
        by_variable = [
            self.tf_strategy.experimental_local_results(variable) for variable in variables
        ]
        return [[copy.numpy() for copy in copies] for copies in zip(*by_variable, strict=True)]


def _read_from_first_replica(create, **options):
    """Create a variable that, if replicas update it separately, is read from the first replica.

    Moving statistics are such variables. Without this, TensorFlow would aggregate them over all
    replicas at every read outside a step, and all processes would have to read at the same time.
    """
    if options.get("synchronization") == tf.VariableSynchronization.ON_READ:
        options["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
    return create(**options)
