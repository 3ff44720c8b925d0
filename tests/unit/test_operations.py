"""The operations of dense layers, against NumPy and Keras."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import example, given, settings
from hypothesis import strategies as st

from escala.core.errors import Unavailable
from escala.data.base import Spec
from escala.engines.tensorflow import step as steps
from escala.engines.tensorflow.fast import operations, rmsprop
from escala.engines.tensorflow.fast.dense import DenseLayers, Factors
from escala.engines.tensorflow.functions import Functions
from escala.engines.tensorflow.ranks import Ranks
from escala.record import key
from escala.workloads.virus_cnn import model as virus_cnn
from scripts import install
from tests.conftest import ROOT

RATE, RHO, EPSILON = 0.01, 0.9, 1e-7
#: Of the largest value. An element of the gradient is a sum of up to 40 rounded products, and each
#: step rounds it, its square, the mean square, the root and the weight once more. The rounding of
#: float32 is 6e-8.
TOLERANCE = 1e-5
INSTRUCTIONS = ("avx512f", "avx2", "baseline")


def offered() -> list[str]:
    """Return the instructions that this processor has."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    flags = next(line for line in lines if line.startswith("flags")).split()
    return [name for name in INSTRUCTIONS if name in flags or name == "baseline"]


def arrays(rows: int, inputs: int, outputs: int, seed: int = 0) -> list[np.ndarray]:
    """Return a layer's input, output gradient, kernel and mean square, float32."""
    random = np.random.default_rng(seed)
    shapes = (rows, inputs), (rows, outputs), (inputs, outputs), (inputs, outputs)
    x, d, w, v = (random.normal(size=shape).astype(np.float32) for shape in shapes)
    return [x, d, w, v**2]


SETTINGS = (RATE, RHO, EPSILON)


def updated(x, d, w, v, instructions: str = "auto") -> list[np.ndarray]:
    kernel, squares = tf.Variable(w), tf.Variable(v)
    rmsprop.update(kernel, squares, tf.constant(x), tf.constant(d), *SETTINGS, instructions)
    return [kernel.numpy(), squares.numpy()]


def expected(x, d, w, v) -> list[np.ndarray]:
    """Return the same in float64."""
    x, d, w, v = (each.astype(np.float64) for each in (x, d, w, v))
    gradient = x.T @ d
    v = RHO * v + (1 - RHO) * gradient**2
    return [w - RATE * gradient / np.sqrt(v + EPSILON), v]


def updated_by_gradient(gradient, w, v, instructions: str = "auto") -> list[np.ndarray]:
    variable, squares = tf.Variable(w), tf.Variable(v)
    rmsprop.update_by_gradient(variable, squares, tf.constant(gradient), *SETTINGS, instructions)
    return [variable.numpy(), squares.numpy()]


def assert_close(found, wanted, tolerance: float = TOLERANCE) -> None:
    for one, other in zip(found, wanted, strict=True):
        largest = np.abs(other).max(initial=0)
        np.testing.assert_allclose(one, other, rtol=0, atol=tolerance * largest)


OFFERED = st.sampled_from(offered())


@settings(max_examples=20)
@given(st.integers(0, 70), st.integers(1, 70), st.integers(1, 150), st.integers(0, 999), OFFERED)
@example(32, 13, 128, 0, "baseline")
def test_a_layer_of_any_shape_has_the_update_of_float64(rows, inputs, outputs, seed, instructions):
    given = arrays(rows, inputs, outputs, seed)
    assert_close(updated(*given, instructions), expected(*given))


@settings(max_examples=40)
@given(st.lists(st.integers(1, 12), max_size=3), st.integers(0, 999), OFFERED)
@example([3, 130], 0, "baseline")
def test_a_variable_of_any_shape_is_updated_as_in_float64(shape, seed, instructions):
    random = np.random.default_rng(seed)
    gradient, w, v = (random.normal(size=shape).astype(np.float32) for _ in range(3))
    found = updated_by_gradient(gradient, w, v**2, instructions)
    squares = RHO * v.astype(np.float64) ** 2 + (1 - RHO) * gradient.astype(np.float64) ** 2
    assert_close(found, [w - RATE * gradient / np.sqrt(squares + EPSILON), squares])


def all_operations(rows: int, inputs: int, outputs: int, instructions: str = "auto") -> list:
    """Return the results of each operation: of two updates."""
    x, d, w, v = arrays(rows, inputs, outputs)
    return [
        *updated(x, d, w, v, instructions),
        *updated_by_gradient(x[0] @ w * w, w, v, instructions),
    ]


