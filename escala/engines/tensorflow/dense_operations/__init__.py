"""Operations in C++ on dense layers, equal to TensorFlow's to rounding, and faster.

`rmsprop` updates a dense layer's kernel by the two factors of its gradient, without their product.
"""

from __future__ import annotations

from types import ModuleType

from escala.engines.tensorflow.compiled import operations


def compiled(instead: str) -> ModuleType:
    """Return the operations, see `escala.engines.tensorflow.compiled.operations`."""
    return operations("escala.engines.tensorflow.dense_operations", instead)
