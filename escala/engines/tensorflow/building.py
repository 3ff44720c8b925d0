"""Build the network of a workload that is trained by steps, and refuse what training would ignore.

Escala makes the steps itself. What Keras does only in `fit`, such as calling a `train_step` of the
model's own, would be left out without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import ModuleType
from typing import Any

import tensorflow as tf

from escala.core.errors import InputError
from escala.data.base import Spec
from escala.engines import layers
from escala.engines.functions import STEPS, file_of, unread
from escala.workloads.models import given

#: Methods that only a training by Keras itself calls: its `fit`, `evaluate` and `predict`.
UNCALLED = (
    *("train_step", "test_step", "predict_step", "compute_loss", "compute_metrics"),
    *("make_train_function", "make_test_function", "make_predict_function"),
    *("compile", "fit", "evaluate", "predict"),
    *("train_on_batch", "test_on_batch", "predict_on_batch"),
)
#: What `fit` and `compile` of Keras are given, by name; a module `model` that has them expects that
#: they are used.
UNREAD = ("callbacks", "class_weight", "compile", "metrics", "sample_weight", *UNCALLED[:2])


def require_one_output(work: ModuleType, model: tf.keras.Model, specs: Sequence[Spec]) -> None:
    """Refuse a model with several outputs.

    A model that makes variables when it is first called, such as one of a user's class, is called
    once, on symbolic rows.
    """
    # Only models of Keras's functional form know their inputs before they are called.
    if getattr(model, "inputs", None):
        result = model.output
    else:
        result = model(given([tf.keras.Input(spec.shape, dtype=spec.dtype) for spec in specs]))
    if tf.nest.is_nested(result):
        kinds = [kind.__name__ for kind in (dict, list, tuple) if isinstance(result, kind)]
        kind = next(iter(kinds), "structure")
        reason = f"the model gives {len(tf.nest.flatten(result))} outputs, as a {kind}"
        remedy = "give one output, such as all of them joined by Concatenate, and one target "
        remedy += "array, and take them apart in row_losses"
        raise InputError(file_of(work), None, reason, remedy)


def layers_of(model: tf.keras.Model) -> list[tf.keras.layers.Layer]:
    """Return a model with all layers in it, in layers, wrappers, cells, lists and models.

    `submodules` of TensorFlow also looks into what layers cache. It fails for cells with dropout
    once they are part of two graphs.
    """
    return [*model._flatten_layers()]


def find_ignored(work: ModuleType, model: Any, optimizer: Any) -> Iterator[tuple[str, str]]:
    """Yield what a run would ignore, each with the remedy."""
    for name in UNCALLED:
        module = getattr(getattr(model, name), "__module__", "")
        if module.partition(".")[0] not in ("keras", "tensorflow"):
            yield (
                f"the model has its own {name}, which is never called: {STEPS}",
                f"remove {name}, and express it by call and row_losses; a training with steps of "
                "its own, such as a GAN, cannot be measured as a workload",
            )
    if model._is_compiled:
        yield (
            f"the model is compiled; the loss, weights and metrics given there are not used: "
            f"{STEPS}",
            "do not call compile, and load a stored model with compile=False",
        )
    yield from unread(work, UNREAD)
    for name, value in (vars(work) | vars(model)).items():
        if any(map(_is_callback, _members(value))):
            yield (
                f"the callback {name} is never called: {STEPS}",
                "remove it; early_stopping, validate and checkpoint_epochs are settings of the "
                "experiment",
            )
    if any(map(_is_in_float16, layers_of(model))):
        yield (
            "layers compute in float16, and the loss is not scaled, so small gradients become 0",
            "use the policy float32 or mixed_bfloat16, or the knob products",
        )
    yield from _find_ignored_of(optimizer)


def _find_ignored_of(optimizer: Any) -> Iterator[tuple[str, str]]:
    """Yield what a run would ignore of an optimizer, each with the remedy."""
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
    if any(each.__module__.startswith("horovod") for each in type(optimizer).__mro__):
        yield (
            "the optimizer is Horovod's; gradients would be exchanged twice",
            "give the optimizer inside it: the strategy exchanges the gradients",
        )
    if not isinstance(optimizer, tf.keras.optimizers.Optimizer):
        reason = f"optimizer returns {type(optimizer).__name__}, and not an optimizer of Keras"
        yield reason, "return a keras.optimizers.Optimizer"


def _members(value: Any) -> Iterable[Any]:
    """Return the values of a collection, or one value by itself."""
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list | tuple) else [value]


def _is_callback(value: Any) -> bool:
    callback = tf.keras.callbacks.Callback
    return isinstance(value, callback) or (isinstance(value, type) and issubclass(value, callback))


def _is_in_float16(layer: Any) -> bool:
    """Return whether a layer with weights computes in float16, or its variables stay in float32."""
    policy = getattr(getattr(layer, "dtype_policy", None), "name", None)
    return policy == "mixed_float16" or (policy == "float16" and bool(layer.trainable_weights))


_NAMES = (
    *("kernel", "bias", "embeddings", "recurrent_kernel", "depthwise_kernel", "pointwise_kernel"),
    *("gamma", "beta", "moving_mean", "moving_variance"),
)
#: Names of initialisers that differ from those of the variables.
_INITIALISERS = {"recurrent_kernel": "recurrent"}
_KERAS = tf.keras.initializers


def begin(model: tf.keras.Model, seed: int) -> None:
    """Set the weights of a model to those that a seed gives under every engine.

    Raises
    ------
    InputError : an initialiser has no law here.
    """
    known = {variable.ref(): law for layer in layers_of(model) for variable, law in _laws(layer)}
    laws = [(known.get(variable.ref()), tuple(variable.shape)) for variable in model.weights]
    for variable, value in zip(model.weights, layers.draw_weights(laws, seed), strict=True):
        if value is None:
            raise InputError(
                "initial_weights",
                layers.SEEDED,
                f"{variable.name} begins by an initialiser that is not known outside of TensorFlow",
                "remove the setting, or use VarianceScaling, Orthogonal, RandomUniform from -x to "
                "x, Zeros or Ones",
            )
        variable.assign(value)


def _laws(layer: tf.keras.layers.Layer) -> Iterator[tuple[tf.Variable, layers.Law | None]]:
    """Yield the variables of a layer itself with their laws."""
    for name in _NAMES:
        variable = getattr(layer, name, None)
        initialiser = getattr(layer, f"{_INITIALISERS.get(name, name)}_initializer", None)
        if isinstance(variable, tf.Variable):
            forgets = name == "bias" and getattr(layer, "unit_forget_bias", False)
            yield variable, layers.forget_gate if forgets else _law(initialiser)


def _law(initialiser: object) -> layers.Law | None:
    if isinstance(initialiser, _KERAS.VarianceScaling):
        # Keras names the normal law without limits otherwise.
        distribution = initialiser.distribution.removeprefix("untruncated_")
        return layers.variance_scaling(initialiser.scale, initialiser.mode, distribution)
    if isinstance(initialiser, _KERAS.Orthogonal) and initialiser.gain == 1:
        return layers.orthogonal
    if isinstance(initialiser, _KERAS.RandomUniform) and initialiser.minval == -initialiser.maxval:
        return layers.uniform(initialiser.maxval)
    constants = {_KERAS.Zeros: layers.ZEROS, _KERAS.Ones: layers.ONES}
    return next((law for kind, law in constants.items() if isinstance(initialiser, kind)), None)


_autograph = tf.__internal__.autograph


def as_graph(**options: Any) -> Callable[[Callable], Callable]:
    """Return a decorator that compiles a function as `tf.function` does, without AutoGraph.

    Inside the function Keras still applies AutoGraph to the `call` of layers and models whose
    classes are not part of Keras. With `tf.function(autograph=False)` alone, Keras would not
    convert them. `options` are those of `tf.function`.
    """

    def compiled(function: Callable) -> Callable:
        context = _autograph.control_status_ctx()
        unconverted = _autograph.tf_convert(function, context, convert_by_default=False)
        return tf.function(unconverted, autograph=False, **options)

    return compiled


def function_of(work: ModuleType, name: str, default: Callable | None = None) -> Callable:
    """Return a function of a workload, whose control flow may depend on tensors, or the default.

    `work` is the module `model` of the workload. The default is used as it is if the workload does
    not have the function; without a default this is an AttributeError.
    """
    if default and not hasattr(work, name):
        return default
    return _autograph.tf_convert(getattr(work, name), _autograph.control_status_ctx())
