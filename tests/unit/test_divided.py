"""Kernels divided among ranks, and the formulas that choose an exchange."""

from __future__ import annotations

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from escala.strategies import costs
from escala.strategies.shared import exchanges, factors
from escala.strategies.shared.divided import Divided, divisible, partition
from escala.strategies.single import Single
from escala.training.state import State
from escala.workloads.dense_operations import dense

RANKS = 3
#: Vector instructions compute the last numbers of an array otherwise.
ROUNDING = {"rtol": 1e-6, "atol": 1e-7}


@given(rows=st.integers(1, 10_000), ranks=st.integers(1, 64))
def test_the_parts_are_even_disjoint_and_complete(rows, ranks):
    sizes = partition(rows, ranks)
    assert len(sizes) == ranks and sum(sizes) == rows
    assert max(sizes) - min(sizes) <= 1 and sizes == sorted(sizes, reverse=True)


@given(rows=st.integers(3, 40), ranks=st.integers(2, 3))
def test_the_parts_of_a_kernel_are_consecutive_rows(rows, ranks):
    kernel = tf.Variable(tf.random.normal((rows, 2)))
    parts = [Divided.of("0.k", kernel, rank, ranks, whole=True) for rank in range(ranks)]
    for one, other in pairwise(parts):
        assert one.rows.stop == other.rows.start
    np.testing.assert_array_equal(np.concatenate([p.own.numpy() for p in parts]), kernel.numpy())


class Others(Single):
    """Stands for the other ranks: their parts are known beforehand."""

    def __init__(self, parts: dict[str, list]):
        super().__init__({}, None)
        self.parts = parts

    def gathered(self, values, name):
        return tf.concat([tf.convert_to_tensor(part) for part in self.parts[name]], axis=0)


def small_model() -> tf.keras.Sequential:
    tf.keras.utils.set_random_seed(1)
    layers = [tf.keras.Input((7,)), tf.keras.layers.Dense(4), tf.keras.layers.Dense(2)]
    return tf.keras.Sequential(layers)


def of_ranks(build) -> tuple[list[State], list[tf.keras.Model]]:
    """Return the states of ranks that divide the first kernel, and their models."""
    states, models, parts = [], [small_model() for _ in range(RANKS)], []
    for rank, model in enumerate(models):
        parts.append(Divided.of("0.kernel", model.layers[0].kernel, rank, RANKS, whole=True))
        states.append(State(model, build(), [parts[-1]], Others({})))
    slots = [[v for v in s.optimizer.variables if v.shape == s.updated[0].shape] for s in states]
    gathered = {"weights/0.kernel": [part.own for part in parts]}
    for number, variable in enumerate(states[0].optimizer.variables):
        for position, slot in enumerate(slots[0]):
            if slot is variable:
                gathered[f"optimizer/{number}"] = [each[position] for each in slots]
    for state in states:
        state._strategy.parts = gathered
    return states, models


@pytest.mark.parametrize(
    "build",
    [
        lambda: tf.keras.optimizers.Adam(0.01),
        lambda: tf.keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
        lambda: tf.keras.optimizers.SGD(0.1, momentum=0.9, weight_decay=0.1),
    ],
)
def test_parts_updated_by_ranks_are_the_kernel_updated_whole(build):
    states, models = of_ranks(build)
    whole, optimizer = small_model(), build()
    optimizer.build(whole.trainable_variables)
    random = np.random.default_rng(2)
    for _ in range(4):
        given = [
            tf.constant(random.normal(size=v.shape), tf.float32) for v in whole.trainable_variables
        ]
        optimizer.apply_gradients(zip(given, whole.trainable_variables, strict=True))
        for state in states:
            state.update(given)
    expected = [v.numpy() for v in (*whole.variables, *optimizer.variables)]
    for rank, (state, model) in enumerate(zip(states, models, strict=True)):
        rows = partition(7, RANKS)[rank]
        assert all(v.shape[0] != 7 for v in state.optimizer.variables if v.shape.rank)
        assert state.updated[0].shape == (rows, 4)
        state.gather()
        np.testing.assert_allclose(model.layers[0].kernel.numpy(), expected[0], **ROUNDING)
        for found, value in zip(state.values(), expected, strict=True):
            np.testing.assert_allclose(found, value, **ROUNDING)
    # A run without divided kernels keeps the same values.
    for state in states:
        state.restore([value + 1 for value in expected])
    ends = np.cumsum([0, *partition(7, RANKS)])
    for state, rows in zip(states, map(slice, ends, ends[1:]), strict=True):
        np.testing.assert_array_equal(state.updated[0].numpy(), expected[0][rows] + 1)
        for found, value in zip(state.values(), expected, strict=True):
            np.testing.assert_array_equal(found, value + 1)


