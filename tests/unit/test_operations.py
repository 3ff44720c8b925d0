"""Operations in C++ and lookups: against NumPy, float64 and Keras."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tensorflow.keras import layers

from escala.commands import install
from escala.core.errors import Unavailable
from escala.core.hardware import has_instructions
from escala.engines import base
from escala.engines.tensorflow import engine
from escala.engines.tensorflow.fast import compile_library, rmsprop
from escala.engines.tensorflow.fast.dense import Factors
from escala.engines.tensorflow.fast.lookup import TABLE_BYTES, Lookup, look_up
from escala.record import key
from escala.training.process import digest
from escala.workloads.virus_cnn import model as virus_cnn
from tests.calls import python
from tests.conftest import ROOT

RATE, RHO, EPSILON = SETTINGS = 0.01, 0.9, 1e-7
#: Of the largest value: sums of some hundred numbers of float32, of which the rounding is 6e-8.
TOLERANCE = 1e-5


def offered() -> list[str]:
    flags = Path("/proc/cpuinfo").read_text().partition("\nflags")[2].partition("\n")[0].split()
    return [*({"avx512f", "avx2"} & {*flags}), "baseline"]


OFFERED = st.sampled_from(sorted(offered()))


def arrays(rows: int, inputs: int, outputs: int, seed: int = 0) -> list[np.ndarray]:
    """Return a layer's input, output gradient, kernel and mean square, float32."""
    random = np.random.default_rng(seed)
    shapes = (rows, inputs), (rows, outputs), (inputs, outputs), (inputs, outputs)
    x, d, w, v = (random.normal(size=shape).astype(np.float32) for shape in shapes)
    return [x, d, w, v**2]


def updated(x, d, w, v, instructions: str = "auto") -> list[np.ndarray]:
    kernel, squares = tf.Variable(w), tf.Variable(v)
    rmsprop.update(kernel, squares, tf.constant(x), tf.constant(d), *SETTINGS, instructions)
    return [kernel.numpy(), squares.numpy()]


def expected(gradient, w, v) -> list[np.ndarray]:
    gradient, w, v = (each.astype(np.float64) for each in (gradient, w, v))
    v = RHO * v + (1 - RHO) * gradient**2
    return [w - RATE * gradient / np.sqrt(v + EPSILON), v]


def updated_by_gradient(gradient, w, v, instructions: str = "auto") -> list[np.ndarray]:
    variable, squares = tf.Variable(w), tf.Variable(v)
    rmsprop.update_by_gradient(variable, squares, tf.constant(gradient), *SETTINGS, instructions)
    return [variable.numpy(), squares.numpy()]


def assert_close(found, wanted, tolerance: float = TOLERANCE) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape
        largest = np.abs(other).max(initial=0)
        np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance * largest)


@settings(max_examples=20)
@given(st.integers(0, 70), st.integers(1, 70), st.integers(1, 150), st.integers(0, 999), OFFERED)
@example(32, 13, 128, 0, "baseline")
def test_a_layer_of_any_shape_has_the_update_of_float64(rows, inputs, outputs, seed, instructions):
    x, d, w, v = arrays(rows, inputs, outputs, seed)
    gradient = x.T.astype(np.float64) @ d
    assert_close(updated(x, d, w, v, instructions), expected(gradient, w, v))


@settings(max_examples=40)
@given(st.lists(st.integers(1, 12), max_size=3), st.integers(0, 999), OFFERED)
@example([3, 130], 0, "baseline")
def test_a_variable_of_any_shape_is_updated_as_in_float64(shape, seed, instructions):
    random = np.random.default_rng(seed)
    gradient, w, v = (random.normal(size=shape).astype(np.float32) for _ in range(3))
    found = updated_by_gradient(gradient, w, v**2, instructions)
    assert_close(found, expected(gradient, w, v**2))


@pytest.mark.skipif("avx2" not in offered(), reason="this processor has no avx2")
def test_wider_vectors_give_the_same_bits():
    x, d, w, v = arrays(33, 50, 70)
    for update, operands in ((updated, (x, d)), (updated_by_gradient, (x[0] @ w * w,))):
        first, *others = [
            update(*operands, w, v, name) for name in {*offered(), "auto"} - {"baseline"}
        ]
        for other in others:
            np.testing.assert_array_equal(first, other)


