"""RMSprop whose update of a variable is one operation, which reads and writes its arrays in place.

Keras composes the update from products, sums and roots, each of which writes an array as large as
the variable before the next one reads it.
"""

from __future__ import annotations

import tensorflow as tf
from tensorflow.keras import saving


@saving.register_keras_serializable(package="escala")
class FusedRMSprop(tf.keras.optimizers.RMSprop):
    """Keras's RMSprop, each variable updated by TensorFlow's `ResourceApplyRMSProp`.

    The formulas are Keras's own, epsilon under the root; results differ by rounding. A gradient
    that has rows of a variable alone is made dense first. That operation keeps the last update,
    momentum or not: there is a `momentum` for each variable, which Keras leaves out where it is 0.

    Parameters
    ----------
    options : of `tf.keras.optimizers.RMSprop`.

    Raises
    ------
    ValueError : `centered` is asked for, which that operation is not.
    """

    def __init__(self, learning_rate: float = 0.001, **options):
        super().__init__(learning_rate, **options)
        if self.centered:
            raise ValueError("FusedRMSprop has no centered gradients; use Keras's RMSprop")

    def build(self, var_list: list[tf.Variable]) -> None:
        super().build(var_list)
        if not self._momentums:
            self._momentums = [self.add_variable_from_reference(v, "momentum") for v in var_list]

    def update_step(self, gradient: tf.Tensor | tf.IndexedSlices, variable: tf.Variable) -> None:
        place = self._index_dict[self._var_key(variable)]
        tf.raw_ops.ResourceApplyRMSProp(
            var=variable.handle,
            ms=self._velocities[place].handle,
            mom=self._momentums[place].handle,
            lr=tf.cast(self.learning_rate, variable.dtype),
            rho=self.rho,
            momentum=self.momentum,
            epsilon=self.epsilon,
            grad=tf.convert_to_tensor(gradient),
        )
