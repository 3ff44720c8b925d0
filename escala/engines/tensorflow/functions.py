"""Functions of a workload for TensorFlow, and the parts of its model that training would ignore.

Escala makes the steps itself. So parts that only Keras's `fit` uses, such as a model's own
`train_step`, would silently be ignored.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from escala.engines import functions
from escala.engines.functions import WHY_IGNORED, find_unread
from escala.engines.tensorflow.fast.dense import products
from escala.engines.tensorflow.layers import AUTOGRAPH, as_graph, layers_of
from escala.engines.tensorflow.ranks import tensor_names
from escala.engines.tensorflow.step import local_variables, make_compute, step_signature
from escala.workloads.models import as_model_input

#: Methods that only Keras's own `fit`, `evaluate` and `predict` call.
UNCALLED = (
    *("train_step", "test_step", "predict_step", "compute_loss", "compute_metrics"),
    *("make_train_function", "make_test_function", "make_predict_function"),
    *("compile", "fit", "evaluate", "predict"),
    *("train_on_batch", "test_on_batch", "predict_on_batch"),
)
#: Names of arguments of Keras's `fit` and `compile`. A module `model` with such a name expects that
#: the value is used.
UNREAD = ("callbacks", "class_weight", "compile", "metrics", "sample_weight", *UNCALLED[:2])


class Functions(functions.Functions):
    a_model = f"a keras.Model of TensorFlow {tf.__version__}"
    tensor = staticmethod(tf.constant)

    def function(self, name, *default):
        if default and not hasattr(self.work, name):
            return default[0]
        # The function's control flow may depend on tensors.
        return AUTOGRAPH.tf_convert(getattr(self.work, name), AUTOGRAPH.control_status_ctx())

    def is_model(self, model):
        return isinstance(model, tf.keras.Model)

    def find_ignored(self, model, optimizer):
        for name in UNCALLED:
            module = getattr(getattr(model, name), "__module__", "")
            if module.partition(".")[0] not in ("keras", "tensorflow"):
                yield (
                    f"the model has its own {name}, which is never called: {WHY_IGNORED}",
                    f"remove {name}, and express it by call and row_losses; a training with steps "
                    "of its own, such as a GAN, cannot be measured as a workload",
                )
        if model._is_compiled:
            yield (
                "the model is compiled; the loss, weights and metrics given there are not used: "
                f"{WHY_IGNORED}",
                "do not call compile, and load a stored model with compile=False",
            )
        yield from find_unread(self.work, UNREAD)
        callback = tf.keras.callbacks.Callback
        for name, value in (vars(self.work) | vars(model)).items():
            members = [*value.values()] if isinstance(value, dict) else value
            members = members if isinstance(members, list | tuple) else [members]
            kinds = (member if isinstance(member, type) else type(member) for member in members)
            if any(issubclass(kind, callback) for kind in kinds):
                yield (
                    f"the callback {name} is never called: {WHY_IGNORED}",
                    "remove it; early_stopping, validate and checkpoint_epochs are settings of the "
                    "experiment",
                )
        for layer in layers_of(model):
            policy = getattr(getattr(layer, "dtype_policy", None), "name", None)
            if policy == "mixed_float16" or (policy == "float16" and layer.trainable_weights):
                yield (
                    f"{layer.name} computes in float16, and the loss is not scaled, so small "
                    "gradients become 0",
                    "use the policy float32 or mixed_bfloat16, or the knob products",
                )
        yield from find_ignored_options(optimizer)

    def require_trainable(self, model, specs):
        # Only models of Keras's functional API know their inputs before the first call. A model of
        # a user's class may make its variables in the first call, so the model is called on
        # symbolic rows.
        if getattr(model, "inputs", None):
            result = model.output
        else:
            result = model(
                as_model_input([tf.keras.Input(spec.shape, dtype=spec.dtype) for spec in specs])
            )
        count, kind = len(tf.nest.flatten(result)), type(result).__name__
        self.require_one_output(not tf.nest.is_nested(result), f"{count} outputs, as a {kind},")

    def shapes(self, model):
        return [variable.shape for variable in model.weights]

    def with_weights(self, model, weights):
        model.set_weights(weights)
        return model

    def output_form(self, model, specs=()):
        # Keras may not know the shape.
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
        # A dimension that is unknown before a step is None, and fits.
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
        compute = make_compute(model, self, {}, local_variables(model), lambda values, name: values)
        traced = []

        def note(*arguments):
            gradients, *_ = compute(*arguments)
            # The number of a variable's rows that one row of the model reads; None if unknown.
            traced[:] = [
                gradient.indices.shape[0] if isinstance(gradient, tf.IndexedSlices) else None
                for gradient in gradients
            ]

        as_graph(input_signature=step_signature(data, 1))(note).get_concrete_function()
        dense_rows = {layer.kernel.ref(): rows for layer, rows in products(model)}
        described = super().gradient_forms(model, data)
        for form, variable, reads in zip(described, variables, traced, strict=True):
            form |= {"factor_rows": dense_rows.get(variable.ref()), "sparse_rows": reads}
        return described


def find_ignored_options(optimizer: Any) -> Iterator[tuple[str, str]]:
    """Yield every part of an optimizer that a run would ignore, and a remedy."""
    if hasattr(optimizer, "get_scaled_loss"):
        reason = "the optimizer scales the loss, and no loss is scaled here"
        yield reason, "give the inner optimizer"
    if getattr(optimizer, "use_ema", False):
        yield (
            "use_ema averages weights for the end of fit; what is evaluated and kept here are the "
            "weights without the average",
            "set use_ema=False",
        )
    if isinstance(optimizer, tf.keras.optimizers.legacy.Optimizer):
        yield "the optimizer is of the legacy form of Keras", "use keras.optimizers"
    if any(kind.__module__.startswith("horovod") for kind in type(optimizer).__mro__):
        yield (
            "the optimizer is Horovod's; gradients would be exchanged twice",
            "give the optimizer inside it: the strategy exchanges the gradients",
        )
    if not isinstance(optimizer, tf.keras.optimizers.Optimizer):
        reason = f"optimizer returns {type(optimizer).__name__}, and not an optimizer of Keras"
        yield reason, "return a keras.optimizers.Optimizer"