@pytest.mark.skipif("avx2" not in offered(), reason="this processor has no avx2")
@pytest.mark.parametrize("outputs", [1, 70])
def test_wider_vectors_give_the_same_bits(outputs):
    first, *others = [
        all_operations(33, 50, outputs, name) for name in offered() if name != "baseline"
    ]
    for other in (*others, all_operations(33, 50, outputs)):
        for one, found in zip(first, other, strict=True):
            np.testing.assert_array_equal(one, found)


def test_the_number_of_threads_changes_no_bit():
    """Each process has a pool of its own size, which divides a large update."""
    code = """if True:
        import hashlib
        import sys
        import tensorflow as tf
        tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
        sys.path.insert(0, sys.argv[2])
        import test_operations
        arrays = test_operations.all_operations(32, 4000, 128)
        print(hashlib.sha256(b"".join(each.tobytes() for each in arrays)).hexdigest())
        print(tf.config.threading.get_intra_op_parallelism_threads())
    """
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(threads), str(Path(__file__).parent)],
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"},
        )
        for threads in (1, 2)
    ]
    outputs = [process.communicate()[0].split() for process in started]
    assert [threads for _, threads in outputs] == ["1", "2"]
    assert len({digest for digest, _ in outputs}) == 1


def test_each_call_is_a_step_of_the_learning_rates_schedule():
    """The kernel is the only variable, so Keras has nothing to update."""
    kernels = []
    schedule = tf.keras.optimizers.schedules.PiecewiseConstantDecay([0, 1], [1.0, 0.1, 2.0])
    x, d, w, _ = map(tf.constant, arrays(4, 30, 20))
    factors = Factors(x, d)
    for optimizer, gradient in (
        (rmsprop.OnePassRMSprop(schedule), factors),
        (tf.keras.optimizers.RMSprop(schedule), factors.product()),
    ):
        kernel = tf.Variable(w)
        optimizer.build([kernel])
        for _ in range(3):
            optimizer.apply_gradients([(gradient, kernel)])
        assert int(optimizer.iterations) == 3
        kernels.append(kernel.numpy())
    assert_close(kernels[:1], kernels[1:], 1e-4)


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
    assert_close([each.numpy() for each in after], expected(x, d, w, v))


def test_the_first_dense_layer_trains_as_with_keras():
    """Two steps of a rank that trains by itself, as `escala.training.train` makes them."""
    results, found = [], []
    for name in ("keras", "one-pass"):
        tf.keras.utils.set_random_seed(0)
        model = virus_cnn.network(100, 3)
        optimizer = virus_cnn.optimizer({}, RATE, {"optimizer": name})
        single, plan = Ranks({}, None), {"ranks": 1, "knobs": {"accumulation": 1}}
        accumulating = plan | {"knobs": {"accumulation": 2}}
        assert DenseLayers(model, optimizer, accumulating, single).exchanges == {}
        dense = DenseLayers(model, optimizer, plan, single)
        found.append({tuple(layer.kernel.shape): each for layer, each in dense.exchanges.items()})
        compute = steps.make_compute(
            model,
            Functions(virus_cnn, {}),
            dense.kinds,
            [],
            steps.local_sum,
        )
        step = steps.train_step(dense, single, Rows, compute, single.exchange)
        random = np.random.default_rng(1)
        losses = []
        for rows in (6, 4):
            codes = random.integers(0, 5, (rows, 100), np.uint8)
            targets = random.integers(0, 3, rows)
            ones = np.ones(rows, np.float32)
            losses.append(step([(codes, targets, ones, np.float32(10))])[0])
        results.append([losses, *model.get_weights(), *(v.numpy() for v in optimizer.variables)])
    assert found == [{}, {(1536, 128): "factors"}]
    for expected, other in zip(*results, strict=True):
        np.testing.assert_allclose(other, expected, rtol=1e-3, atol=1e-4)


class Rows:
    inputs = (Spec("codes", (100,), "uint8"),)
    targets = Spec("targets", (), "int64")


@pytest.mark.parametrize(
    "option",
    ["momentum", "centered", "weight_decay", "clipnorm", "clipvalue", "global_clipnorm", "use_ema"],
)
def test_an_option_that_changes_the_update_is_refused(option):
    value = True if option in ("centered", "use_ema") else 0.5
    with pytest.raises(ValueError, match=f"^{option} is "):
        rmsprop.OnePassRMSprop(RATE, **{option: value})