def test_a_value_read_before_the_update_stays_as_it_was():
    x, d, w, v = arrays(4, 30, 20)
    kernel, squares = tf.Variable(w), tf.Variable(v)

    @tf.function
    def step():
        before = kernel.read_value()
        rmsprop.update(kernel, squares, tf.constant(x), tf.constant(d), *SETTINGS)
        return before + 0.0, kernel.read_value(), squares.read_value()

    outside = kernel.read_value()
    before, *after = step()
    for each in (before, outside):
        np.testing.assert_array_equal(each, w)
    assert_close([each.numpy() for each in after], expected(x.T @ d, w, v))


def test_an_option_that_changes_the_update_is_refused():
    given = dict.fromkeys(("momentum", "weight_decay", "clipnorm", "clipvalue"), 0.5)
    given |= {"global_clipnorm": 0.5, "centered": True, "use_ema": True}
    for option, value in given.items():
        with pytest.raises(ValueError, match=f"^{option} is "):
            rmsprop.OnePassRMSprop(RATE, **{option: value})


def test_only_large_matrices_of_float32_have_factors():
    takes, large = rmsprop.OnePassRMSprop().takes_factors, np.zeros((512, 256), np.float32)
    assert takes(tf.Variable(large))
    for other in (large.astype(np.float64), large.reshape(8, 64, 256), large[:8]):
        assert not takes(tf.Variable(other))
    assert not takes(tf.Variable(large, constraint=tf.keras.constraints.NonNeg()))


def test_shapes_that_do_not_fit_are_refused():
    x, d, w, v = map(tf.Variable, arrays(4, 6, 5))
    for inputs, gradients in ((d, x), (x[0], d), (x[:3], d)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="do not fit a kernel"):
            rmsprop.update(w, v, inputs, gradients, *SETTINGS)
    with pytest.raises(tf.errors.InvalidArgumentError, match="one variable"):
        rmsprop.update(w, w, x, d, *SETTINGS)


def compiler(folder: Path, code: str) -> str:
    path = folder / "compiler"
    version = f"test $1 = --version && {{ cat {folder}/version; exit; }}"
    path.write_text(f"#!/bin/sh\n{version}\necho call >> {folder}/calls\n{code}\n")
    (folder / "version").write_text("one 1.0\n")
    path.chmod(0o755)
    return str(path)


# Writes the source where `-o` tells.
COPIES = """
while [ $# -gt 0 ]; do
    case $1 in
        *.cc) source=$1 ;;
        -o) cp "$source" "$2" ;;
    esac
    shift
done
"""


def library(source: Path, compiler: str) -> Path:
    return compile_library(source, "knob: other", source.parent / "made", compiler)


@pytest.fixture
def source(tmp_path) -> Path:
    file = tmp_path / "package" / "one.cc"
    file.parent.mkdir()
    file.write_text("one")
    return file


def test_processes_at_the_same_time_compile_once(source, tmp_path):
    copies = compiler(tmp_path, f"sleep 0.2; {COPIES}")
    with ThreadPoolExecutor(3) as pool:
        made = {*pool.map(library, [source] * 3, [copies] * 3)}
    assert [each.read_text() for each in made] == ["one"]
    assert (tmp_path / "calls").read_text() == "call\n"


def test_a_library_is_made_anew_by_other_headers_or_compilers_and_serves_without(source, tmp_path):
    copies, made = compiler(tmp_path, COPIES), []
    for content, version in (("part", "1.0"), ("another part", "1.0"), ("another part", "1.1")):
        (source.parent / "part.h").write_text(content)
        (tmp_path / "version").write_text(f"one {version}\n")
        made.append(library(source, copies))
    (source.parent / "other.cc").write_text("another library")
    assert library(source, copies) == library(source, "nothing-here") == made[2]
    assert len({*made}) == 3 and all(path.name.startswith("one-") for path in made)
    assert (tmp_path / "calls").read_text() == "call\n" * 3


def test_a_compiler_that_is_missing_or_fails_is_named_and_nothing_is_left(source, tmp_path):
    with pytest.raises(Unavailable, match=r"nothing-here is not on the PATH; .*`knob: other`"):
        library(source, "nothing-here")
    fails = compiler(tmp_path, "echo warning >&2; echo 'one.cc:1: error: wrong' >&2; exit 3")
    with pytest.raises(Unavailable, match=r"ended with 3: one\.cc:1: error: wrong"):
        library(source, fails)
    made = source.parent / "made"
    assert [path.name for path in made.iterdir()] == ["lock"]
    shutil.rmtree(made)
    made.touch()
    with pytest.raises(Unavailable, match=r"one\.cc cannot be compiled into"):
        library(source, fails)


SOURCES = ROOT / "escala/engines/tensorflow/fast"


