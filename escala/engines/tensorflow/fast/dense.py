"""Large dense layers, whose gradients ranks exchange as two factors, or in shared memory.

The gradient of a dense layer's kernel is the product Xᵀ · G. X is the layer's input, of shape
(rows, in). G is the gradient of the layer's output before the activation, of shape (rows, out). If
the factors of all ranks are joined along the rows, their product is the sum of the ranks'
gradients. So the ranks can gather the factors of all ranks and multiply them, and need no sum of
the products.

A rank with r rows then sends r · (in + out) numbers; for the product it would send in · out
numbers. X is known before the backward pass begins, so a strategy can send X during this pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import tensorflow as tf

from escala.core.errors import Unavailable
from escala.engines import costs
from escala.engines.tensorflow.fast.rmsprop import OnePassRMSprop
from escala.engines.tensorflow.fast.shared_memory import SharedKernel, Sums, can_be_shared
from escala.engines.tensorflow.layers import as_graph
from escala.engines.tensorflow.ranks import Ranks
from escala.workloads.models import as_model_input

Layer = tf.keras.layers.Dense
Optimizer = tf.keras.optimizers.Optimizer
# Keras has no public name for this class.
_Functional = tf.keras.Sequential.__base__


class Factors(NamedTuple):
    """The gradient of a kernel of shape (in, out), as two factors.

    The factors are the layer's input, (rows, in), and the gradient of its output before the
    activation, (rows, out).
    """

    inputs: tf.Tensor
    output_gradients: tf.Tensor

    def product(self) -> tf.Tensor:
        return tf.matmul(self.inputs, self.output_gradients, transpose_a=True)


class InMemory(Factors):
    """Factors of a rank's own rows, which ranks exchange through shared memory.

    The factors are known only after the layer's product. From then on nobody reads the kernel.
    """


#: A gradient of any type.
Gradient = tf.Tensor | tf.IndexedSlices | Factors


class DenseLayers:
    """The dense layers of a model whose gradients are factors, and the kernels that ranks share.

    This also builds the optimizer, which must not be built before. `plan` is the plan of the run.
    Shared memory may be `Unavailable`; see `SharedKernel.among`.

    Attributes
    ----------
    exchanges : for each layer that computes one product, one of `costs.EXCHANGES`.
    kinds : for each layer whose gradient is factors, the class of the factors.
    updated : the variables that the optimizer updates, in the order of the model's trained
        variables. The variable of this rank's rows replaces a shared kernel.
    sums : the object that sums other gradients through memory; None if a library sums them.
    parts : for the optimizer's variables that belong to rows of a shared kernel: by `ref` of the
        variable, the kernel.
    """

    def __init__(
        self, model: tf.keras.Model, optimizer: Optimizer, plan: Mapping[str, Any], ranks: Ranks
    ):
        self.exchanges = plan_exchanges(model, optimizer, plan, ranks)
        self.kinds = {
            layer: InMemory if exchange == costs.SHARED_MEMORY else Factors
            for layer, exchange in self.exchanges.items()
            if exchange != costs.ALLREDUCE
        }
        trained = model.trainable_variables
        shared = {
            layer.kernel.ref(): SharedKernel.among(layer.kernel, ranks, plan["global_batch"])
            for layer, kind in self.kinds.items()
            if kind is InMemory
        }
        self._shared = [*shared.values()]
        # For each trained variable: its shared kernel, or None if the variable is not shared.
        self._kernels = [shared.get(variable.ref()) for variable in trained]
        self.updated = [
            kernel.local if kernel else variable
            for kernel, variable in zip(self._kernels, trained, strict=True)
        ]
        self.sums = None
        # Gradients that are exchanged as sparse rows cannot be summed in memory.
        if self._shared and ranks.knobs["sparse_as_dense"]:
            factored = {layer.kernel.ref() for layer in self.kinds}
            others = [
                variable
                for variable in trained
                if variable.ref() not in factored and variable.dtype == tf.float32
            ]
            numbers = sum(variable.shape.num_elements() for variable in others)
            if costs.sums_in_memory(numbers, ranks.place.processes):
                self.sums = Sums(others, ranks)
        by_rows = {kernel.local.ref(): kernel for kernel in self._shared}
        create = optimizer.add_variable_from_reference
        self._optimizer, self.parts = optimizer, {}

        def add_variable(model_variable: tf.Variable, *arguments, **options) -> tf.Variable:
            variable = create(model_variable, *arguments, **options)
            if model_variable.ref() in by_rows:
                self.parts[variable.ref()] = by_rows[model_variable.ref()]
            return variable

        optimizer.add_variable_from_reference = add_variable
        try:
            optimizer.build(self.updated)
        finally:
            del optimizer.add_variable_from_reference

    @property
    def local(self) -> list[tf.Variable]:
        """The rows of shared kernels that this rank updates."""
        return [kernel.local for kernel in self._shared]

    def begin_step(self, rows: tf.Tensor) -> None:
        """Begin a step of `rows` rows on this rank: wait for the shared kernels."""
        for kernel in self._shared:
            kernel.begin_step(rows)

    def wait(self) -> None:
        """Wait until the model's variables are current and equal on all ranks."""
        for kernel in self._shared:
            kernel.wait()

    def place(self) -> None:
        """Share the kernels of the first rank, and set the rows of each rank."""
        for kernel in self._shared:
            kernel.place()

    def exchange_in_memory(
        self, gradients: Sequence[Gradient], computed: Sequence[Gradient]
    ) -> list:
        """Exchange the factors in shared memory, and return all gradients after the exchange.

        `gradients` are the strategy's result, and `computed` are the gradients of this rank alone.
        """
        # A rank reads a kernel until the gradients of the earlier layers are computed. All ranks
        # must exchange through memory in one order, because an exchange waits for all ranks.
        earlier = gradients if self.sums else computed
        awaited = [gradient for gradient in earlier if not isinstance(gradient, Factors)]
        results = []
        for gradient, kernel in zip(gradients, self._kernels, strict=True):
            if isinstance(gradient, InMemory):
                with tf.control_dependencies(tf.nest.flatten(awaited, expand_composites=True)):
                    gradient = Factors(*kernel.exchange_factors(*gradient))
                awaited = [*gradient]
            results.append(gradient)
        return results

    def update(self, gradients: Sequence[Gradient]) -> list[tf.Variable]:
        """Apply the sums of the gradients over all ranks, and return the updated variables.

        An update waits for all gradients. An earlier update would take the core from the backward
        pass, and would copy variables that this pass still reads.
        """
        applied = []
        for gradient, kernel, variable in zip(gradients, self._kernels, self.updated, strict=True):
            if isinstance(gradient, Factors):
                if not takes_factors(self._optimizer, variable):
                    gradient = gradient.product()
            elif kernel:
                gradient = gradient[kernel.rows]
            applied.append(gradient)
        with tf.control_dependencies(tf.nest.flatten(applied, expand_composites=True)):
            self._optimizer.apply_gradients(zip(applied, self.updated, strict=True))
        for gradient, kernel in zip(gradients, self._kernels, strict=True):
            if kernel and isinstance(gradient, Factors):
                kernel.end_step()
        return self.updated