def test_only_large_matrices_of_float32_have_factors():
    takes = rmsprop.OnePassRMSprop().takes_factors
    large = np.zeros((512, 256))
    assert takes(tf.Variable(large, dtype=tf.float32))
    assert not takes(tf.Variable(large, dtype=tf.float64))
    assert not takes(tf.Variable(large.reshape(8, 64, 256), dtype=tf.float32))
    assert not takes(tf.Variable(large[:8], dtype=tf.float32))
    bounded = tf.Variable(large, dtype=tf.float32, constraint=tf.keras.constraints.NonNeg())
    assert not takes(bounded)


def test_shapes_that_do_not_fit_are_refused():
    x, d, w, v = map(tf.Variable, arrays(4, 6, 5))
    for inputs, gradients in ((d, x), (x[0], d), (x[:3], d)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="do not fit a kernel"):
            rmsprop.update(w, v, inputs, gradients, *SETTINGS)
    with pytest.raises(tf.errors.InvalidArgumentError, match="one variable"):
        rmsprop.update(w, w, x, d, *SETTINGS)


def compiler(folder: Path, code: str) -> str:
    """Return the path of a script that serves as a compiler. It notes what it compiles."""
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


def library(source: Path, folder: Path, compiler: str) -> Path:
    return operations.library(source, folder, "knob: other", compiler)


def test_processes_at_the_same_time_compile_once(tmp_path):
    source, folder = tmp_path / "one.cc", tmp_path / "made"
    source.write_text("one")
    copies = compiler(tmp_path, f"sleep 0.2; {COPIES}")
    made = []
    threads = [
        threading.Thread(target=lambda: made.append(library(source, folder, copies)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 1 and made[0].read_text() == "one"
    assert (tmp_path / "calls").read_text() == "call\n"


def test_a_library_has_the_name_of_its_file_and_is_made_anew_when_a_header_there_changes(tmp_path):
    package, folder = tmp_path / "package", tmp_path / "made"
    package.mkdir()
    source, header = package / "one.cc", package / "part.h"
    source.write_text("one")
    copies, made = compiler(tmp_path, COPIES), []
    for content in ("part", "another part"):
        header.write_text(content)
        made.append(library(source, folder, copies))
    (package / "other.cc").write_text("another library")
    assert library(source, folder, copies) == made[1] != made[0]
    assert all(path.name.startswith("one-") for path in made)
    assert (tmp_path / "calls").read_text() == "call\n" * 2


def test_a_library_is_made_anew_by_another_compiler_and_serves_where_there_is_none(tmp_path):
    source, folder = tmp_path / "one.cc", tmp_path / "made"
    source.write_text("one")
    copies = compiler(tmp_path, COPIES)
    first = library(source, folder, copies)
    (tmp_path / "version").write_text("one 1.1\n")
    second = library(source, folder, copies)
    assert library(source, folder, copies) == second != first
    assert library(source, folder, "nothing-here") == second


def test_a_compiler_that_is_missing_or_fails_is_named_and_nothing_is_left(tmp_path):
    source, folder = tmp_path / "one.cc", tmp_path / "made"
    source.write_text("one")
    with pytest.raises(Unavailable, match=r"nothing-here is not on the PATH; .*`knob: other`"):
        library(source, folder, "nothing-here")
    fails = compiler(tmp_path, "echo warning >&2; echo 'one.cc:1: error: wrong' >&2; exit 3")
    with pytest.raises(Unavailable, match=r"ended with 3: one\.cc:1: error: wrong"):
        library(source, folder, fails)
    assert [path.name for path in folder.iterdir()] == ["lock"]
    (tmp_path / "file").touch()
    with pytest.raises(Unavailable, match=r"one\.cc cannot be compiled into"):
        library(source, tmp_path / "file" / "made", fails)


SOURCES = ROOT / "escala/engines/tensorflow/fast"


def test_the_code_in_cpp_is_part_of_the_key_of_the_runs_that_may_use_it():
    code = {
        f"trainer/fast/{path.name}"
        for suffix in ("cc", "h")
        for path in SOURCES.glob(f"*.{suffix}")
    }
    assert "trainer/fast/lookup.cc" in code
    for workload in ("virus-cnn", "mlp"):
        assert code <= set(key.code(workload, "single").files())
        assert not code & set(key.code(workload, "torch-single").files())
    assert not code & set(key.code("kmer-logreg", "single").files())


def test_all_are_compiled_at_once_and_then_need_no_compiler(monkeypatch):
    made = install.compile_operations()
    names = {source.stem for source in SOURCES.glob("*.cc")}
    assert {each.name.partition("-")[0] for each in made} == names
    monkeypatch.setenv("PATH", "")
    assert install.compile_operations() == made
    for library in made:
        tf.load_op_library(str(library))
