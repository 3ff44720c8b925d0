"""Functions of a workload as TensorFlow takes them."""

from __future__ import annotations

import tensorflow as tf

from escala.engines import functions
from escala.engines.tensorflow import building
from escala.engines.tensorflow.building import as_graph, function_of
from escala.workloads.models import given


class Functions(functions.Functions):
    def function(self, name, *default):
        return function_of(self.work, name, *default)

    def build(self, specs, outputs, knobs):
        return building.build(self.work, specs, outputs, self.settings, knobs)

    def shapes(self, model):
        return [variable.shape for variable in model.weights]

    def trained(self, model, weights):
        model.set_weights(weights)
        return model

    def output_form(self, model, specs=()):
        # Keras may not know it.
        _, *shape = getattr(model, "output_shape", None) or (None,)
        return tuple(shape)

    def outputs(self, model, inputs):
        return model(given(inputs), training=False)

    def compiled(self, model, function, specs):
        signature = [tf.TensorSpec((None, *spec.shape), spec.dtype) for spec in specs]
        graph = as_graph(input_signature=signature)(function)
        return lambda *rows: tf.nest.map_structure(lambda each: each.numpy(), graph(*rows))

    def most_probable(self, outputs):
        return tf.argmax(outputs, axis=-1)

    def is_most_probable(self, targets, outputs):
        right = tf.equal(self.most_probable(outputs), tf.cast(targets, tf.int64))
        return tf.cast(right, tf.float32)

    def fits(self, shape, rows):
        # As far as they are known.
        return shape.rank is None or (shape.rank == 1 and shape[0] in (None, rows[0]))

    def added(self, model):
        return [tf.add_n(model.losses)] if model.losses else []
