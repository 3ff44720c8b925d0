"""All variables that the steps of a process change: of the model, and of the optimizer.

Trainable variables and variables of the optimizer are *replicated*: equal on all ranks after any
step, except under `parameter-server`, which has one copy. Other variables, such as the moving
statistics of batch normalisation, are *local* to a rank during an epoch, because each rank updates
them with its own rows. At the end of every epoch `average` makes them equal again. Layers that
normalise over the rows of all ranks (`normalisation`) keep theirs equal after any step.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import tensorflow as tf

from escala.engines import costs
from escala.engines.tensorflow.building import layers_of
from escala.engines.tensorflow.factors import Factors, InMemory, takes_factors
from escala.engines.tensorflow.layers import synchronised
from escala.engines.tensorflow.ranks import Ranks
from escala.engines.tensorflow.shared_memory import SharedKernel, Sums, noted_variables

#: The prefix of the name of an optimizer's variable in the exchange that gathers its parts.
_OPTIMIZER = "optimizer/"


class State:
    """The variables of model and optimizer, some of them divided among the ranks.

    Of a shared kernel a rank updates some rows, and the optimizer has variables for these only.
    Such variables are gathered where they leave the process, so a checkpoint has the same content
    as one of a run without shared kernels.

    The optimizer is not yet built. `shared` are kernels of the model that lie in memory which all
    ranks of a node share, and `factored` those whose gradients are factors, shared or not. `summed`
    is whether ranks that share kernels may sum the gradients of other variables through memory,
    too.
    """

    def __init__(
        self,
        model: tf.keras.Model,
        optimizer: tf.keras.optimizers.Optimizer,
        shared: Sequence[SharedKernel],
        ranks: Ranks,
        summed: bool = True,
        factored: Sequence[tf.Variable] = (),
    ):
        self.model, self.optimizer = model, optimizer
        self.shared, self._ranks = shared, ranks
        by_kernel = {each.kernel.ref(): each for each in shared}
        self._shared_by_variable = [by_kernel.get(v.ref()) for v in model.trainable_variables]
        #: The variables that the optimizer updates, in the order of the model's trained variables.
        self.updated = [
            kernel.local if kernel else variable
            for kernel, variable in zip(
                self._shared_by_variable, model.trainable_variables, strict=True
            )
        ]
        self.sums = self._sums({variable.ref() for variable in factored}) if summed else None
        with noted_variables(optimizer) as created:
            optimizer.build(self.updated)
        by_rows = {each.local.ref(): each for each in shared}
        self._parts = {
            variable.ref(): by_rows[reference.ref()]
            for reference, variable in created
            if reference.ref() in by_rows
        }

    def _sums(self, factored: Collection) -> Sums | None:
        """Return how ranks sum gradients through memory, if they share kernels.

        These are the gradients of all variables that have no factors, if they are few bytes.
        """
        if not self.shared:
            return None
        others = [
            updated
            for updated, variable in zip(self.updated, self.model.trainable_variables, strict=True)
            if variable.ref() not in factored and updated.dtype == tf.float32
        ]
        numbers = sum(variable.shape.num_elements() for variable in others)
        few = costs.sums_in_memory(numbers, self._ranks.place.processes)
        return Sums(others, self._ranks) if few else None

    @property
    def changed(self) -> list[tf.Variable]:
        """All variables of this process that a step may change."""
        local = [each.local for each in self.shared]
        return [*self.model.variables, *self.optimizer.variables, *local]

    def begin_step(self, rows: tf.Tensor) -> None:
        """Begin a step of `rows` rows on this rank: wait for the kernels that it reads."""
        for each in self.shared:
            each.begin_step(rows)

    def wait(self) -> None:
        """Wait until the model's variables are current and equal on all ranks."""
        for each in self.shared:
            each.wait()

    def exchanged(
        self,
        gradients: Sequence[tf.Tensor | tf.IndexedSlices | Factors],
        computed: Sequence[tf.Tensor | tf.IndexedSlices | Factors],
    ) -> list:
        """Return gradients with the factors that ranks exchange through memory.

        They are given as the strategy exchanged them, and as this rank `computed` them.
        """
        # While gradients of layers before it are computed, a rank still reads a kernel. All ranks
        # must exchange through memory in one order, because each waits there for the others.
        before = [each for each in computed if not isinstance(each, Factors)]
        if self.sums:
            before = [each for each in gradients if not isinstance(each, Factors)]
        exchanged = []
        for gradient, part in zip(gradients, self._shared_by_variable, strict=True):
            if isinstance(gradient, InMemory):
                with tf.control_dependencies(tf.nest.flatten(before, expand_composites=True)):
                    gradient = part.exchanged(gradient)
                before = [*gradient]
            exchanged.append(gradient)
        return exchanged

    def update(self, gradients: Sequence[tf.Tensor | tf.IndexedSlices | Factors]) -> list:
        """Apply the sums of the gradients over all ranks, and return the variables updated.

        An update waits for all gradients. Before the last one, it would take the core from the
        backward pass, and copy variables that are still read.
        """
        own = list(map(self._own_gradient, gradients, self._shared_by_variable, self.updated))
        with tf.control_dependencies(tf.nest.flatten(own, expand_composites=True)):
            self.optimizer.apply_gradients(zip(own, self.updated, strict=True))
        for gradient, part in zip(gradients, self._shared_by_variable, strict=True):
            if part and isinstance(gradient, Factors):
                part.end_step()
        return self.updated

    def _own_gradient(
        self,
        gradient: tf.Tensor | tf.IndexedSlices | Factors,
        kernel: SharedKernel | None,
        variable: tf.Variable,
    ) -> tf.Tensor | tf.IndexedSlices | Factors:
        """Return the gradient of an updated variable in a form that the optimizer takes."""
        if isinstance(gradient, Factors):
            return gradient if takes_factors(self.optimizer, variable) else gradient.product()
        return gradient[kernel.rows] if kernel else gradient

    def broadcast(self) -> None:
        """Give every rank the values of rank 0, and of a shared kernel its rows.

        The optimizer's variables for these rows are left as they are: newly built or restored.
        """
        variables = [*self.model.variables, *self.optimizer.variables]
        self._ranks.broadcast([v for v in variables if v.ref() not in self._parts])
        for each in self.shared:
            each.place()

    def values(self) -> list[np.ndarray]:
        """Return the values of all variables of model and optimizer, gathered where divided.

        Every process calls this, after `wait`.
        """
        values = [variable.numpy() for variable in self.model.variables]
        for number, variable in enumerate(self.optimizer.variables):
            if variable.ref() in self._parts:
                variable = self._ranks.gathered(variable, f"{_OPTIMIZER}{number}")
            values.append(variable.numpy())
        return values

    def restore(self, values: Sequence[np.ndarray]) -> None:
        """Set the variables to what `values` returned in a process of a run with as many ranks."""
        variables = [*self.model.variables, *self.optimizer.variables]
        for variable, value in zip(variables, values, strict=True):
            part = self._parts.get(variable.ref())
            variable.assign(value[part.rows] if part else value)
        for each in self.shared:
            each.place()