@pytest.mark.parametrize(
    "input_gradient",
    [factors.input_gradient, dense.input_gradient],
    ids=["tensorflow", "operation"],
)
@pytest.mark.parametrize("first", [True, False])
def test_a_layer_in_one_part_has_the_outputs_and_gradients_of_the_layer(first, input_gradient):
    """Nothing before the first layer of a model needs a gradient."""
    tf.keras.utils.set_random_seed(3)
    before = [] if first else [tf.keras.layers.Dense(6, "tanh")]
    layer = tf.keras.layers.Dense(4, "tanh")
    model = tf.keras.Sequential([tf.keras.Input((7,)), *before, layer, tf.keras.layers.Dense(2)])
    part = Divided.of("0.kernel", layer.kernel, 0, 1, whole=False)
    values = tf.random.normal((5, 7))

    def computed(methods: dict) -> list[np.ndarray]:
        with tf.GradientTape() as tape:
            outputs, recorded = factors.forward(model, values, methods)
            loss = tf.reduce_sum(outputs**2)
        found = factors.gradients(tape, loss, model.trainable_variables, recorded)
        assert sum(isinstance(each, factors.Exchanged) for each in found) == len(methods)
        return [outputs.numpy(), *(factors.dense(each).numpy() for each in found)]

    in_parts = computed({layer: partial(part.computed, Single({}, None), input_gradient)})
    for one, other in zip(in_parts, computed({}), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_kernels_that_cannot_be_updated_in_parts():
    layer = small_model().layers[0]
    optimizers = tf.keras.optimizers

    class Own(optimizers.SGD):
        """May do anything."""

    assert divisible(optimizers.SGD(), layer, 7)
    assert not divisible(optimizers.SGD(), layer, 8)
    assert not divisible(Own(), layer, 2)
    Own.elementwise = True
    assert divisible(Own(), layer, 2)
    assert not divisible(optimizers.legacy.SGD(), layer, 2)
    assert not divisible(optimizers.Adafactor(), layer, 2)
    assert not divisible(optimizers.SGD(clipnorm=1.0), layer, 2)
    assert divisible(optimizers.SGD(clipvalue=1.0), layer, 2)
    assert not divisible(optimizers.SGD(global_clipnorm=1.0), layer, 2)
    assert not divisible(optimizers.SGD(use_ema=True), layer, 2)
    layer.kernel_constraint = tf.keras.constraints.MaxNorm()
    assert not divisible(optimizers.SGD(), layer, 2)


def test_the_optimizer_is_left_as_it_was():
    optimizer = tf.keras.optimizers.Adam()
    State(small_model(), optimizer, [], Others({}))
    assert "add_variable_from_reference" not in vars(optimizer)
    assert optimizer._built


# The large layer of the published network at length 1000, of two ranks with 32 rows each.
LARGE = costs.Product(inputs=15_936, outputs=128, rows=64)


def received(exchange: str, product: costs.Product, ranks: int) -> list[float]:
    """Return the bytes that each rank receives, counted matrix by matrix."""
    inputs, outputs, rows, number_bytes, data_bytes = product
    found = []
    for rank in range(ranks):
        columns, mine = (np.full(ranks, n // ranks) for n in (inputs, rows))
        others = np.arange(ranks) != rank
        numbers = {
            # A ring receives each part of the sum but one, and then each sum but one.
            "allreduce": 2 * (ranks - 1) * inputs * outputs / ranks,
            "factors": mine[others].sum() * (inputs + outputs),
            "sharded": mine[others].sum() * (columns[rank] + outputs)
            + columns[others].sum() * outputs,
            "in-parts": mine[others].sum() * columns[rank]  # inputs
            + 2 * (ranks - 1) * rows * outputs / ranks  # sums of outputs
            + mine[others].sum() * outputs  # output gradients
            + mine[rank] * columns[others].sum(),  # input gradients
            "shared-memory": mine[others].sum() * (columns[rank] + outputs),
            "recompute": mine[others].sum() * (data_bytes / number_bytes + outputs),
        }
        found.append(number_bytes * numbers[exchange])
    return found


@pytest.mark.parametrize("exchange", costs.EXCHANGES)
@given(
    ranks=st.sampled_from([1, 2, 4, 8]),
    sizes=st.tuples(*[st.integers(1, 100)] * 2),
    outputs=st.integers(1, 50),
    data_bytes=st.integers(1, 1000),
)
def test_the_bytes_are_those_of_the_matrices(exchange, ranks, sizes, outputs, data_bytes):
    inputs, rows = (8 * size for size in sizes)
    product = costs.Product(inputs, outputs, rows, data_bytes=data_bytes)
    expected = received(exchange, product, ranks)
    assert costs.received_bytes(exchange, product, ranks) == pytest.approx(expected[0])
    assert max(expected) == pytest.approx(min(expected))


@pytest.mark.parametrize("exchange", costs.EXCHANGES)
@given(
    ranks=st.integers(1, 64),
    product=st.builds(
        costs.Product, *[st.integers(64, 5000)] * 3, st.sampled_from([2, 4]), st.integers(1, 5000)
    ),
    speed=st.floats(1e5, 1e10),
)
def test_a_faster_network_is_never_slower_and_one_rank_receives_nothing(
    exchange, ranks, product, speed
):
    slow, fast = (costs.Rates(1e-3, each) for each in (speed, 2 * speed))
    times = [costs.seconds(exchange, product, ranks, rates) for rates in (slow, fast)]
    assert times[1] <= times[0]
    assert costs.received_bytes(exchange, product, 1) == 0


@pytest.mark.parametrize(
    ("ranks", "measured", "fastest"),
    [
        # The kernel is 8 MB, and everything else that is sent a quarter or less.
        (2, {"bytes_per_second": 1e12, "weights_per_second": 1e8}, "sharded"),
        (2, {"bytes_per_second": 1e7}, "factors"),
        (4, {"bytes_per_second": 1e7}, "in-parts"),
        # Each exchange waits for a second.
        (4, {"bytes_per_second": 1e7, "exchange_seconds": 1.0}, "factors"),
        # The factors of all ranks' rows are more operations than those of one rank's.
        (4, {"operations_per_second": 1e7, "exchange_seconds": 20.0}, "allreduce"),
    ],
)
def test_what_is_slow_decides_the_exchange(ranks, measured, fastest):
    rates = costs.rates(True, 1, measured=measured)
    assert costs.fastest(costs.BETWEEN_NODES, LARGE, ranks, rates) == fastest
    # Here no other has fewer bytes, operations or updates, and it waits for no exchange.
    assert costs.fastest(costs.EXCHANGES, LARGE, ranks, rates) == "shared-memory"


def test_shared_memory_takes_the_least_time_unless_the_factors_are_more_bytes_than_the_sum():
    """2 · 2000 · 100 = rows · (2000 / 4 + 100) where rows are 667."""
    rates = costs.rates(True, 1, measured={"bytes_per_second": 1e3, "exchange_seconds": 0.0})
    for rows, fastest in ((600, "shared-memory"), (700, "allreduce")):
        product = costs.Product(inputs=2000, outputs=100, rows=rows)
        exchanges = ("allreduce", "shared-memory")
        assert costs.fastest(exchanges, product, 4, rates) == fastest


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"mpi": True, "nodes": 1}, (1e-3, costs.BYTES_PER_SECOND_MPI)),
        ({"mpi": False, "nodes": 1}, (1e-3, costs.BYTES_PER_SECOND_GLOO)),
        ({"mpi": True, "nodes": 2}, (1e-3, 1.25e8)),
        ({"mpi": True, "nodes": 2, "link_bits_per_second": 10**8}, (1e-3, 1.25e7)),
        # No link is faster than a core copies.
        (
            {"mpi": False, "nodes": 2, "link_bits_per_second": 10**11, "cycle_time_ms": 0.5},
            (5e-4, costs.BYTES_PER_SECOND_GLOO),
        ),
        (
            {"mpi": True, "nodes": 2, "cycle_time_ms": 5, "measured": {"bytes_per_second": 7.0}},
            (5e-3, 7.0),
        ),
    ],
)
def test_rates_are_those_of_the_network_unless_they_were_measured(given, expected):
    assert costs.rates(**given)[:2] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ((1, None, None), ["operations_per_second", "weights_per_second", "bytes_per_second"]),
        ((2, 10**9, None), ["operations_per_second", "weights_per_second"]),
        ((2, None, {"weights_per_second": 1.0}), ["operations_per_second", "bytes_per_second"]),
        ((1, None, dict.fromkeys(costs.Rates._fields, 1.0)), []),
    ],
)
def test_rates_that_were_not_measured_here_are_named(given, names):
    assert costs.assumed(*given) == names


