"""Build the network of a workload that is trained by steps, and refuse what training would ignore.

Escala makes the steps itself. What Keras does only in `fit`, such as calling a `train_step` of the
model's own, would be left out without a word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from types import ModuleType
from typing import Any

import tensorflow as tf

from escala.core.errors import InputError
from escala.engines import layers
from escala.engines.functions import STEPS, unread

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
    callback = tf.keras.callbacks.Callback
    for name, value in (vars(work) | vars(model)).items():
        members = [*value.values()] if isinstance(value, dict) else value
        members = members if isinstance(members, list | tuple) else [members]
        kinds = (member if isinstance(member, type) else type(member) for member in members)
        if any(issubclass(kind, callback) for kind in kinds):
            yield (
                f"the callback {name} is never called: {STEPS}",
                "remove it; early_stopping, validate and checkpoint_epochs are settings of the "
                "experiment",
            )
    for layer in layers_of(model):
        policy = getattr(getattr(layer, "dtype_policy", None), "name", None)
        if policy == "mixed_float16" or (policy == "float16" and layer.trainable_weights):
            yield (
                f"{layer.name} computes in float16, and the loss is not scaled, so small gradients "
                "become 0",
                "use the policy float32 or mixed_bfloat16, or the knob products",
            )
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


_NAMES = (
    *("kernel", "bias", "embeddings", "recurrent_kernel", "depthwise_kernel", "pointwise_kernel"),
    *("gamma", "beta", "moving_mean", "moving_variance"),
)
_KERAS = tf.keras.initializers


def begin(model: tf.keras.Model, seed: int) -> None:
    """Set the weights of a model to those that a seed gives under every engine.

    Raises
    ------
    InputError : an initialiser has no law here.
    """
    known = {}
    for layer, name in product(layers_of(model), _NAMES):
        if isinstance(variable := getattr(layer, name, None), tf.Variable):
            forgets = name == "bias" and getattr(layer, "unit_forget_bias", False)
            initialiser = getattr(layer, f"{name.removesuffix('_kernel')}_initializer", None)
            known[variable.ref()] = layers.forget_gate if forgets else _law(initialiser)
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


AUTOGRAPH = tf.__internal__.autograph


def as_graph(**options: Any) -> Callable[[Callable], Callable]:
    """Return a decorator that compiles a function as `tf.function` does, without AutoGraph.

    Inside the function Keras still applies AutoGraph to the `call` of layers and models whose
    classes are not part of Keras. With `tf.function(autograph=False)` alone, Keras would not
    convert them. `options` are those of `tf.function`.
    """

    def decorate(function: Callable) -> Callable:
        context = AUTOGRAPH.control_status_ctx()
        unconverted = AUTOGRAPH.tf_convert(function, context, convert_by_default=False)
        return tf.function(unconverted, autograph=False, **options)

    return decorate
