"""All variables that the steps of a process change: of the model, and of the optimizer.

Trainable variables and variables of the optimizer are *replicated*: equal on all ranks after any
step, except under `parameter-server`, which has one copy. Other variables, such as the moving
statistics of batch normalisation, are *local* to a rank during an epoch, because each rank updates
them with its own rows. At the end of every epoch `average` makes them equal again. Layers that
normalise over the rows of all ranks (`normalisation`) keep theirs equal after any step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from escala.engines.tensorflow.building import layers_of
from escala.engines.tensorflow.fast.dense import DenseLayers
from escala.engines.tensorflow.layers import layers_over_ranks
from escala.engines.tensorflow.ranks import Ranks

#: The prefix of the name of an optimizer's variable in the exchange that gathers its parts.
_OPTIMIZER = "optimizer/"


class State:
    """The variables of model and optimizer, some of them divided among the ranks.

    Of a shared kernel a rank updates some rows, and the optimizer has variables for these only.
    Such variables are gathered where they leave the process, so a checkpoint has the same content
    as one of a run without shared kernels. The arguments are those of `DenseLayers`, the attribute
    `dense`.
    """

    def __init__(
        self,
        model: tf.keras.Model,
        optimizer: tf.keras.optimizers.Optimizer,
        plan: Mapping[str, Any],
        ranks: Ranks,
    ):
        self.model, self.optimizer, self._ranks = model, optimizer, ranks
        self.dense = DenseLayers(model, optimizer, plan, ranks)

    @property
    def _variables(self) -> list[tf.Variable]:
        return [*self.model.variables, *self.optimizer.variables]

    @property
    def changed(self) -> list[tf.Variable]:
        """All variables of this process that a step may change."""
        return [*self._variables, *self.dense.local]

    def broadcast(self) -> None:
        """Give every rank the values of rank 0, and of a shared kernel its rows.

        The optimizer's variables for these rows are left as they are: newly built or restored.
        """
        self._ranks.broadcast([v for v in self._variables if v.ref() not in self.dense.parts])
        self.dense.place()

    def values(self) -> list[np.ndarray]:
        """Return the values of all variables of model and optimizer, gathered where divided.

        Every process calls this, after `DenseLayers.wait`.
        """
        values = [variable.numpy() for variable in self.model.variables]
        for number, variable in enumerate(self.optimizer.variables):
            if variable.ref() in self.dense.parts:
                variable = self._ranks.gather(variable, f"{_OPTIMIZER}{number}")
            values.append(variable.numpy())
        return values

    def restore(self, values: Sequence[np.ndarray]) -> None:
        """Set the variables to what `values` returned in a process of a run with as many ranks."""
        for variable, value in zip(self._variables, values, strict=True):
            part = self.dense.parts.get(variable.ref())
            variable.assign(value[part.rows] if part else value)
        self.dense.place()


def local_variables(model: tf.keras.Model) -> list[tf.Variable]:
    """Return the variables that each rank updates by its own rows: floats that are not trainable.

    Weights of a frozen layer are not among them: they remain trainable variables. Neither are
    statistics of the rows of all ranks, which are equal on all.
    """
    shared = {id(v) for layer in layers_over_ranks(model) for v in layer.non_trainable_variables}
    variables = model.non_trainable_variables
    return [v for v in variables if not v.trainable and v.dtype.is_floating and id(v) not in shared]


def average(variables: Sequence[tf.Variable], rows: Sequence[int], ranks: Ranks) -> None:
    """Set variables of all ranks to their mean, weighted by the rows of each rank.

    A rank without rows has not updated its variables and has weight 0. Every process calls this,
    with the number of rows in the epoch of each rank that it drives.
    """
    if not variables:
        return
    copies = ranks.weights(variables)
    # Ranks that share one copy of the variables have updated it together.
    weights = rows if len(copies) == len(rows) else [sum(rows)]
    for variable, mean in zip(variables, ranks.mean(copies, weights), strict=True):
        variable.assign(mean.astype(variable.dtype.as_numpy_dtype))


def seed_random_layers(model: tf.keras.Model, *seed: int) -> None:
    """Seed the random layers of a model, such as `Dropout`, anew.

    So the random numbers of an epoch do not depend on earlier ones, and a resumed run draws the
    same numbers as an uninterrupted one. Within one `tf.distribute` strategy each replica draws its
    own numbers from the same state. The non-negative numbers of `seed` identify the run, the
    process and the epoch.
    """
    kind = tf.keras.__internal__.layers.BaseRandomLayer
    generators = [
        getattr(getattr(layer, "_random_generator", None), "_generator", None)
        for layer in layers_of(model)
        if isinstance(layer, kind)
    ]
    # A wrapper may keep a layer that it never builds, as `Bidirectional` does, or one without
    # chance. Such a layer has no generator.
    for number, generator in enumerate(
        generator for generator in generators if generator is not None
    ):
        [key] = np.random.SeedSequence([*seed, number]).generate_state(1, np.uint64)
        generator.reset_from_seed(int(key))


def use_generators() -> None:
    """Make Keras's random layers draw from generators whose state can be set.

    The operations that they use by default hide their state. Call this before a model is built.
    """
    tf.keras.backend.experimental.enable_tf_random_generator()
