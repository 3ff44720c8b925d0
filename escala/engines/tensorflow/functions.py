"""Functions of a workload as TensorFlow takes them."""

from __future__ import annotations

import tensorflow as tf

from escala.engines import functions
from escala.engines.tensorflow import building
from escala.engines.tensorflow import step as steps
from escala.engines.tensorflow.building import AUTOGRAPH, as_graph
from escala.engines.tensorflow.fast.dense import products
from escala.engines.tensorflow.ranks import tensor_names
from escala.engines.tensorflow.state import local_variables
from escala.workloads.models import as_model_input


class Functions(functions.Functions):
    no_model = f"and not a keras.Model of TensorFlow {tf.__version__}"
    a_model = "a keras.Model"
    tensor = staticmethod(tf.constant)

    def function(self, name, *default):
        if default and not hasattr(self.work, name):
            return default[0]
        # Its control flow may depend on tensors.
        return AUTOGRAPH.tf_convert(getattr(self.work, name), AUTOGRAPH.control_status_ctx())

    def is_model(self, model):
        return isinstance(model, tf.keras.Model)

    def find_ignored(self, model, optimizer):
        return building.find_ignored(self.work, model, optimizer)

    def require_trainable(self, model, specs):
        # Only models of Keras's functional form know their inputs before they are called. One that
        # makes variables when it is first called, as of a user's class, is called on symbolic rows.
        if getattr(model, "inputs", None):
            result = model.output
        else:
            result = model(
                as_model_input([tf.keras.Input(spec.shape, dtype=spec.dtype) for spec in specs])
            )
        kind = next((k.__name__ for k in (dict, list, tuple) if isinstance(result, k)), "structure")
        count = len(tf.nest.flatten(result))
        self.require_one_output(not tf.nest.is_nested(result), f"{count} outputs, as a {kind},")

    def shapes(self, model):
        return [variable.shape for variable in model.weights]

    def with_weights(self, model, weights):
        model.set_weights(weights)
        return model

    def output_form(self, model, specs=()):
        # Keras may not know it.
        _, *shape = getattr(model, "output_shape", None) or (None,)
        return tuple(shape)

    def outputs(self, model, inputs):
        return model(as_model_input(inputs), training=False)

    def compile(self, model, function, specs):
        signature = [tf.TensorSpec((None, *spec.shape), spec.dtype) for spec in specs]
        graph = as_graph(input_signature=signature)(function)
        return lambda *rows: tf.nest.map_structure(lambda tensor: tensor.numpy(), graph(*rows))

    def most_probable(self, outputs):
        return tf.argmax(outputs, axis=-1)

    def is_most_probable(self, targets, outputs):
        right = tf.equal(self.most_probable(outputs), tf.cast(targets, tf.int64))
        return tf.cast(right, tf.float32)

    def fits(self, shape, rows):
        # A dimension that is unknown before a step, None, fits.
        return shape.rank is None or (shape.rank == 1 and shape[0] in (None, rows[0]))

    def extra_losses(self, model):
        return [tf.add_n(model.losses)] if model.losses else []

    def gradients(self, model, weights, inputs, targets):
        with tf.GradientTape() as tape:
            outputs = model(as_model_input([tf.constant(array) for array in inputs]), training=True)
            losses = self.work.row_losses(tf.constant(targets), outputs, self.settings)
            loss = tf.add_n([tf.reduce_sum(losses), *model.losses])
        variables = model.trainable_variables
        computed = tape.gradient(loss, variables)
        dense = [
            gradient if gradient is None else tf.convert_to_tensor(gradient).numpy()
            for gradient in computed
        ]
        return [
            (variable.name, gradient) for variable, gradient in zip(variables, dense, strict=True)
        ]

    def trainable_arrays(self, model):
        variables = model.trainable_variables
        for name, variable in zip(tensor_names(variables), variables, strict=True):
            yield name, variable.shape, variable.dtype.size

    def gradient_forms(self, model, data):
        variables = model.trainable_variables
        compute = steps.make_compute(
            model, self, {}, local_variables(model), lambda values, name: values
        )
        traced = []

        def note(*arguments):
            gradients, *_ = compute(*arguments)
            # How many rows of a variable one row of the model reads; None if it is not known.
            traced[:] = [
                gradient.indices.shape[0] if isinstance(gradient, tf.IndexedSlices) else None
                for gradient in gradients
            ]

        as_graph(input_signature=steps.step_signature(data, 1))(note).get_concrete_function()
        dense_rows = {layer.kernel.ref(): rows for layer, rows in products(model)}
        described = super().gradient_forms(model, data)
        for form, variable, reads in zip(described, variables, traced, strict=True):
            form |= {"factor_rows": dense_rows.get(variable.ref()), "sparse_rows": reads}
        return described
