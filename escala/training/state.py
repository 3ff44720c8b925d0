"""All variables that the steps of a process change: of the model, of the optimizer, and parts."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import tensorflow as tf

from escala.strategies import Strategy, costs
from escala.strategies.shared.divided import Divided, noted_variables
from escala.strategies.shared.factors import Factors, InMemory, takes_factors
from escala.strategies.shared.shared_memory import Sums

#: The prefix of the name of an optimizer's variable in the exchange that gathers its parts.
_OPTIMIZER = "optimizer/"


class State:
    """The variables of model and optimizer, some of them divided among the ranks.

    Of a `Divided` kernel a rank updates its own rows, and the optimizer has variables for these
    only. Such variables are gathered where they leave the process, so a checkpoint has the same
    content as one of a run without divided kernels.

    Parameters
    ----------
    optimizer : not yet built.
    divided : kernels of the model.
    summed : whether ranks that share kernels may sum the gradients of other variables through
        memory, too.
    factored : kernels whose gradients are factors, divided or not.
    """

    def __init__(
        self,
        model: tf.keras.Model,
        optimizer: tf.keras.optimizers.Optimizer,
        divided: Sequence[Divided],
        strategy: Strategy,
        summed: bool = True,
        factored: Sequence[tf.Variable] = (),
    ):
        self.model, self.optimizer = model, optimizer
        self._divided, self._strategy = divided, strategy
        of_kernel = {each.kernel.ref(): each for each in divided}
        self._of_updated = [of_kernel.get(v.ref()) for v in model.trainable_variables]
        #: The variables that the optimizer updates, in the order of the model's trained variables.
        self.updated = [
            part.own if part else variable
            for part, variable in zip(self._of_updated, model.trainable_variables, strict=True)
        ]
        self.sums = self._sums({variable.ref() for variable in factored}) if summed else None
        with noted_variables(optimizer) as created:
            optimizer.build(self.updated)
        of_own = {each.own.ref(): each for each in divided}
        self._parts = {
            variable.ref(): of_own[reference.ref()]
            for reference, variable in created
            if reference.ref() in of_own
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
        few = costs.sums_in_memory(numbers, self._strategy.place.processes)
        return Sums(others, self._strategy) if few else None

    @property
    def shared(self) -> list[Divided]:
        """Kernels in memory that all ranks of a node share."""
        return [each for each in self._divided if each.shared]

    @property
    def changed(self) -> list[tf.Variable]:
        """All variables of this process that a step may change."""
        own = [each.own for each in self._divided]
        return [*self.model.variables, *self.optimizer.variables, *own]

    def begin_step(self, rows: tf.Tensor) -> None:
        """Begin a step, in which this rank has so many rows: gather the kernels that it reads."""
        for each in self._divided:
            each.begin_step(self._strategy, rows)

    def gather(self) -> None:
        """Gather all kernels, so that the model's variables are current and equal on all ranks."""
        for each in self._divided:
            each.gather(self._strategy)

    def exchanged(
        self,
        gradients: Sequence[tf.Tensor | tf.IndexedSlices | Factors],
        computed: Sequence[tf.Tensor | tf.IndexedSlices | Factors],
    ) -> list:
        """Return gradients with the factors that ranks exchange without the strategy.

        Parameters
        ----------
        gradients : as the strategy exchanged them.
        computed : as this rank computed them.
        """
        # While gradients of layers before it are computed, a rank still reads a kernel. All ranks
        # must exchange through memory in one order, because each waits there for the others.
        before = [each for each in computed if not isinstance(each, Factors)]
        if self.sums:
            before = [each for each in gradients if not isinstance(each, Factors)]
        exchanged = []
        for gradient, part in zip(gradients, self._of_updated, strict=True):
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
        own = list(map(self._own_gradient, gradients, self._of_updated, self.updated))
        with tf.control_dependencies(tf.nest.flatten(own, expand_composites=True)):
            self.optimizer.apply_gradients(zip(own, self.updated, strict=True))
        for gradient, part in zip(gradients, self._of_updated, strict=True):
            if part and isinstance(gradient, Factors):
                part.end_step()
        return self.updated

    def _own_gradient(
        self,
        gradient: tf.Tensor | tf.IndexedSlices | Factors,
        part: Divided | None,
        variable: tf.Variable,
    ) -> tf.Tensor | tf.IndexedSlices | Factors:
        """Return the gradient of an updated variable in a form that the optimizer takes."""
        if isinstance(gradient, Factors):
            return gradient if takes_factors(self.optimizer, variable) else gradient.product()
        return gradient[part.rows] if part else gradient

    def broadcast(self) -> None:
        """Give every rank the values of rank 0, and of a divided kernel its rows.

        The optimizer's variables for these rows are left as they are: newly built or restored.
        """
        variables = [*self.model.variables, *self.optimizer.variables]
        self._strategy.broadcast([v for v in variables if v.ref() not in self._parts])
        for each in self._divided:
            each.split()

    def values(self) -> list[np.ndarray]:
        """Return the values of all variables of model and optimizer, gathered where divided.

        Every process calls this, when the kernels are gathered.
        """
        values = [variable.numpy() for variable in self.model.variables]
        for number, variable in enumerate(self.optimizer.variables):
            if variable.ref() in self._parts:
                variable = self._strategy.gathered(variable, f"{_OPTIMIZER}{number}")
            values.append(variable.numpy())
        return values

    def restore(self, values: Sequence[np.ndarray]) -> None:
        """Set the variables to what `values` returned in a process of a run with as many ranks."""
        variables = [*self.model.variables, *self.optimizer.variables]
        for variable, value in zip(variables, values, strict=True):
            part = self._parts.get(variable.ref())
            variable.assign(value[part.rows] if part else value)
        for each in self._divided:
            each.split()