def local_variables(model: tf.keras.Model) -> list[tf.Variable]:
    """Return the variables that each rank updates by its own rows: floats that are not trainable.

    Weights of a frozen layer are not among them: they remain trainable variables. Neither are
    statistics of the rows of all ranks, which are equal on all.
    """
    shared = {id(v) for layer in synchronised(model) for v in layer.non_trainable_variables}
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
    for number, layer in enumerate(_random_layers(model)):
        [key] = np.random.SeedSequence([*seed, number]).generate_state(1, np.uint64)
        _generator(layer).reset_from_seed(int(key))


def use_generators() -> None:
    """Make Keras's random layers draw from generators whose state can be set.

    The operations that they use by default hide their state. Call this before a model is built.
    """
    tf.keras.backend.experimental.enable_tf_random_generator()


def _random_layers(model: tf.keras.Model) -> list[tf.keras.layers.Layer]:
    """Return the layers that draw random numbers while training, in their order."""
    kind = tf.keras.__internal__.layers.BaseRandomLayer
    layers = [layer for layer in layers_of(model) if isinstance(layer, kind)]
    # A wrapper may keep a layer that it never builds, as `Bidirectional` does, or one without
    # chance. Such a layer has no generator.
    return [layer for layer in layers if _generator(layer) is not None]


def _generator(layer: tf.keras.layers.Layer) -> tf.random.Generator | None:
    """Return the generator of a random layer, None before the layer is built."""
    return getattr(getattr(layer, "_random_generator", None), "_generator", None)