def wide_and_narrow(dtype: str = "float32") -> tf.keras.Model:
    layers = [
        tf.keras.Input((2000,), dtype=dtype),
        tf.keras.layers.Dense(256, name="wide", dtype=dtype),
        tf.keras.layers.Dense(8, name="narrow", dtype=dtype),
    ]
    return tf.keras.Sequential(layers)


@pytest.mark.parametrize(
    ("wanted", "optimizer", "measured", "wide"),
    [
        ("factors", "SGD", {}, "factors"),
        ("sharded", "SGD", {}, "sharded"),
        ("in-parts", "SGD", {}, "in-parts"),
        ("sharded", "Adafactor", {}, "allreduce"),
        ("auto", "SGD", {"bytes_per_second": 1e6}, "factors"),
        ("auto", "SGD", {"bytes_per_second": 1e6, "weights_per_second": 1e6}, "in-parts"),
        ("auto", "Adafactor", {"bytes_per_second": 1e6}, "factors"),
        (
            "auto",
            "SGD",
            {"bytes_per_second": 1e12, "weights_per_second": 1e6, "exchange_seconds": 1e-2},
            "sharded",
        ),
    ],
)
def test_each_layer_has_the_exchange_it_can_have(wanted, optimizer, measured, wide):
    found = chosen(wide_and_narrow(), wanted, optimizer, measured, one_node=False)
    assert found == {"wide": wide, "narrow": "allreduce"}