def test_the_code_in_cpp_is_part_of_the_key_of_the_runs_that_may_use_it():
    code = {
        f"trainer/fast/{path.name}" for path in SOURCES.iterdir() if path.suffix in (".cc", ".h")
    }
    assert "trainer/fast/lookup.cc" in code
    for workload, strategy, has in (("mlp", "single", 1), ("mlp", "torch-single", 0)):
        assert code & set(key.code(workload, strategy).files()) == (code if has else set())


def test_all_are_compiled_at_once_and_then_need_no_compiler(monkeypatch):
    made = install.compile_operations()
    names = {source.stem for source in SOURCES.glob("*.cc")}
    assert {each.name.partition("-")[0] for each in made} == names
    monkeypatch.setenv("PATH", "")
    assert install.compile_operations() == made
    for library in made:
        tf.load_op_library(str(library))


#: 1 + 2^-12 is 1 in bfloat16, so a product of `SIZE` terms tells in which type it was computed.
SMALL, SIZE = 2.0**-12, 256


#: Each type in a fork, because what is set holds for a whole process.
PROGRAM = f"""
import json, os, sys
import numpy as np, tensorflow as tf
from escala.engines.tensorflow.engine import set_products
from escala.engines.tensorflow.layers import as_graph
for products in sys.argv[1:]:
    if os.fork() == 0:
        break
    os.wait()
else:
    raise SystemExit
set_products(products)
weights = tf.Variable(tf.fill(({SIZE}, {SIZE}), 1 + {SMALL}))
rows = np.ones((32, {SIZE}), np.float32)

@as_graph()
def step(rows):
    with tf.GradientTape() as tape:
        outputs = tf.nn.relu(rows @ weights)
        loss = tf.reduce_sum(outputs)
    weights.assign_sub({SMALL} * tape.gradient(loss, weights))
    return outputs

outputs = step(rows)
results = [(tensor.dtype.name, float(tensor[0, 0])) for tensor in (outputs, weights)]
print(json.dumps([*results, tf.config.experimental.tensor_float_32_execution_enabled()]))
"""


#: The gradient of the sum of products of ones is exact in both types.
UPDATED = ["float32", 1 + SMALL - 32 * SMALL]


