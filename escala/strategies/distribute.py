"""The base of the synchronous strategies of `tf.distribute`."""

from __future__ import annotations

from contextlib import contextmanager

from escala.strategies.base import Strategy


class Distribute(Strategy):
    """Replicas of a `tf.distribute` strategy, whose optimizers sum the gradients over them."""

    shows_steps = False
    #: Set by `start`: the `tf.distribute.Strategy`.
    replicas = None

    @contextmanager
    def scope(self):
        import tensorflow as tf

        with self.replicas.scope(), tf.variable_creator_scope(_first_copy_stands_for_all):
            yield

    def compiled(self, step, signature):
        import tensorflow as tf

        @tf.function(reduce_retracing=True)
        def everywhere(*arguments):
            summed = []
            for values in self.replicas.run(step, args=arguments):
                local = self.replicas.experimental_local_results(values)
                summed.append(tf.add_n([tf.cast(value, tf.float32) for value in local]))
            return summed

        def placed(values):
            # A process holds consecutive ranks: the first of them is its replica 0.
            first = self.place.ranks[0]
            return self.replicas.experimental_distribute_values_from_function(
                lambda context: tf.constant(values[context.replica_id_in_sync_group - first])
            )

        def run(arguments):
            columns = zip(*arguments, strict=True)
            return [float(value) for value in everywhere(*map(placed, columns))]

        return run

    def exchange(self, gradients, variables):
        import tensorflow as tf

        if self.knobs["sparse_as_dense"]:
            return [tf.convert_to_tensor(gradient) for gradient in gradients]
        return list(gradients)

    def broadcast(self, variables):
        """Do nothing: a variable created in the scope has the first replica's value in all."""

    def total(self, values):
        import numpy as np
        import tensorflow as tf

        # The first replica of each process has the values, the others have zeros.
        silent = np.zeros_like(values)
        mine = self.replicas.experimental_distribute_values_from_function(
            lambda context: tf.constant(
                values if context.replica_id_in_sync_group == self.place.ranks[0] else silent
            )
        )
        return self._sum(mine).numpy()

    @property
    def _sum(self):
        import tensorflow as tf

        if not hasattr(self, "_summing"):
            self._summing = tf.function(
                lambda value: self.replicas.reduce("SUM", value, axis=None), reduce_retracing=True
            )
        return self._summing

    def weights(self, variables):
        by_variable = [self.replicas.experimental_local_results(variable) for variable in variables]
        return [[copy.numpy() for copy in copies] for copies in zip(*by_variable, strict=True)]

    def stop(self):
        pass


def _first_copy_stands_for_all(create, **options):
    """Create a variable; one that each replica updates by itself is read from the first replica.

    Otherwise TensorFlow would aggregate such a variable, for example a moving statistic, at every
    read outside a step. All processes would have to read it at the same time.
    """
    import tensorflow as tf

    if options.get("synchronization") == tf.VariableSynchronization.ON_READ:
        options["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
    return create(**options)