def plan_exchanges(
    model: tf.keras.Model, optimizer: Optimizer, plan: Mapping[str, Any], ranks: Ranks
) -> dict[Layer, str]:
    """Return the exchange of each dense layer for which allreduce may be replaced.

    The result is empty if the ranks must sum all gradients. The gradients of a single rank stay
    factors if the optimizer takes factors, because a single rank has the factors of all rows.
    """
    knobs, total = plan["knobs"], plan["ranks"]
    if not ranks.gathers or knobs["accumulation"] > 1:
        return {}
    if total == 1:
        if not isinstance(optimizer, OnePassRMSprop):
            return {}
        layers = [layer for layer, _ in products(model)]
        return {layer: costs.FACTORS for layer in layers if takes_factors(optimizer, layer.kernel)}
    if knobs["dense_exchange"] == costs.ALLREDUCE:
        return {}
    one_node = ranks.place.nodes == 1 and ranks.place.processes == total
    return select_exchanges(
        model, optimizer, knobs["dense_exchange"], plan["step_rows"], total, one_node
    )


def select_exchanges(
    model: tf.keras.Model,
    optimizer: Optimizer,
    wanted: str,
    rows: int,
    ranks: int,
    one_node: bool,
) -> dict[Layer, str]:
    """Return the exchange of each dense layer that computes one product.

    `wanted` is one of `costs.EXCHANGES`. Allreduce is for layers for which `wanted` is impossible,
    or does not save more than `costs.MIN_SAVED_BYTES`. `costs.SHARED_MEMORY` needs layers with
    inputs of shape (batch, in): one row for each row of the model. `rows` is the global batch.
    `one_node` says whether all ranks are on one node, each in its own process.
    """
    if wanted == costs.SHARED_MEMORY and not one_node:
        wanted = costs.ALLREDUCE
    by_layer: dict[Layer, str] = {}
    for layer, rows_of_one in products(model):
        product = costs.Product(*layer.kernel.shape, rows_of_one * rows, layer.kernel.dtype.size)
        fits = wanted != costs.SHARED_MEMORY or (
            rows_of_one == 1 and can_be_shared(optimizer, layer, ranks)
        )
        by_sum = costs.count_received_bytes(costs.ALLREDUCE, product, ranks)
        saved = by_sum - costs.count_received_bytes(wanted, product, ranks)
        is_chosen = fits and saved > costs.MIN_SAVED_BYTES
        by_layer[layer] = wanted if is_chosen else costs.ALLREDUCE
    return by_layer


def takes_factors(optimizer: Optimizer, variable: tf.Variable) -> bool:
    """Return whether an optimizer takes `Factors` as the gradient of a variable."""
    return isinstance(optimizer, OnePassRMSprop) and optimizer.takes_factors(variable)