def test_products_have_the_precision_asked_for_and_weights_stay_in_float32():
    values = {"tensor-float-32": SIZE * (1 + SMALL)}
    values |= {"bfloat16": SIZE} if has_instructions(base.BFLOAT16) else {}
    done = python("-c", PROGRAM, *values, check=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    for (products, value), line in zip(values.items(), lines, strict=True):
        product, updated, tensor_float = json.loads(line)
        assert (product, updated) == (["float32", value], UPDATED)
        assert tensor_float == (products == "tensor-float-32")


def test_a_processor_without_instructions_for_bfloat16_is_refused(monkeypatch):
    monkeypatch.setattr(base, "has_instructions", lambda name: False)
    with pytest.raises(Unavailable, match="needs a processor with avx512_bf16"):
        engine.set_products("bfloat16")


SHAPES = [(7, 16), (3, 5, 2), (1,), (700, 100)]


def gradients(scale: float) -> Iterator[list[tf.Tensor | tf.IndexedSlices | Factors]]:
    """Gradients of 50 steps; every third time those of the first variable are some of its rows.

    A row is named twice. Those of the last variable are factors.
    """
    random = np.random.default_rng(1)
    for step in range(50):
        found = [tf.constant(scale * random.normal(size=s), tf.float32) for s in SHAPES[:-1]]
        if step % 3 == 0:
            rows = tf.constant([5, 0, 5, 2])
            found[0] = tf.IndexedSlices(found[0][:4], rows, tf.constant(SHAPES[0]))
        factors = random.normal(size=(8, 700)), scale * random.normal(size=(8, 100))
        yield [*found, Factors(*(tf.constant(each, tf.float32) for each in factors))]


# Squares of the smaller gradients are of epsilon's size.
@pytest.mark.parametrize(
    ("update", "scale", "scheduled"),
    [
        ("fused", 1.0, True),
        ("one-pass", 3e-4, False),
    ],
)
def test_fifty_steps_are_those_of_keras(update, scale, scheduled):
    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay([9, 20], [RATE, RATE / 9, RATE])
    rate, results = schedule if scheduled else RATE, []
    for optimizer in (
        virus_cnn.optimizer({}, rate, {"optimizer": update}),
        tf.keras.optimizers.RMSprop(rate),
    ):
        random = np.random.default_rng(0)
        weights = [tf.Variable(random.normal(size=s).astype(np.float32)) for s in SHAPES]
        optimizer.build(weights)

        @tf.function
        def apply(found, optimizer=optimizer, weights=weights):
            if not isinstance(optimizer, rmsprop.OnePassRMSprop):
                found = [each.product() if isinstance(each, Factors) else each for each in found]
            optimizer.apply_gradients(zip(found, weights, strict=True))

        for step_gradients in gradients(scale):
            apply(step_gradients)
        results.append([v.numpy() for v in (*weights, *optimizer.variables)])
    # Some ten roundings of float32 in each of 50 steps, which add up at worst.
    assert_close(*results, 1e-4)


INSTRUCTIONS = sorted({*offered()} - {"avx512f"})


def by_operation(codes, tables, upstream, *settings, instructions="auto"):
    tables = tf.constant(tables)
    with tf.GradientTape() as tape:
        tape.watch(tables)
        values = look_up(tf.constant(codes), tables, *settings, instructions)
        product = tf.reduce_sum(values * upstream)
    return values.numpy(), tape.gradient(product, tables).numpy()


@pytest.mark.parametrize("rows", [0, 4])
def test_wider_vectors_look_up_the_same_values(rows):
    random = np.random.default_rng(0)
    codes, tables = letters(random, rows, 60), random.normal(size=(2, 125, 40)).astype(np.float32)
    upstream = np.ones((rows, 14, 40), np.float32)
    (values, gradient), *others = [
        by_operation(codes, tables, upstream, 5, 3, 2, 2, instructions=name)
        for name in (*INSTRUCTIONS, "auto")
    ]
    assert values.shape == upstream.shape and bool(gradient.any()) == bool(rows)
    for other in others:
        np.testing.assert_equal((values, gradient), other)


def test_what_is_not_a_number_stays_so():
    """So the loss of a diverged model is not finite, and its run ends."""
    codes = np.array([[0, 2, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]], np.uint8)
    for tap, instructions in ((0, INSTRUCTIONS[0]), (1, INSTRUCTIONS[-1])):
        tables = np.ones((2, 4, 16), np.float32)
        tables[tap, 2] = np.nan
        values = look_up(tf.constant(codes), tf.constant(tables), 4, 1, 1, 2, instructions).numpy()
        assert np.isnan(values[0, 0]).all() and np.isfinite(values[1]).all()


def plain(
    alphabet: int, filters: tuple[int, int], kernels: tuple[int, int], pools: tuple[int, int]
) -> list[layers.Layer]:
    """The layers of a stem; alphabet, filters, kernels and pools of the first and the second."""
    return [
        layers.Embedding(alphabet, 3),
        layers.Conv1D(filters[0], kernels[0], activation="relu"),
        layers.MaxPool1D(pools[0]),
        layers.Conv1D(filters[1], kernels[1], activation="relu"),
        layers.MaxPool1D(pools[1]),
    ]


def network(stem: list[layers.Layer], length: int) -> tf.keras.Model:
    return tf.keras.Sequential([layers.Input((length,), dtype="uint8"), *stem])


def drawn(model: tf.keras.Model, random: np.random.Generator) -> list[np.ndarray]:
    """Weights of a model drawn anew, biases too, which begin as 0; none makes values grow."""
    return [
        random.normal(0, 1 / np.sqrt(np.prod(w.shape[:-1])), w.shape).astype(np.float32)
        for w in model.get_weights()
    ]


def letters(random: np.random.Generator, rows: int, length: int, alphabet: int = 5) -> np.ndarray:
    return random.integers(0, alphabet, (rows, length)).astype(np.uint8)


def results(model: tf.keras.Model, codes: np.ndarray, upstream: np.ndarray) -> list[np.ndarray]:
    with tf.GradientTape() as tape:
        output = model(codes, training=True)
        product = tf.reduce_sum(output * upstream)
    gradients = tape.gradient(product, model.trainable_variables)
    return [array.numpy() for array in (output, *map(tf.convert_to_tensor, gradients))]


def assert_same(found_of, expected_of, codes, change=lambda values: values) -> None:
    """Assert equal outputs and gradients at weights that are drawn anew, and changed."""
    random = np.random.default_rng(len(codes))
    expected_of.set_weights([*map(change, drawn(expected_of, random))])
    found_of.set_weights(expected_of.get_weights())
    upstream = change(random.normal(size=expected_of(codes).shape).astype(np.float32))
    wanted = results(expected_of, codes, upstream)
    assert_close(results(found_of, codes, upstream), wanted)
    assert change is not np.abs or all(np.abs(array).max() > 0 for array in wanted)


sizes = st.tuples(st.integers(1, 3), st.integers(1, 3))


@settings(max_examples=10)
@given(
    alphabet=st.integers(1, 5),
    filters=st.tuples(st.integers(1, 6), st.sampled_from([1, 5, 8, 16, 17, 40])),
    kernels=sizes,
    pools=sizes,
    extra=st.integers(0, 9),
    table_bytes=st.sampled_from([2**14, TABLE_BYTES, 2**26]),
    operation=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_outputs_and_gradients_are_those_of_the_plain_layers(
    alphabet, filters, kernels, pools, extra, table_bytes, operation, seed
):
    random = np.random.default_rng(seed)
    shortest = kernels[0] - 1 + pools[0] * (kernels[1] - 1 + pools[1])
    codes = letters(random, 3, shortest + extra, alphabet)
    lookup = Lookup(plain(alphabet, filters, kernels, pools), table_bytes, operation)
    expected_of = network(plain(alphabet, filters, kernels, pools), codes.shape[1])
    assert_same(network([lookup], codes.shape[1]), expected_of, codes)


@pytest.mark.parametrize("operation", [False, True])
def test_repeated_letters_share_one_maximum_as_in_the_plain_layers(operation):
    """All values of a pool are equal: its gradient goes to one of them, once."""
    stem = 4, (3, 3), (2, 2), (3, 3)
    codes = np.repeat(np.arange(4, dtype=np.uint8)[:, np.newaxis], 40, axis=1)
    found_of = network([Lookup(plain(*stem), operation=operation)], 40)
    assert_same(found_of, network(plain(*stem), 40), codes, np.abs)


def test_weights_have_the_same_names_shapes_order_and_initial_values():
    models = []
    for stem in ("layers", "lookup-table", "lookup-operation"):
        tf.keras.backend.clear_session()
        tf.keras.utils.set_random_seed(4)
        models.append(virus_cnn.network(1000, 5, stem))
    by_layers, *others = models
    assert by_layers.count_params() == 2_067_181
    for by_lookup in others:
        names = ([each.name for each in model.weights] for model in (by_lookup, by_layers))
        assert next(names) == next(names)
        assert digest(by_lookup.get_weights()) == digest(by_layers.get_weights())
        assert by_lookup.output_shape == by_layers.output_shape


def with_layer(place: int, layer: layers.Layer) -> list[layers.Layer]:
    stem = plain(5, (4, 3), (2, 2), (2, 2))
    stem[place] = layer
    return stem


def conv(filters: int, **options) -> layers.Layer:
    return layers.Conv1D(filters, 2, **{"activation": "relu"} | options)


FALL_BACKS = {
    "a long kernel": plain(5, (4, 3), (9, 2), (2, 2)),
    "padding": with_layer(1, conv(4, padding="same")),
    "strides": with_layer(3, conv(3, strides=2)),
    "dilation": with_layer(1, conv(4, dilation_rate=2)),
    "tanh": with_layer(3, conv(3, activation="tanh")),
    "no bias": with_layer(1, conv(4, use_bias=False)),
    "overlapping pools": with_layer(2, layers.MaxPool1D(3, strides=2)),
    "padded pools": with_layer(4, layers.MaxPool1D(2, padding="same")),
    "averages": with_layer(2, layers.AveragePooling1D(2)),
}


@pytest.mark.parametrize("case", FALL_BACKS)
def test_what_has_no_small_tables_is_computed_by_the_layers(case):
    stem = FALL_BACKS[case]
    lookup = Lookup(stem)
    found_of = network([lookup], 31)
    assert not lookup.uses_tables
    expected_of = network([type(layer).from_config(layer.get_config()) for layer in stem], 31)
    assert_same(found_of, expected_of, letters(np.random.default_rng(3), 4, 31))


def test_the_limit_is_what_the_largest_table_takes():
    """125 k-mers, four columns, four bytes each."""
    stem, takes = plain(5, (4, 3), (2, 2), (2, 2)), 4 * 4 * 5**3
    assert [Lookup(stem, limit).uses_tables for limit in (takes, takes - 1)] == [True, False]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"\[1,5\] = 5 is not in \[0, 5\)"),
        ({"table_bytes": 2**12}, r"\[1,5\] = 5 is not in \[0, 5\)"),
        ({"operation": True}, "not in an alphabet of 5"),
    ],
)
def test_a_code_beyond_the_alphabet_is_refused(options, message):
    model = network([Lookup(plain(5, (4, 3), (2, 2), (2, 2)), **options)], 31)
    codes = np.ones((2, 31), np.uint8)
    codes[1, 5] = 5
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        model(codes)
