"""Compile functions to graphs, and apply AutoGraph only to the code of workloads.

AutoGraph rewrites the source of functions so that `if`, `for` and `while` may depend on tensors.
Functions of Escala have no such control flow, and to rewrite them takes processor time in every
rank.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import tensorflow as tf

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