def dense(gradient: Gradient) -> tf.Tensor:
    """Return a gradient of any type as a tensor of its variable's shape."""
    if isinstance(gradient, Factors):
        return gradient.product()
    return tf.convert_to_tensor(gradient)


def products(model: tf.keras.Model) -> list[tuple[Layer, int]]:
    """Return dense layers that compute one product, each with its rows for one row of the model.

    The model must be a chain of layers or a functional model. Other models may compute anything, so
    the list is empty for them. A layer in the list is called once, with an input (rows, in) whose
    rows are a known multiple of the model's rows.
    """
    if type(model) not in (tf.keras.Sequential, _Functional) or not model.inputs:
        return []
    # `forward` computes activation(rows @ kernel + bias) itself. It would leave out an activity
    # regulariser, because only a call of the layer applies it. The gradient of a regularised kernel
    # is not a product of two factors.
    layers = [
        layer
        for layer in model.layers
        if type(layer) is Layer
        and layer.use_bias
        and layer.trainable
        and layer.activity_regularizer is None
        and layer.kernel_regularizer is None
    ]
    shapes: dict[int, list[tf.TensorShape]] = {id(layer): [] for layer in layers}

    def note(layer: Layer, values: tf.Tensor) -> tf.Tensor:
        shapes[id(layer)].append(values.shape)
        return type(layer).call(layer, values)

    one_row = [tf.TensorSpec((1, *tensor.shape[1:]), tensor.dtype) for tensor in model.inputs]

    @as_graph(input_signature=one_row)
    def trace(*inputs):
        with _replace_calls(note, layers):
            return model(as_model_input(inputs), training=True)

    trace.get_concrete_function()
    once = [(layer, *shapes[id(layer)]) for layer in layers if len(shapes[id(layer)]) == 1]
    return [(layer, shape[0]) for layer, shape in once if shape.rank == 2 and shape[0]]


@contextmanager
def _replace_calls(
    call: Callable[[Layer, tf.Tensor], tf.Tensor], layers: Collection[Layer]
) -> Iterator[None]:
    """Within this context, let layers compute `call` of the layer and its input."""
    for layer in layers:
        layer.call = partial(call, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.call


def forward(
    model: tf.keras.Model, inputs: Any, kinds: Mapping[Layer, type[Factors]]
) -> tuple[tf.Tensor, dict]:
    """Return the output of a model in training, and a record of layers for `gradients`.

    `inputs` are the inputs of the model. `kinds` are as in `DenseLayers`. The keys of the record
    are `kernel.ref()` of the layers in `kinds`.
    """
    recorded = {}

    def record(layer: Layer, values: tf.Tensor) -> tf.Tensor:
        # The factors give the gradient of this use of the kernel, so the tape must not compute it.
        # The tape computes the gradients of other uses, for example in a loss that the model adds.
        kernel = tf.stop_gradient(layer.kernel)

        @tf.custom_gradient
        def product(values: tf.Tensor):
            return tf.matmul(values, kernel), lambda up: tf.matmul(up, kernel, transpose_b=True)

        result = product(values)
        outputs = tf.nn.bias_add(result, layer.bias)
        recorded[layer.kernel.ref()] = kinds[layer], values, result, outputs
        return layer.activation(outputs)

    with _replace_calls(record, kinds):
        return model(inputs, training=True), recorded


def gradients(
    tape: tf.GradientTape, target: tf.Tensor, variables: Sequence[tf.Variable], recorded: dict
) -> list[Gradient]:
    """Return the gradient of each variable; the gradient of a kernel in `recorded` is `Factors`.

    `recorded` is the record of `forward`. The target may depend on such a kernel in another way,
    too, for example through `add_loss`. Then the result is a tensor: the product of the factors
    plus the gradient of the other uses. For a kernel in shared memory this case is `Unavailable`.
    """
    # The outputs of the layers before the activation.
    outputs = {kernel: of_layer for kernel, (*_, of_layer) in recorded.items()}
    taped, gradients_by_kernel = tape.gradient(target, (list(variables), outputs))

    def combine(variable: tf.Variable, taped: tf.Tensor | tf.IndexedSlices | None):
        if variable.ref() not in recorded:
            return taped
        kind, inputs, product, _ = recorded[variable.ref()]
        output_gradients = gradients_by_kernel[variable.ref()]
        if kind is InMemory:
            # Let the gradient wait for the product. It might not depend on the product, such as if
            # the loss is linear in the product.
            with tf.control_dependencies([product]):
                output_gradients = tf.identity(output_gradients)
        factors = kind(inputs, output_gradients)
        if taped is None:
            return factors
        if kind is InMemory:
            raise Unavailable(
                f"the model uses the kernel {variable.name} twice; "
                "use `dense_exchange` `allreduce` or `factors`"
            )
        return factors.product() + tf.convert_to_tensor(taped)

    return [
        combine(variable, gradient) for variable, gradient in zip(variables, taped, strict=True)
    ]