@pytest.mark.parametrize(
    ("wanted", "optimizer", "dtype", "wide"),
    [
        ("shared-memory", "SGD", "float32", "shared-memory"),
        ("shared-memory", "Adafactor", "float32", "allreduce"),
        ("shared-memory", "SGD", "float64", "allreduce"),
        ("sharded", "SGD", "float64", "sharded"),
        ("auto", "SGD", "float32", "shared-memory"),
        ("auto", "Adafactor", "float32", "factors"),
    ],
)
def test_only_layers_of_one_node_that_a_rank_can_update_in_part_are_held_in_shared_memory(
    wanted, optimizer, dtype, wide
):
    rates, model = {"bytes_per_second": 1e6}, wide_and_narrow(dtype)
    found = chosen(model, wanted, optimizer, rates, one_node=True)
    assert found == {"wide": wide, "narrow": "allreduce"}
    between_nodes = chosen(model, wanted, optimizer, rates, one_node=False)
    assert "shared-memory" not in between_nodes.values()


def chosen(model, wanted: str, optimizer: str, measured: dict, one_node: bool) -> dict[str, str]:
    """Return the exchange of each layer, by its name, of two ranks with eight rows together."""
    rates = costs.rates(True, 1, measured=measured)
    built = getattr(tf.keras.optimizers, optimizer)()
    found = exchanges.chosen(model, built, wanted, 8, 2, rates, one_node)
    return {layer.name: exchange for layer, exchange in found.items()}
